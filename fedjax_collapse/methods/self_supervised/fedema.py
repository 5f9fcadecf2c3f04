"""FedEMA: a client that comes back mixes its last local model into the received one, the more the closer they are.

    start = mu local + (1 - mu) received,  mu = min(lambda d, 1);  lambda = tau / d the first time

with d the mean over convolution kernels of ``||received - local||``. Zhuang, Wen & Zhang, "Divergence-Aware Federated
Self-Supervised Learning" (ICLR 2022), together with ``byol``. Only a client of the previous round mixes; others start
from the received model. The released code measures d between the start and the end of a client's training, with
tau 0.8. Without convolutions (ours), d is over all matrices. BatchNorm's running statistics are those received.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import ClientView, FinishView, Method
from fedjax_collapse.schema.options import Positive


class Last(NamedTuple):
    """A client's last local model."""

    params: PyTree
    round: jax.Array  # int32, when it was trained; -2 before the first time
    scale: jax.Array  # lambda; 0 before it is set


class FedEMA(Method):
    """Local training that starts from a mixture of the received and the client's last model.

    Args:
        tau: weight of the local model the first time that a client mixes.
    """

    tau: Positive = 0.7

    def makes_own(self) -> bool:
        return False  # clients use the server's model

    def init_memory(self, variables: Variables, shapes: Outputs) -> Last:
        return Last(variables.params, jnp.full((), -2, jnp.int32), jnp.zeros(()))

    def receive(self, view: ClientView) -> tuple[Variables, Last]:
        last, is_back = view.memory, view.memory.round == view.round - 1
        apart = distance(view.server.params, last.params)
        first = self.tau / jnp.maximum(apart, 1e-12)
        scale = jnp.where(is_back & (last.scale == 0), first, last.scale).astype(last.scale.dtype)
        weight = jnp.where(is_back, jnp.minimum(scale * apart, 1), 0)
        mixed = jax.tree.map(
            lambda own, sent: jnp.where(is_back, weight * own + (1 - weight) * sent, sent).astype(sent.dtype),
            last.params,
            view.server.params,
        )
        return view.server._replace(params=mixed), last._replace(scale=scale)

    def finish(self, view: FinishView) -> tuple[Last, PyTree]:
        return view.memory._replace(params=view.trained.params, round=view.round.astype(jnp.int32)), ()


def distance(params: PyTree, others: PyTree) -> jax.Array:
    """Returns the mean over convolution kernels, or without any over matrices, of the norm of the difference."""
    gaps = jax.tree.leaves(jax.tree.map(jnp.subtract, params, others))
    kernels = [gap for gap in gaps if gap.ndim == 4] or [gap for gap in gaps if gap.ndim > 1]
    return jnp.mean(jnp.stack([jnp.sqrt(jnp.sum(gap**2)) for gap in kernels]))
