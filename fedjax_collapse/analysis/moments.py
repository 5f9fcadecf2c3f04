"""First and second moments of features per class, in float64.

The measures of collapse (``rank``, ``neural_collapse``, ``lidar``, class alignment) need no more than these.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from fedjax_collapse.analysis.shapes import Features, Labels, Vector
from fedjax_collapse.analysis.spectrum import eigenvalues
from fedjax_collapse.core.records import in_one_line

ROUNDING = 1e-12  # relative to the size of features; smaller differences count as 0


class Moments(NamedTuple):
    """Sums over examples of ``f - shift``, in float64.

    If the mean of features is large compared with their spread, ``sum f f^T / N - mean mean^T`` loses all digits; with
    a shift near the mean it loses none. Apart from rounding, moments do not depend on the shift.
    """

    shift: np.ndarray  # [features]
    counts: np.ndarray  # [classes] number of examples
    sums: np.ndarray  # [classes, features] of f - shift
    gram: np.ndarray  # [features, features], sum (f - shift)(f - shift)^T over all classes

    __repr__ = in_one_line

    @property
    def num_examples(self) -> float:
        return float(self.counts.sum())

    @property
    def mean(self) -> np.ndarray:
        """Returns the mean over all examples, [features]; NaN without examples."""
        return self.shift + _divided(self.sums.sum(axis=0), self.num_examples)

    @property
    def class_means(self) -> np.ndarray:
        """Returns the means of the classes that have examples, in order, [present classes, features]."""
        return self.shift + self.sums[self.is_present] / self.counts[self.is_present, None]

    @property
    def centred_class_means(self) -> np.ndarray:
        """Returns the class means minus their unweighted mean; 0 where they coincide up to rounding."""
        means = self.sums[self.is_present] / self.counts[self.is_present, None]
        centred = means - means.mean(axis=0) if len(means) else means
        return np.where(self._is_rounding(np.sum(centred**2)), 0.0, centred)

    @property
    def is_present(self) -> np.ndarray:
        """Returns whether a class has examples, [classes]."""
        return self.counts > 0

    @property
    def covariance(self) -> np.ndarray:
        """Returns the covariance (divisor N), [features, features].

        0 if the features are constant up to rounding; NaN without examples.
        """
        mean = _divided(self.sums.sum(axis=0), self.num_examples)
        covariance = _divided(self.gram, self.num_examples) - np.outer(mean, mean)
        return np.where(self._is_rounding(np.trace(covariance)), 0.0, covariance)

    @property
    def dead_features(self) -> float:
        """Returns ``spectrum.dead_features``: the fraction of features that are the same for all examples.

        A feature counts as such if its variance is 0 up to rounding, relative to its distance from the shift.
        """
        squares = self.num_examples * np.diag(self.gram)
        spread = squares - self.sums.sum(axis=0) ** 2
        return float(np.mean(spread <= ROUNDING * squares)) if np.isfinite(squares).all() else math.nan

    @property
    def within(self) -> np.ndarray:
        """Returns ``sum_c sum_n (f - mean_c)(f - mean_c)^T``, [features, features], without a divisor."""
        sums = self.sums[self.is_present]
        return self.gram - (sums / self.counts[self.is_present, None]).T @ sums

    @property
    def spectrum(self) -> np.ndarray:
        """Returns the eigenvalues of the covariance, descending: ``spectrum.covariance_spectrum`` of the features."""
        return eigenvalues(self.covariance)

    @property
    def singular_values(self) -> np.ndarray:
        """Returns the singular values of the uncentred features [examples, features], descending, one per feature.

        Computed from the eigenvalues of ``F^T F``, so values below 1e-8 of the largest are rounding errors.
        """
        cross = np.outer(self.sums.sum(axis=0), self.shift)
        gram = self.gram + cross + cross.T + self.num_examples * np.outer(self.shift, self.shift)
        return np.sqrt(eigenvalues(gram))

    def _is_rounding(self, square):
        return square <= ROUNDING**2 * np.sum(self.mean**2)


def class_moments(
    features: Features,
    labels: Labels,
    num_classes: int,
    mask: Bool[np.ndarray, " examples"] | None = None,
    shift: Vector | None = None,
) -> Moments:
    """Returns the moments of the true rows, or of all. ``shift``: by default the mean of these rows.

    If a feature is not finite, as for a diverged model, all moments are NaN.
    """
    if mask is not None:
        features, labels = features[mask], labels[mask]
    features = np.asarray(features, np.float64)
    if not np.isfinite(features).all():
        features = np.full_like(features, np.nan)
    if shift is None:
        shift = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    shift = np.asarray(shift, np.float64)
    rows = features - shift
    counts = np.bincount(labels, minlength=num_classes).astype(np.float64)
    sums = np.zeros((num_classes, rows.shape[1]))
    np.add.at(sums, labels, rows)
    return Moments(shift, counts, sums, rows.T @ rows)


def merged(first: Moments, second: Moments) -> Moments:
    """Returns the moments of the examples of both, which have the same shift."""
    return Moments(first.shift, *(a + b for a, b in zip(first[1:], second[1:], strict=True)))


def _divided(total, count):
    return total / count if count else np.full_like(total, np.nan)
