"""FedRCL's losses: rows of a class agree more than rows of two, but not so much that the features collapse.

Seo et al., "Relaxed Contrastive Learning for Federated Learning" (CVPR 2024), by the released code: of all pairs of a
row only the hardest count, chosen by index, and the gradient flows into both rows of a pair. Cosines are of features
whose norms are clipped from below at 1e-8, so that a row of zeros is at cosine 0 with every row.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_collapse.core.records import Scalar
from fedjax_collapse.losses.contrastive import clipped_unit
from fedjax_collapse.losses.task_loss import masked_mean


def hardest_contrast(
    features: Float[Array, "batch features"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    temperature: Scalar = 0.05,
) -> Float[Array, ""]:
    """The supervised contrastive loss on the hardest pairs, mean over the true rows.

    ``-log( exp(p/t) / (exp(p/t) + exp(n_1/t) + exp(n_2/t)) )`` for each row, with p the least cosine with a row of its
    class, itself included, n the two greatest with rows of other classes, one if there is no second, and t the
    ``temperature``. A row without any other class in the batch adds 0.
    """
    cosines, same, others = _pairs(features, labels, mask)
    positive, _ = _chosen(cosines, _least(cosines, same))
    negatives, exist, left = [], [], others
    for _ in range(2):
        hardest = _least(-cosines, left)
        negative, exists = _chosen(cosines, hardest)
        negatives, exist, left = [*negatives, negative], [*exist, exists], left & ~hardest
    differences = jnp.stack([jnp.zeros_like(positive), *((n - positive) / temperature for n in negatives)])
    where = jnp.stack([jnp.ones_like(mask), *exist])
    return masked_mean(jax.nn.logsumexp(differences, axis=0, where=where), mask)


def excess_similarity(
    features: Float[Array, "batch features"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    temperature: Scalar = 0.05,
    threshold: Scalar = 0.7,
) -> Float[Array, ""]:
    """The penalty on classes that are too dense, mean over the true rows.

    ``log(1 + exp((s - 1)/t))`` for each row, with s the least cosine with another row of its class and t the
    ``temperature``. Where that is below the ``threshold``, or there is no such row, s is the constant -1.
    """
    cosines, same, _ = _pairs(features, labels, mask)
    farthest, exists = _chosen(cosines, _least(cosines, same & ~jnp.eye(len(mask), dtype=bool)))
    similarity = jnp.where(exists & (farthest >= threshold), farthest, -1)
    return masked_mean(jax.nn.softplus((similarity - 1) / temperature), mask)


def _pairs(features, labels, mask):
    """Cosines [batch, batch], and the pairs of true rows of the same class and of two classes."""
    rows = clipped_unit(jnp.where(mask[:, None], features, 0))
    true, same = mask[:, None] & mask[None], labels[:, None] == labels[None]
    return jnp.matmul(rows, rows.T, precision="highest"), true & same, true & ~same


def _least(values, allowed):
    """The place [batch, batch] of each row's least value among the allowed ones, the first of equal ones, if any."""
    index = jnp.argmin(jnp.where(allowed, values, jnp.inf), axis=1)
    return allowed & (index[:, None] == jnp.arange(values.shape[1])[None])


def _chosen(values, place):
    """The value of each row at its place, and whether it has one; else 0."""
    return jnp.sum(jnp.where(place, values, 0), axis=1), jnp.any(place, axis=1)
