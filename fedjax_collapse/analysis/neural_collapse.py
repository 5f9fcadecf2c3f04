"""Neural collapse: how near features and classifier are to one point per class, the points a simplex, the classifier
the same simplex.

Papyan, Han & Donoho, "Prevalence of neural collapse" (PNAS 2020), in the forms of its released code, and those of Zhu
et al., "A Geometric Analysis of Neural Collapse with Unconstrained Features" (NeurIPS 2021). All are 0 at collapse.
Class means are ``Moments.class_means``, only of classes that have examples, C' of them, centred on their own mean
(every class counts alike), and classifiers ``W`` [classes, features] of the logits ``W f + b``. NaN where nothing is
defined: one class, means that coincide, a classifier that is 0, features that are not finite.
"""

import math

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.moments import Moments

_CUT = 1e-10  # of between-class variances against the largest: below lies rounding, as there are C' - 1 of them


def variability(moments: Moments, centre: Float[np.ndarray, " features"] | None = None) -> float:
    """NC1, ``tr(S_W S_B^+) / C'``, of the covariances within and between classes: ``S_W = (1/N) sum_n (f_n -
    mean_c)(.)^T``, ``S_B = (1/C') sum_c (mean_c - centre)(.)^T``.

    ``centre``: by default the mean of the class means; Zhu et al. take that of all examples, which is another one where
    classes differ in size. Papyan's released code logs it without ``/ C'``.
    """
    means = moments.centred_class_means
    if centre is not None:
        means = moments.class_means - centre
    if len(means) < 2 or not np.isfinite(means).all():
        return math.nan
    _, values, directions = np.linalg.svd(means, full_matrices=False)
    kept = values**2 > _CUT * values[0] ** 2
    if not kept.any():
        return math.nan
    directions = directions[kept]
    along = np.sum((directions @ moments.within) * directions, axis=1) / moments.num_examples
    return float(np.sum(along / values[kept] ** 2))  # C' of S_B and of the definition cancel


def equinorm(vectors: Float[np.ndarray, "classes features"]) -> float:
    """NC2, of centred class means or of the rows of W: standard deviation (n - 1) over mean of their lengths."""
    lengths = np.linalg.norm(vectors, axis=1)
    if len(lengths) < 2 or not lengths.mean() > 0:
        return math.nan
    return float(lengths.std(ddof=1) / lengths.mean())


def equiangularity(vectors: Float[np.ndarray, "classes features"]) -> float:
    """NC2, of the same: mean over pairs of ``|cos + 1/(C' - 1)|``; vectors that are 0 are in no pair."""
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors[lengths > 0] / lengths[lengths > 0, None]
    if len(units) < 2 or not np.isfinite(lengths).all():
        return math.nan
    cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    return float(np.mean(np.abs(cosines + 1 / (len(vectors) - 1))))


def self_duality(
    weight: Float[np.ndarray, "classes features"], centred_means: Float[np.ndarray, "classes features"]
) -> float:
    """NC3, ``|| W / |W| - M / |M| ||_F^2``, from 0 to 4; W of the classes whose means M are."""
    return float(np.sum((_unit(weight) - _unit(centred_means)) ** 2))


def nearest_mean_disagreement(
    features: Float[np.ndarray, "examples features"],
    logits: Float[np.ndarray, "examples classes"],
    moments: Moments,
) -> float:
    """NC4: share of examples whose largest logit is not that of the class with the nearest (Euclidean) mean."""
    if not len(features) or not (np.isfinite(features).all() and np.isfinite(logits).all()):
        return math.nan
    centre = moments.mean
    means, rows = moments.class_means - centre, features.astype(np.float64) - centre
    distances = np.sum(means**2, axis=1) - 2 * rows @ means.T  # but for a part that all classes have in common
    nearest = np.flatnonzero(moments.is_present)[distances.argmin(axis=1)]
    return float(np.mean(logits.argmax(axis=1) != nearest))


def simplex_distance(
    weight: Float[np.ndarray, "classes features"], other: Float[np.ndarray, "classes features"] | None = None
) -> float:
    """NC2 of Zhu et al., ``|| K / |K| - (I - J/C) / sqrt(C - 1) ||_F`` with ``K = W W^T``; with ``other``, the centred
    class means M, ``K = W M^T``, their NC3. From 0 to 2."""
    kernel = _unit(weight @ (weight if other is None else other).T)
    classes = len(kernel)
    if classes < 2:
        return math.nan
    simplex = (np.eye(classes) - 1 / classes) / math.sqrt(classes - 1)
    return float(np.linalg.norm(kernel - simplex))


def bias_residual(
    weight: Float[np.ndarray, "classes features"],
    bias: Float[np.ndarray, " classes"],
    mean: Float[np.ndarray, " features"],
) -> float:
    """``|W mean + b|`` with the mean of all features: 0 where the bias takes the mean away (Zhu et al.)."""
    return float(np.linalg.norm(weight @ mean + bias))


def _unit(matrix):
    length = np.linalg.norm(matrix)
    return matrix / length if length > 0 else np.full_like(matrix, np.nan)
