"""A linear probe: how well a new linear classifier predicts the classes from fixed features.

Alain & Bengio, "Understanding intermediate layers using linear classifier probes" (ICLR 2017, workshop). Compared with
the accuracy of the network's head, it distinguishes collapsed features, from which no head predicts better, from a
biased head, as in Luo et al., "No Fear of Heterogeneity" (NeurIPS 2021). Their probe is trained by SGD; this one has a
closed form, so it depends only on the features.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from fedjax_collapse.analysis.moments import Moments
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.measurements.classifier_weight import LinearHead
from fedjax_collapse.nn.model import Model

MOST = 10_000  # number of training examples to which a probe is fitted


def training_rows(federation: Federation) -> np.ndarray:
    """Returns the rows to which probes are fitted: at most ``MOST`` of those that clients own, always the same."""
    return drawn(np.unique(np.concatenate(federation.owned_rows())), MOST)


def drawn(rows: np.ndarray, most: int) -> np.ndarray:
    """Selects at most ``most`` rows, always the same ones, in order."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def num_classes(model: Model, *labels: np.ndarray) -> int:
    """Returns the number of classes that the model predicts; if it predicts none, of those up to the last label."""
    if model.task.is_classification:
        return model.initial_shapes().logits.shape[1]
    return 1 + max(int(of_part.max(initial=-1)) for of_part in labels)


def fit_ridge(moments: Moments, strength: float = 1e-3) -> LinearHead:
    """Returns the head that minimises ``(1/N) sum_n |W f_n + b - y_n|^2 + l |W|^2`` over the examples of the moments.

    ``y`` are one-hot labels; b is not penalised. ``l = strength * tr(S) / d`` with the covariance S (divisor N), so
    predictions do not depend on the scale and shift of features. For constant features it predicts the most frequent
    class. NaN without examples, or if a feature is not finite.
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
    """Returns the fraction of examples predicted correctly, from 0 to 1; NaN if a logit is not finite."""
    logits = features.astype(np.float64) @ head.weight.T + head.bias
    if not len(logits) or not np.isfinite(logits).all():
        return math.nan
    return float(np.mean(logits.argmax(axis=1) == labels))
