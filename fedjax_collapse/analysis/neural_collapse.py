"""Neural collapse: how close features and classifier are to one point per class, with the points and the classifier
forming the same simplex.

Papyan, Han & Donoho, "Prevalence of neural collapse" (PNAS 2020), in the forms of its released code, and the forms of
Zhu et al., "A Geometric Analysis of Neural Collapse with Unconstrained Features" (NeurIPS 2021). All measures but
``alignment`` are 0 at collapse. Class means are ``Moments.class_means``, only of the C' classes with examples, centred
on their unweighted mean; ``W`` [classes, features] is the weight of the logits ``W f + b``. NaN where undefined: for
one class, coinciding means, a classifier that is 0, or features that are not finite.
"""

import math

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.moments import Moments
from fedjax_collapse.analysis.shapes import ClassVectors, Features, Logits, Vector
from fedjax_collapse.analysis.updates import decompose, overlap

_CUT = 1e-10  # of between-class variances relative to the largest; below is rounding, as only C' - 1 are non-zero


def variability(moments: Moments, centre: Vector | None = None) -> float:
    """NC1, ``tr(S_W S_B^+) / C'``, of the covariances within and between classes: ``S_W = (1/N) sum_n (f_n -
    mean_c)(.)^T``, ``S_B = (1/C') sum_c (mean_c - centre)(.)^T``.

    ``centre``: by default the mean of the class means; Zhu et al. take the mean of all examples, which differs if
    classes differ in size. Papyan's released code omits ``/ C'``.
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
    return float(np.sum(along / values[kept] ** 2))  # the factors C' of S_B and of the definition cancel


def within_share(moments: Moments) -> float:
    """Returns ``tr S_W / tr S_T``, from 0 to 1: the fraction of the features' variance that is within classes.

    The fraction between classes is 1 minus it. Our form of what Zhu et al. (arXiv 2502.03231) call within-class and
    between-class variance of a layer, of which we do not know the exact normalisation.
    """
    total = moments.num_examples * np.trace(moments.covariance)
    if np.sum(moments.is_present) < 2 or not total > 0:
        return math.nan
    return float(np.clip(np.trace(moments.within) / total, 0, 1))


def alignment(moments: Moments, directions: Float[np.ndarray, "features k"]) -> float:
    """Returns ``updates.overlap`` of the features' leading k directions with k that the next layer reads, from 0 to 1.

    The features' are eigenvectors of their covariance. k / features is to be expected of directions that are random.
    Ours, after Zhu et al. (arXiv 2502.03231), of whose alignment of features and parameters we do not know the formula.
    """
    return overlap(decompose(moments.covariance, directions.shape[1]).inputs, directions)


def equinorm(vectors: ClassVectors) -> float:
    """NC2, of centred class means or of the rows of W: the standard deviation (n - 1) of their norms over the mean."""
    lengths = np.linalg.norm(vectors, axis=1)
    if len(lengths) < 2 or not lengths.mean() > 0:
        return math.nan
    return float(lengths.std(ddof=1) / lengths.mean())


def equiangularity(vectors: ClassVectors) -> float:
    """NC2, of the same: the mean over pairs of ``|cos + 1/(C' - 1)|``, without vectors that are 0."""
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors[lengths > 0] / lengths[lengths > 0, None]
    if len(units) < 2 or not np.isfinite(lengths).all():
        return math.nan
    cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    return float(np.mean(np.abs(cosines + 1 / (len(vectors) - 1))))


def self_duality(weight: ClassVectors, centred_means: ClassVectors) -> float:
    """NC3, ``|| W / |W| - M / |M| ||_F^2``, from 0 to 4, with the rows of W for the classes of the means M."""
    return float(np.sum((_unit(weight) - _unit(centred_means)) ** 2))


def nearest_mean_disagreement(features: Features, logits: Logits, moments: Moments) -> float:
    """NC4: the fraction of examples whose predicted class is not the class with the nearest (Euclidean) mean."""
    if not len(features) or not (np.isfinite(features).all() and np.isfinite(logits).all()):
        return math.nan
    centre = moments.mean
    means, rows = moments.class_means - centre, features.astype(np.float64) - centre
    distances = np.sum(means**2, axis=1) - 2 * rows @ means.T  # up to a part that is common to all classes
    nearest = np.flatnonzero(moments.is_present)[distances.argmin(axis=1)]
    return float(np.mean(logits.argmax(axis=1) != nearest))


def simplex_distance(weight: ClassVectors, other: ClassVectors | None = None) -> float:
    """NC2 of Zhu et al., ``|| K / |K| - (I - J/C) / sqrt(C - 1) ||_F`` with ``K = W W^T``; with ``other``, the centred
    class means M, ``K = W M^T``, their NC3. From 0 to 2."""
    kernel = _unit(weight @ (weight if other is None else other).T)
    classes = len(kernel)
    if classes < 2:
        return math.nan
    simplex = (np.eye(classes) - 1 / classes) / math.sqrt(classes - 1)
    return float(np.linalg.norm(kernel - simplex))


def bias_residual(weight: ClassVectors, bias: Float[np.ndarray, " classes"], mean: Vector) -> float:
    """Returns ``|W mean + b|`` with the mean of all features: 0 if the bias cancels the mean (Zhu et al.)."""
    return float(np.linalg.norm(weight @ mean + bias))


def _unit(matrix):
    length = np.linalg.norm(matrix)
    return matrix / length if length > 0 else np.full_like(matrix, np.nan)
