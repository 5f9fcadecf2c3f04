"""Ditto: each client also trains a personal model close to the server's.

    v  minimises  F_k(v) + strength / 2 * sum (v - w)^2,     w as received

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021). Clients use v, which starts
at the initial model and is never sent. The server's model is that of federated averaging. Both trainings see the same
batches, and the terms of other regularizers, and start with fresh momentum. The released code averages clients equally
(``weighting="equal"``), drawn in proportion to their size. BatchNorm's statistics belong to the model that is trained.

PFLlib's default strength is 0: v is trained alone.
"""

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import ClientView, FinishView, Method
from fedjax_collapse.methods.drift.fedprox import FedProx
from fedjax_collapse.schema.options import NonNegative, Positive


class Ditto(Method):
    """A personal model for every client.

    Args:
        strength: factor lambda of the squared distance; 1 in the released code.
        epochs: epochs of the personal model; None takes local training's.
    """

    strength: NonNegative = 1.0
    epochs: Positive | None = None

    def init_memory(self, variables: Variables, shapes: Outputs) -> Variables:
        return variables

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        changes = {} if self.epochs is None else dict(epochs=self.epochs, phases=(), steps=None)
        return view.train(view.memory, {"ditto": FedProx(self.strength)}, **changes), ()

    def personal(self, view: ClientView) -> Variables:
        return view.memory
