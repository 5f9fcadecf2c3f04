"""FedNova: average directions, not distances, so that clients with more local steps do not pull harder.

    d_i = (w - w_i) / a_i;   w <- w - (sum_i p_i a_i) (sum_i p_i d_i),   p_i = N_i / sum N_i

with ``a_i`` the effective number of steps under heavy-ball momentum. Clients with equal numbers of steps give federated
averaging. Wang et al. (2020). BatchNorm's running statistics are averaged plainly; the released code of FedDecorr
treats them like params, and indexes the weights by client identity, which is wrong for a partial cohort.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core.records import PyTree, Scalar, UserError
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining


@struct.dataclass
class FedNova(Method):
    """Averaging of normalised updates."""

    def check_with(self, training: LocalTraining, private: str, model: Model) -> None:
        check_momentum("FedNova", training)

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        divisor = jnp.maximum(_steps(view), 1)  # a client without a step has not moved
        return jax.tree.map(lambda moved: moved / divisor, update), view.memory

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, view.client.weight * _steps(view)

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(lambda direction: report * direction, update)


def effective_steps(steps: jax.Array, momentum: Scalar) -> jax.Array:
    """``(steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum)``: the 1-norm of the weights with
    which momentum SGD has added up its gradients; without momentum the number of steps."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def check_momentum(method: str, training: LocalTraining) -> None:
    """Raises UserError if momentum does not start at zero in every round, as ``effective_steps`` assumes."""
    if not training.momentum_reset and training.momentum != 0:
        raise UserError(
            f"{method}: its effective number of steps assumes that momentum starts at zero; set momentum_reset=True"
        )


def _steps(view):
    return effective_steps(view.steps, view.training.momentum)
