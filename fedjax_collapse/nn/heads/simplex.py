"""A fixed classifier: the vertices of a regular simplex, to which trained classifiers and their class means converge.

    logits = f / ||f|| @ M,   M = sqrt(C / (C - 1)) P (I - 1 1^T / C)   [d, C],   P [d, C] with orthonormal columns

Papyan et al., "Prevalence of Neural Collapse during the Terminal Phase of Deep Learning Training" (PNAS 2020). The
columns of M have norm 1 and pairwise cosine ``-1 / (C - 1)``, the lowest that all pairs of C vectors can have. M is not
a param: it depends only on a seed and its shape, so it is the same for all clients, rounds and runs.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.losses.norms import inverse_root
from fedjax_collapse.schema.options import Seed


class Simplex(nn.Module):
    """Cosines [batch, classes] of the features with the vertices; without ``normalize``, inner products.

    Features of norm 0 (in float32, below 3e-10) have logits 0 and no gradient.

    Attributes:
        normalize: whether features are scaled to norm 1, so that logits are cosines.
        seed: seed of P; another P only rotates M.

    Raises:
        UserError: if there are fewer than two classes, or fewer features than classes.
    """

    num_classes: int
    normalize: bool = True
    seed: Seed = 0

    def __call__(self, features: jax.Array) -> jax.Array:
        dim = features.shape[1]
        if not 2 <= self.num_classes <= dim:
            raise UserError(
                f"head of a simplex: {self.num_classes} classes on {dim} features, expected at least two classes and "
                f"as many features; widen the network, or set its projector or projector_dim of head etf"
            )
        if self.normalize:
            features = features * inverse_root(jnp.sum(features**2, axis=1, keepdims=True))
        return features @ jnp.asarray(_frame(dim, self.num_classes, self.seed), features.dtype)


def simplex_frame(matrix: np.ndarray) -> np.ndarray:
    """Returns M [d, C] with P the Q factor of ``matrix`` [d, C], for d >= C >= 2."""
    basis, num_classes = np.linalg.qr(matrix)[0], matrix.shape[1]
    return np.sqrt(num_classes / (num_classes - 1)) * (basis - basis.mean(axis=1, keepdims=True))


@functools.cache
def _frame(dim, num_classes, seed):
    return simplex_frame(np.random.default_rng(seed).random((dim, num_classes)))
