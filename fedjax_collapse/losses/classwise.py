"""FedMR's intra-class loss: decorrelate the features inside every class of the batch.

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023), section on the
intra-class loss and lemma 1. The paper and its released code differ by orders of magnitude, so strengths do not carry
over between variants.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_collapse.core.records import Scalar, UserError
from fedjax_collapse.losses.norms import inverse_root

VARIANTS = ("paper", "paper_unit", "official")


def intra_class_correlation(
    features: Float[Array, "batch features"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    variant: str = "paper",
    normalise_d2: bool = False,
    min_count: int = 2,
    eps: Scalar = 1e-8,
) -> Float[Array, ""]:
    """FedMR's penalty on the d x d correlations inside every class with at least ``min_count`` of the true rows.

    With n_c rows of class c, K_c their correlation matrix, ``Q_c = (n_c - 1) K_c`` and C the number of such classes:

    * ``paper``: ``1/C sum_c ||M_c||_F^2``, where ``M_c = n_c / (n_c - 1) K_c`` because the paper standardises with
      divisor n_c and then divides by n_c - 1; lemma 1 therefore does not hold exactly;
    * ``paper_unit``: ``1/C sum_c ||K_c||_F^2``, for which it does;
    * ``official`` (released code): sum over c of the mean over i != j of ``Q_c,ij^2``, over the sum of n_c.

    ``normalise_d2`` divides the first two by d^2; without it they cannot fall below about ``d^2 / (n_c - 1)``, so their
    strengths must be tiny. ``eps`` is added to the variances under the root (divisor n_c; in ``official`` n_c - 1, as
    released), in the paper there is none. 0 if no class qualifies. A class of two rows has a value but no gradient.

    Raises:
        UserError: unknown variant; ``min_count`` below 2; ``normalise_d2`` with ``official``, which is a mean already.
    """
    if variant not in VARIANTS:
        raise UserError(f"fedmr variant {variant!r}: expected one of {', '.join(VARIANTS)}")
    if min_count < 2:
        raise UserError(f"fedmr min_count {min_count}: expected >= 2, one row has no correlation")
    if normalise_d2 and variant == "official":
        raise UserError("fedmr normalise_d2 True: expected False with variant 'official', which is a mean already")
    dim = features.shape[1]
    same, counted, counts, leaders = _classes(labels, mask, min_count, features.dtype)
    rows = _standardize_by_class(features, same, counted, counts, 1 if variant == "official" else 0, eps)
    gram = jnp.matmul(rows, rows.T, precision="highest")
    squares = jnp.sum(same * gram**2, axis=1)  # summed over the rows of a class: ||Q_c||_F^2
    if variant == "official":
        diagonals = jnp.sum(leaders[:, None] * _class_sums_by_row(same, rows**2) ** 2)
        return (jnp.sum(squares) - diagonals) / (dim * max(dim - 1, 1) * jnp.maximum(jnp.sum(counted), 1))
    divisors = counts - 1 if variant == "paper" else counts
    mean = jnp.sum(squares / divisors**2) / jnp.maximum(jnp.sum(leaders), 1)
    return mean / dim**2 if normalise_d2 else mean


def _classes(labels, mask, min_count, dtype):
    """Who shares a class with whom [batch, batch]; which rows count; the size of their class; one row per class."""
    same = (labels[:, None] == labels[None]) & mask[:, None] & mask[None]
    counts = jnp.sum(same, axis=1)
    counted = counts >= min_count
    leaders = counted & (jnp.sum(jnp.tril(same, -1), axis=1) == 0)
    return same.astype(dtype), counted, jnp.maximum(counts, 2).astype(dtype), leaders


def _standardize_by_class(features, same, counted, counts, ddof, eps):
    """Rows minus the mean of their class over its standard deviation; rows that do not count are zero."""
    features = jnp.where(counted[:, None], features, 0)
    means = _class_sums_by_row(same, features) / counts[:, None]
    centred = jnp.where(counted[:, None], features - means, 0)
    variances = _class_sums_by_row(same, centred**2) / (counts[:, None] - ddof)
    return centred * inverse_root(variances + eps)


def _class_sums_by_row(same, values):
    """For every row the sum over its class: a matmul, which a GPU would round to ten bits if it were not told to."""
    return jnp.matmul(same, values, precision="highest")
