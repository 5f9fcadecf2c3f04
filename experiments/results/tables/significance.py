"""Differences over pairs of runs: their mean with Student's t interval, and Wilcoxon's signed-rank test."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.results.study_results import mean_and_std

CONFIDENCE = 0.95  # of intervals
_DIGITS = 12  # beyond these a difference is rounding, which would break ties


class Comparison(NamedTuple):
    """Differences of pairs of runs; NaN where undefined: with fewer than two pairs all but the mean."""

    mean: float
    std: float  # sample standard deviation (n - 1)
    n: int  # the number of pairs
    low: float  # the interval that contains the true mean with probability ``CONFIDENCE``, if differences are normal
    high: float
    differences: tuple[float, ...]

    @property
    def p(self) -> float:
        """Wilcoxon's p of the signed-rank test, two-sided, exact for small n."""
        ranked = np.round(self.differences, _DIGITS)
        if self.n < 2 or not ranked.any():
            return 1.0 if self.n > 1 else math.nan
        from scipy.stats import wilcoxon  # takes long to import

        return float(wilcoxon(ranked).pvalue)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def may_be_zero(self) -> bool:
        """Whether there is an interval, and it contains 0."""
        return self.low <= 0 <= self.high


def compare(differences: Sequence[float]) -> Comparison:
    """Returns mean, standard deviation, and Student's t interval of the mean, of paired differences."""
    mean, std = mean_and_std(list(differences))
    n, margin = len(differences), math.nan
    if n > 1:
        from scipy.special import stdtrit

        margin = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(n)
    return Comparison(mean, std, n, mean - margin, mean + margin, tuple(differences))


def smallest_p(n: int) -> float:
    """Returns the smallest p that Wilcoxon's test can give with ``n`` pairs: all differences have one sign."""
    return 2.0 ** (1 - n)
