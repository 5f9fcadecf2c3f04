"""LG-FedAvg: every client keeps a body of its own, and only the head is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations" (2020). Both are
trained jointly. ``shared`` is what is averaged, such as ``head+Dense_1`` for the last two layers; all else, BatchNorm's
running statistics included, stays at the clients. Evaluated are the personal models, as in ``fedper.py``; the server's
model alone, with the mean of all bodies, is of little use.

The released code starts from a model that federated averaging has trained (``variables`` of ``simulate``), weighs
clients equally (``weighting="equal"``), and scores the best network that each client ever had; here it is the last.
Its command for CIFAR-10 averages the two convolutions and keeps the dense layers, the reverse of the paper: to repeat
it, ``shared="Conv_0+Conv_1"`` with ``moon_cnn`` and ``hidden=(120, 100)``.
"""

from flax import struct

from fedjax_collapse.core.options import option
from fedjax_collapse.core.records import UserError
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining


@struct.dataclass
class LGFedAvg(Method):
    """Private bodies. ``shared``: the part of the network that is not private, or several joined by +."""

    shared: str = option("head")

    @property
    def private(self) -> str:
        return " - ".join(["all", *self.shared.split("+")])

    def check_with(self, training: LocalTraining, private: str, model: Model) -> None:
        if " - " in self.shared:
            raise UserError(f"LGFedAvg: shared {self.shared!r}: expected parts of the network joined by +")
