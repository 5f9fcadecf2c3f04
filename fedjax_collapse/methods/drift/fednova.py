"""FedNova: average normalised updates, so that clients with more local steps do not dominate.

    d_i = (w - w_i) / a_i;   w <- w - (sum_i p_i a_i) (sum_i p_i d_i),   p_i = N_i / sum N_i

with ``a_i`` the effective number of steps under heavy-ball momentum. If all clients take equally many steps, this is
federated averaging. Wang et al. (2020). BatchNorm's running statistics are averaged without normalisation; FedDecorr's
released code treats them like params, and indexes the weights by client id, which is wrong for a partial cohort.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.methods.base import FinishView, Method, Setup
from fedjax_collapse.optim.local_training import LocalTraining


class FedNova(Method):
    """Averaging of normalised updates."""

    scales_upload = True

    def check_with(self, setup: Setup) -> None:
        check_momentum("FedNova", setup.training)

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        divisor = jnp.maximum(effective_steps(view), 1)  # the update of a client without steps is 0
        return jax.tree.map(lambda leaf: leaf / divisor, update), view.memory

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, view.client.weight * effective_steps(view)

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(lambda direction: report * direction, update)


def effective_steps(view: FinishView) -> jax.Array:
    """The 1-norm of the weights with which momentum SGD sums its gradients; the number of steps without momentum.

    ``(steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum)``.
    """
    steps, momentum = view.steps, view.training.momentum
    if momentum is None:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def check_momentum(method: str, training: LocalTraining) -> None:
    """Raises UserError if momentum does not start at zero in every round, as ``effective_steps`` assumes."""
    if not training.momentum_reset and training.momentum:
        raise UserError(
            f"{method}: its effective number of steps assumes that momentum starts at zero; set momentum_reset=True"
        )
