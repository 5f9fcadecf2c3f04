"""Spectra of representations, and numbers that summarise their collapse.

Everything is computed in float64 NumPy on the host: collapse shows in the tail of a spectrum, which float32 loses.
Shi et al., TPAMI 2023, section 3 (eq. 1 for R).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.rank import rankme
from fedjax_collapse.analysis.shapes import Features, Spectrum

FLOOR = 1e-12  # smaller eigenvalues are raised to this, as a constant feature would give log 0


def covariance_spectrum(features: Features, unbiased: bool = False) -> Spectrum:
    """Returns eigenvalues (also singular values) of the covariance of features, descending, [features], float64.

    ``(1/N) sum (z - mean)(z - mean)^T``, or with N - 1 if ``unbiased``. Tiny negative values from rounding become 0.
    If a feature is not finite, as for a diverged model, the spectrum is NaN.
    """
    features = np.asarray(features, np.float64)
    if not np.isfinite(features).all():
        return np.full(features.shape[1], np.nan)
    centred = features - features.mean(axis=0)
    return eigenvalues(centred.T @ centred / (len(features) - unbiased))


def eigenvalues(matrix: Float[np.ndarray, "rows rows"]) -> Float[np.ndarray, " rows"]:
    """Returns the eigenvalues of a symmetric positive semidefinite matrix, descending.

    Tiny negative values from rounding become 0; if the matrix is not finite, all are NaN.
    """
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan)
    return np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0)


def effective_rank(spectrum: Spectrum) -> float:
    """Returns ``exp`` of the entropy of normalised singular values: from 1 (one direction) to the number of features.

    Roy & Vetterli, "The effective rank" (2007), applied to the covariance matrix. 0 if all features are constant.
    """
    return rankme(spectrum, eps=0.0)


def table(spectra: Sequence[np.ndarray], width: int) -> Float[np.ndarray, "spectra width"]:
    """Returns spectra of any length in a table, NaN beyond each."""
    padded = np.full((len(spectra), width), np.nan)
    for row, spectrum in zip(padded, spectra, strict=True):
        row[: len(spectrum)] = spectrum
    return padded


def significant_dims(spectrum: Spectrum, threshold: float = -2.0, base: float = np.e) -> int | float:
    """Returns the number of singular values whose logarithm, by default the natural one, is above the threshold.

    TPAMI 2023 does not state its base: with base 10 the same threshold is 0.01 instead of 0.135.
    """
    return math.nan if np.isnan(spectrum).any() else int(np.sum(spectrum > base**threshold))


def dead_features(features: Features) -> float:
    """Returns the fraction of features that are the same for all examples, from 0 to 1.

    A dead feature has no variance, and its correlation with every feature counts as 0 (``losses/correlation.py``).
    """
    features = np.asarray(features)
    return float(np.mean(np.ptp(features, axis=0) == 0)) if np.isfinite(features).all() else math.nan


def collapse_ratio(local: Spectrum, server: Spectrum, base: float = np.e, top: int | None = None) -> float:
    """Returns R of TPAMI 2023 eq. 1: ``mean_k log(local_k / server_k)`` of two descending spectra.

    Positive if averaging has collapsed the server's model more than the local model; near 0 under IID data. All
    singular values are used, or the ``top`` largest; values below ``FLOOR`` count as ``FLOOR``.
    """
    ratio = np.log(np.maximum(local, FLOOR)) - np.log(np.maximum(server, FLOOR))
    return float(np.mean(ratio[:top]) / np.log(base))
