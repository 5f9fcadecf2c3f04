"""Spectra of representations, and the numbers that summarise their collapse.

Everything runs in float64 NumPy on the host: the tail of a spectrum is where collapse shows, and float32 loses it.
Shi et al., TPAMI 2023, section 3 (eq. 1 for R).
"""

import math

import numpy as np
from jaxtyping import Float

FLOOR = 1e-12  # eigenvalues below it count as it: a constant feature would otherwise give log 0


def covariance_spectrum(
    features: Float[np.ndarray, "examples features"], unbiased: bool = False
) -> Float[np.ndarray, " features"]:
    """Eigenvalues, equally singular values, of the covariance of the features, descending, [features], float64.

    ``(1/N) sum (z - mean)(z - mean)^T``, or with N - 1 if ``unbiased``. Tiny negative values from rounding become 0.
    Features that are not all finite, as a diverged model's, have no spectrum: NaN, as all that follows.
    """
    features = np.asarray(features, np.float64)
    if not np.isfinite(features).all():
        return np.full(features.shape[1], np.nan)
    centred = features - features.mean(axis=0)
    return eigenvalues(centred.T @ centred / (len(features) - unbiased))


def eigenvalues(matrix: Float[np.ndarray, "rows rows"]) -> Float[np.ndarray, " rows"]:
    """Of a symmetric positive semidefinite matrix, descending.

    Tiny negative values from rounding become 0; of a matrix that is not all finite they are NaN.
    """
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan)
    return np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0)


def effective_rank(spectrum: Float[np.ndarray, " features"]) -> float:
    """``exp`` of the entropy of the singular values scaled to sum 1: between 1 (one direction) and the number of
    features.

    Roy & Vetterli, "The effective rank" (2007), applied to the covariance matrix. 0 if all features are constant.
    """
    total = spectrum.sum()
    if np.isnan(total):
        return math.nan
    if not total > 0:
        return 0.0
    share = spectrum[spectrum > 0] / total
    return float(np.exp(-np.sum(share * np.log(share))))


def significant_dims(
    spectrum: Float[np.ndarray, " features"], threshold: float = -2.0, base: float = np.e
) -> int | float:
    """Number of singular values whose logarithm is above the threshold; natural logarithm unless ``base`` says
    otherwise.

    TPAMI 2023 does not state its base: with base 10 the same threshold is 0.01 instead of 0.135.
    """
    return math.nan if np.isnan(spectrum).any() else int(np.sum(spectrum > base**threshold))


def collapse_ratio(
    local: Float[np.ndarray, " features"],
    server: Float[np.ndarray, " features"],
    base: float = np.e,
    top: int | None = None,
) -> float:
    """R of TPAMI 2023 eq. 1: ``mean_k log(local_k / server_k)`` of two descending spectra.

    Positive when averaging has collapsed the server's model below the local one; near 0 under IID data. All singular
    values count, or the ``top`` largest; those below ``FLOOR`` count as ``FLOOR``.
    """
    ratio = np.log(np.maximum(local, FLOOR)) - np.log(np.maximum(server, FLOOR))
    return float(np.mean(ratio[:top]) / np.log(base))
