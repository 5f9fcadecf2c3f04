"""The number of dimensions that features use, as functions of their singular values or of a covariance spectrum.

Singular values s are of the uncentred features, so the direction of the mean counts as a dimension
(``Moments.singular_values``); eigenvalues l are of the covariance, which is centred (``Moments.spectrum``). Both are
descending. Apart from RankMe's ``eps``, no function depends on the scale of features. The effective rank is in
``spectrum``. Values that are not finite give NaN.
"""

import math

import numpy as np

from fedjax_collapse.analysis.shapes import Spectrum, Values


def stable_rank(singular_values: Values) -> float:
    """Returns ``sum s^2 / s_1^2``: from 1 to the rank; 0 if all features are 0.

    Rudelson & Vershynin, "Sampling from large matrices" (2007); for representations: Tsitsulin et al., "Unsupervised
    Embedding Quality Evaluation" (2023), whose released code adds 1e-12 to the denominator.
    """
    return nesum(singular_values**2)


def nesum(spectrum: Spectrum) -> float:
    """Returns ``sum_i l_i / l_1``, the stable rank of centred features: from 1 to their number; 0 if they are constant.

    He & Ozay, "Exploring the Gap between Collapsed & Whitened Features in Self-Supervised Learning" (ICML 2022).
    """
    return _ratio(np.sum(spectrum), np.max(spectrum))


def participation_ratio(spectrum: Spectrum) -> float:
    """Returns ``(sum l)^2 / sum l^2``: from 1 to the number of features; 0 if they are constant."""
    largest = np.max(spectrum)
    scaled = spectrum / largest if largest > 0 else spectrum  # squares of tiny numbers would underflow to 0
    return _ratio(np.sum(scaled) ** 2, np.sum(scaled**2))


def rankme(singular_values: Values, eps: float = 1e-7) -> float:
    """Returns ``exp(-sum p log p)`` with ``p = s / sum s + eps``: from 1 to min(examples, features); 0 if all are 0.

    Garrido et al., "RankMe" (ICML 2023), not centred. ``eps`` is the paper's; released codes have 1e-12 or 1e-5.
    """
    total = singular_values.sum()
    if not total > 0:
        return math.nan if np.isnan(total) else 0.0
    return exp_entropy(singular_values / total + eps)


def exp_entropy(shares: Values) -> float:
    """Returns ``exp(-sum p log p)``, where ``0 log 0`` is 0; NaN for NaN."""
    shares = shares[shares != 0]
    return float(np.exp(-np.sum(shares * np.log(shares))))


def alpha_req(spectrum: Spectrum, first: int = 4, last: int = 100, weighted: bool = True) -> float:
    """Returns ``alpha`` of ``l_j ~ j^-alpha``: 1 is good, a larger value is collapsed, a smaller one flat.

    Least squares of ``log l_j = a - alpha log j`` over ``first <= j <= last``, counted from 1, with weights ``1/j`` if
    ``weighted``. By default 4 to 100, as released: the first few eigenvalues follow no power law. Eigenvalues that are
    0 up to rounding are excluded; NaN with fewer than two others. Agrawal et al., "alpha-ReQ" (NeurIPS 2022); its
    released weights are float32.
    """
    if not np.isfinite(spectrum).all():
        return math.nan
    index = np.arange(1.0, len(spectrum) + 1)
    rounding = np.max(spectrum, initial=0) * len(spectrum) * np.finfo(float).eps
    used = (index >= first) & (index <= last) & (spectrum > rounding)
    if used.sum() < 2:
        return math.nan
    x, y = np.log(index[used]), np.log(spectrum[used])
    weights = 1 / index[used] if weighted else np.ones(len(x))
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    return float(-np.sum(weights * x * y) / np.sum(weights * x * x))


def _ratio(total, largest):
    """Returns the ratio, 0 where both are 0."""
    if np.isnan(total):
        return math.nan
    return float(total / largest) if largest > 0 else 0.0
