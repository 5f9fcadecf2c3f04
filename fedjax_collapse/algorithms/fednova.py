"""FedNova: average directions, not distances, so that clients with more local steps do not pull harder.

    d_i = (w - w_i) / a_i;   w <- w - (sum_i p_i a_i) (sum_i p_i d_i),   p_i = N_i / sum N_i

with ``a_i`` the effective number of steps under heavy-ball momentum. Clients with equal numbers of steps give federated
averaging. Wang et al. (2020). BatchNorm's running statistics are averaged plainly; the released code of FedDecorr
treats them like params, and indexes the weights by client identity, which is wrong for a partial cohort.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.records import Client, PyTree, Scalar, Server, Trained, UserError, Variables


@struct.dataclass
class FedNova(Algorithm):
    """Federated averaging of normalised updates."""

    def check(self) -> None:
        if not self.training.momentum < 1:
            raise UserError(f"FedNova: local momentum {self.training.momentum} is too large, expected < 1")

    def finish(self, server: Server, client: Client, trained: Trained) -> tuple[Upload, PyTree]:
        steps = effective_steps(trained.steps, self.training.momentum)
        divisor = jnp.maximum(steps, 1)  # a client without a step has not moved
        direction = jax.tree.map(lambda w, w_i: (w - w_i) / divisor, server.variables.params, trained.variables.params)
        return Upload(mean=(direction, steps, trained.variables.batch_stats)), client.state.extra

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        direction, steps, batch_stats = upload.mean
        params = jax.tree.map(lambda w, d: w - steps * d, server.variables.params, direction)
        return Variables(params, batch_stats), server.extra


def effective_steps(steps: jax.Array, momentum: Scalar) -> jax.Array:
    """``(steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum)``: the 1-norm of the weights with
    which momentum SGD has added up its gradients; without momentum the number of steps."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
