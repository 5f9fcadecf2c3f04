"""LG-FedAvg: each client has a private body; only the head is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations" (2020). Head and
body are trained jointly. ``shared`` is the averaged part, such as ``head+Dense_1`` for the last two layers; everything
else, including BatchNorm's running statistics, stays at the clients. The personal models are evaluated, as in
``fedper.py``; the server's model, with the mean of all bodies, is of little use by itself.

The released code starts from a model trained by federated averaging (``variables`` of ``simulate``), weights clients
equally (``weighting="equal"``), and evaluates the best network that each client ever had; here it is the last one. Its
command for CIFAR-10 averages the two convolutions and makes the dense layers private, the reverse of the paper; to
reproduce it, use ``shared="Conv_0+Conv_1"`` with ``moon_cnn`` and ``hidden=(120, 100)``.
"""

from fedjax_collapse.core.records import UserError
from fedjax_collapse.methods.base import Method, Setup
from fedjax_collapse.schema.options import Part, option


class LGFedAvg(Method):
    """Private bodies.

    Args:
        shared: averaged part of the network, or parts joined by +, such as ``head+Dense_1``.
    """

    shared: Part = option("head")

    @property
    def private(self) -> str:
        return " - ".join(["all", *self.shared.split("+")])

    def check_with(self, setup: Setup) -> None:
        if " - " in self.shared:
            raise UserError(f"LGFedAvg: shared {self.shared!r}: expected parts of the network joined by +")
