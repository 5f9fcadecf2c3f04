"""A linear probe: how much of the classes a new linear classifier reads from features that stay as they are.

Alain & Bengio, "Understanding intermediate layers using linear classifier probes" (ICLR 2017, workshop). Beside the
accuracy of the network's own head it tells collapsed features, from which no head reads more, from a biased head, as in
Luo et al., "No Fear of Heterogeneity" (NeurIPS 2021). Theirs is trained by SGD; this one has a closed form, so that it
depends on nothing but the features.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from fedjax_collapse.analysis.classifier_weight import LinearHead
from fedjax_collapse.analysis.moments import Moments

MOST = 10_000  # training examples that a probe is fitted to


def fit_ridge(moments: Moments, strength: float = 1e-3) -> LinearHead:
    """The head that minimises ``(1/N) sum_n |W f_n + b - y_n|^2 + l |W|^2`` over the examples of the moments.

    ``y`` are one-hot labels; b is not penalised. ``l = strength * tr(S) / d`` of the covariance S over N, so that a
    scale or a shift of all features changes no prediction. Of features that are constant it predicts the most frequent
    class; NaN if there are no examples or features are not finite.
    """
    covariance, shares = moments.covariance, moments.counts / max(moments.num_examples, 1)
    weight = np.zeros_like(moments.sums)
    if not moments.num_examples or not np.isfinite(covariance).all():
        return LinearHead(weight + np.nan, shares + np.nan)
    penalty = strength * np.trace(covariance) / len(covariance)
    if penalty > 0:
        mean = moments.sums.sum(axis=0) / moments.num_examples
        between = moments.sums / moments.num_examples - shares[:, None] * mean  # (1/N) sum (y - shares) (f - mean)^T
        weight = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), between.T).T
    return LinearHead(weight, shares - weight @ moments.mean)


def accuracy(
    head: LinearHead, features: Float[np.ndarray, "examples features"], labels: Int[np.ndarray, " examples"]
) -> float:
    """Share of examples whose largest logit is that of their class, from 0 to 1; NaN if a logit is not finite."""
    logits = features.astype(np.float64) @ head.weight.T + head.bias
    if not len(logits) or not np.isfinite(logits).all():
        return math.nan
    return float(np.mean(logits.argmax(axis=1) == labels))
