"""FedRot-LoRA: factors are rotated close to the server's before they are averaged.

    A_k <- R^T A_k,   B_k <- B_k R,   R orthogonal: the product B_k A_k stays as it is
    odd rounds:   R minimises |R^T A_k - A|;   even rounds from 2 on:   R minimises |B_k R - B|

where A and B are the server's. With a ``strength`` below 1, R is the orthogonal matrix closest to
``(1 - strength) I + strength R``. A direction that R inverts (every reflection has one) does not change if the strength
is below 0.5, and is inverted above; at 0.5 the matrix is singular, and rounding decides. Zhang et al., "FedRot-LoRA:
Mitigating Rotational Misalignment in Federated LoRA" (ICML 2026).

By default the released code computes this R, among all orthogonal matrices; for a strength of at most 1 it takes
rotations without a reflection only, which can undo the gain. Here R is any orthogonal matrix.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import change, mean_factors
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.nn.adapters import Adapter, adapters
from fedjax_collapse.schema.options import Share


class FedRotLoRA(Method):
    """Factors that are aligned with the server's.

    Args:
        strength: lambda, how far factors are rotated.
    """

    strength: Share = 1.0
    freeze = "base"
    needs = ("adapters",)

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        server, new = adapters(view.server.params), {}
        for layer, own in mean_factors(update, server).items():
            by_a, by_b = own.a.T @ server[layer].a, own.b @ server[layer].b.T
            best = nearest_orthogonal(jnp.where(view.round % 2 == 1, by_a, by_b))
            identity = jnp.eye(len(best), dtype=best.dtype)
            turn = nearest_orthogonal((1 - self.strength) * identity + self.strength * best)
            turn = jnp.where(view.round == 0, identity, turn)
            new[layer] = Adapter(own.a @ turn, turn.T @ own.b, own.scale)
        return change(update, server, new), view.memory


def nearest_orthogonal(matrix):
    """Returns the orthogonal matrix that is closest to a square one."""
    left, _, right = jnp.linalg.svd(matrix)
    return left @ right
