"""FedMR's intra-class loss: decorrelate the features within each class of the batch.

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023), section on the
intra-class loss and lemma 1. The paper and its released code differ by orders of magnitude, so a strength for one
variant is not valid for another.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar, UserError, check_choice
from fedjax_collapse.losses.norms import inverse_root
from fedjax_collapse.losses.shapes import Features, Labels, Mask, Value

VARIANTS = ("paper", "paper_unit", "official")


def intra_class_correlation(
    features: Features,
    labels: Labels,
    mask: Mask,
    variant: str = "paper",
    normalise_d2: bool = False,
    min_count: int = 2,
    eps: Scalar = 1e-8,
) -> Value:
    """Returns FedMR's penalty on correlations [d, d] within each class that has at least ``min_count`` true rows.

    With n_c rows of class c, K_c their correlation matrix, ``Q_c = (n_c - 1) K_c`` and C the number of such classes:

    * ``paper``: ``1/C sum_c ||M_c||_F^2``, where ``M_c = n_c / (n_c - 1) K_c`` because the paper standardises with
      divisor n_c and then divides by n_c - 1; lemma 1 therefore does not hold exactly;
    * ``paper_unit``: ``1/C sum_c ||K_c||_F^2``, for which lemma 1 holds;
    * ``official`` (released code): the sum over c of the mean over i != j of ``Q_c,ij^2``, divided by the sum of n_c.

    It is 0 if no class has enough rows. A class of two rows has a value but no gradient.

    Args:
        normalise_d2: whether to divide the first two variants by d^2; otherwise they are at least about
            ``d^2 / (n_c - 1)``, so their strengths must be tiny.
        eps: added to the variances under the root (divisor n_c; in ``official`` n_c - 1, as released). The paper has
            none.

    Raises:
        UserError: if ``variant`` is unknown, if ``min_count`` is below 2, or for ``normalise_d2`` with ``official``,
            which is already a mean.
    """
    check_choice("fedmr variant", variant, VARIANTS)
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
    """Returns masks of same-class pairs [batch, batch] and of counted rows, class sizes, and one row per class."""
    same = (labels[:, None] == labels[None]) & mask[:, None] & mask[None]
    counts = jnp.sum(same, axis=1)
    counted = counts >= min_count
    leaders = counted & (jnp.sum(jnp.tril(same, -1), axis=1) == 0)
    return same.astype(dtype), counted, jnp.maximum(counts, 2).astype(dtype), leaders


def _standardize_by_class(features, same, counted, counts, ddof, eps):
    """Standardises rows by the mean and standard deviation of their class; rows that do not count become zero."""
    features = jnp.where(counted[:, None], features, 0)
    means = _class_sums_by_row(same, features) / counts[:, None]
    centred = jnp.where(counted[:, None], features - means, 0)
    variances = _class_sums_by_row(same, centred**2) / (counts[:, None] - ddof)
    return centred * inverse_root(variances + eps)


def _class_sums_by_row(same, values):
    """Sums over the class of each row, by a matmul at full precision (a GPU's default rounds factors to ten bits)."""
    return jnp.matmul(same, values, precision="highest")
