"""Differences over pairs of runs: their mean with Student's t interval, and Wilcoxon's signed-rank test."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95  # of intervals
_DIGITS = 12  # beyond these a difference is rounding, which would break ties


class Comparison(NamedTuple):
    """Differences of pairs of runs; NaN where undefined: with fewer than two pairs all but the mean."""

    mean: float
    std: float  # sample standard deviation (n - 1)
    n: int  # the number of pairs
    low: float  # the interval that contains the true mean with probability ``CONFIDENCE``, if differences are normal
    high: float
    p: float  # of Wilcoxon's signed-rank test, two-sided

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def may_be_zero(self) -> bool:
        """Whether there is an interval, and it contains 0."""
        return self.low <= 0 <= self.high


def compare(differences: Sequence[float]) -> Comparison:
    """Returns mean, standard deviation, Student's t interval of the mean, and Wilcoxon's p of paired differences."""
    values, n = np.asarray(differences, float), len(differences)
    if n < 2:
        return Comparison(float(values[0]) if n else math.nan, math.nan, n, math.nan, math.nan, math.nan)
    from scipy.special import stdtrit  # takes long to import
    from scipy.stats import wilcoxon

    mean, std = float(values.mean()), float(values.std(ddof=1))
    margin = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(n)
    ranked = np.round(values, _DIGITS)
    p = float(wilcoxon(ranked).pvalue) if ranked.any() else 1.0
    return Comparison(mean, std, n, mean - margin, mean + margin, p)


def smallest_p(n: int) -> float:
    """Returns the smallest p that Wilcoxon's test can give with ``n`` pairs: all differences have one sign."""
    return 2.0 ** (1 - n)
