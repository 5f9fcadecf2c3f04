"""FedRCL's losses: make rows of the same class more similar than rows of different classes, without collapse.

Seo et al., "Relaxed Contrastive Learning for Federated Learning" (CVPR 2024), following the released code: of all pairs
of a row only the hardest count, selected by index, and the gradient flows into both rows of a pair. Cosines use norms
clipped from below at 1e-8, so a row of zeros has cosine 0 with every row.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar
from fedjax_collapse.losses.contrastive import clipped_unit
from fedjax_collapse.losses.shapes import Features, Labels, Mask, Value
from fedjax_collapse.losses.task_loss import masked_mean


def hardest_contrast(
    features: Features,
    labels: Labels,
    mask: Mask,
    temperature: Scalar = 0.05,
) -> Value:
    """Returns the supervised contrastive loss on the hardest pairs, mean over the true rows.

    ``-log( exp(p/t) / (exp(p/t) + exp(n_1/t) + exp(n_2/t)) )`` for each row, with p the smallest cosine with a row of
    its class, including itself, n_1 and n_2 the two largest cosines with rows of other classes (only n_1 if there is no
    second), and t the ``temperature``. The loss of a row is 0 if the batch has no other class.
    """
    cosines, same, others = _pairs(features, labels, mask)
    positive, _ = _select(cosines, _smallest(cosines, same))
    negatives, exist, candidates = [], [], others
    for _ in range(2):
        hardest = _smallest(-cosines, candidates)
        negative, exists = _select(cosines, hardest)
        negatives, exist, candidates = [*negatives, negative], [*exist, exists], candidates & ~hardest
    differences = jnp.stack([jnp.zeros_like(positive), *((n - positive) / temperature for n in negatives)])
    where = jnp.stack([jnp.ones_like(mask), *exist])
    return masked_mean(jax.nn.logsumexp(differences, axis=0, where=where), mask)


def excess_similarity(
    features: Features,
    labels: Labels,
    mask: Mask,
    temperature: Scalar = 0.05,
    threshold: Scalar = 0.7,
) -> Value:
    """Returns a penalty on classes whose rows are too similar, mean over the true rows.

    ``log(1 + exp((s - 1)/t))`` for each row, with s the smallest cosine with another row of its class and t the
    ``temperature``. If that cosine is below the ``threshold``, or there is no such row, s is the constant -1.
    """
    cosines, same, _ = _pairs(features, labels, mask)
    farthest, exists = _select(cosines, _smallest(cosines, same & ~jnp.eye(len(mask), dtype=bool)))
    similarity = jnp.where(exists & (farthest >= threshold), farthest, -1)
    return masked_mean(jax.nn.softplus((similarity - 1) / temperature), mask)


def _pairs(features, labels, mask):
    """Returns cosines, and masks of the pairs of true rows of the same and of different classes, [batch, batch]."""
    rows = clipped_unit(jnp.where(mask[:, None], features, 0))
    true, same = mask[:, None] & mask[None], labels[:, None] == labels[None]
    return jnp.matmul(rows, rows.T, precision="highest"), true & same, true & ~same


def _smallest(values, allowed):
    """Returns a mask [batch, batch] of each row's smallest allowed value, if any; the first one of ties."""
    index = jnp.argmin(jnp.where(allowed, values, jnp.inf), axis=1)
    return allowed & (index[:, None] == jnp.arange(values.shape[1])[None])


def _select(values, place):
    """Returns the value of each row at its ``place``, 0 if it has none, and whether it has one."""
    return jnp.sum(jnp.where(place, values, 0), axis=1), jnp.any(place, axis=1)
