"""Functions shared by several losses: centring, Gram norms, distances, and roots with gradient 0 at zero."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_collapse.losses.shapes import Features, Mask, Value


def centre(features: Features, mask: Mask) -> tuple[Features, Value]:
    """Returns rows minus the mean of the true rows, and their number N; rows with mask False become zero."""
    keep = mask[:, None]
    features = jnp.where(keep, features, 0)
    count = jnp.sum(mask).astype(features.dtype)
    mean = jnp.sum(features, axis=0, keepdims=True) / jnp.maximum(count, 1)
    return jnp.where(keep, features - mean, 0), count


def smaller_gram(rows: Features) -> Float[Array, "size size"]:
    """Returns ``X X^T`` if batch < features, else ``X^T X``; both have the same non-zero eigenvalues.

    Computed at full precision because losses subtract from it, and a GPU's default rounds factors to ten bits.
    """
    batch, dim = rows.shape
    rows = rows if batch < dim else rows.T
    return jnp.matmul(rows, rows.T, precision="highest")


def squared_gram_norm(rows: Features) -> Value:
    """Returns ``||X^T X||_F^2``, computed from the smaller of ``X^T X`` and ``X X^T``, which have the same norm."""
    return jnp.sum(smaller_gram(rows) ** 2)


@jax.custom_jvp
def squared_distances(
    a: Float[Array, "rows features"], b: Float[Array, "others features"]
) -> Float[Array, "rows others"]:
    """Returns ``||a_i - b_j||^2`` for all i, j; value and gradient are exactly 0 where the rows are equal.

    The value is computed from the differences, which XLA fuses into the sum; ``|a|^2 + |b|^2 - 2 a.b`` would lose small
    distances to rounding. The derivative does not use differences, so no array [rows, others, features] is stored.
    """
    return jnp.sum((a[:, None] - b[None]) ** 2, axis=2)


@squared_distances.defjvp
def _squared_distances_jvp(primals, tangents):
    (a, b), (da, db) = primals, tangents
    squares = squared_distances(a, b)
    own = jnp.sum(a * da, axis=1)[:, None] + jnp.sum(b * db, axis=1)[None]
    cross = jnp.matmul(da, b.T, precision="highest") + jnp.matmul(a, db.T, precision="highest")
    return squares, jnp.where(squares > 0, 2 * (own - cross), 0)


def root(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns ``sqrt(x)`` for x > 0, else 0 with gradient 0 (at 0 the gradient of ``jnp.sqrt`` is infinite)."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def inverse_root(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns ``1 / sqrt(x)``; 0 with gradient 0 where x is ``negligible``."""
    usable = x > negligible(x)
    return jnp.where(usable, 1 / jnp.sqrt(jnp.where(usable, x, 1)), 0)


def negligible(x: Float[Array, "*shape"]) -> float:
    """Returns the largest number treated as 0 in x's dtype, 1e-19 in float32: dividing by a smaller one overflows."""
    return float(jnp.finfo(x.dtype).tiny) ** 0.5
