"""LiDAR: the effective rank of a linear discriminant analysis, which ignores variance within classes.

Thilak et al., "LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL Architectures" (ICLR 2024). There, the
views of one image form a class; here the classes of the data are used.
"""

import math

import numpy as np

from fedjax_collapse.analysis.moments import Moments
from fedjax_collapse.analysis.rank import exp_entropy
from fedjax_collapse.analysis.shapes import Spectrum


def lidar(moments: Moments, delta: float = 1e-4, eps: float = 1e-8) -> float:
    """Returns ``exp(-sum p log p)`` with ``p = (q + eps) / sum(q + eps)``: from 1 to C' - 1 up to eps.

    q is the ``discriminant_spectrum``. 0 if the class means coincide; NaN if the spectrum is. The paper has ``p = q /
    sum q + eps``, which differs by 1e-7.
    """
    values = discriminant_spectrum(moments, delta)
    if not values.sum() > 0:
        return math.nan if np.isnan(values).any() else 0.0
    shares = (values + eps) / np.sum(values + eps)
    return exp_entropy(shares)


def discriminant_spectrum(moments: Moments, delta: float = 1e-4) -> Spectrum:
    """Returns the eigenvalues of ``S_w^(-1/2) S_b S_w^(-1/2)``, descending.

    ``S_w`` is the pooled covariance within classes (divisor N - C') plus ``delta`` on its diagonal, ``S_b`` the
    covariance of the C' class means (divisor C' - 1). The released code averages the covariances of classes instead of
    pooling them, which is the same for classes of equal size. NaN for one class, if there are no more examples than
    classes, or if a feature is not finite.
    """
    means = moments.centred_class_means
    classes, freedom = len(means), moments.num_examples - len(means)
    spectrum = np.zeros(len(moments.shift))
    if classes < 2 or freedom <= 0 or not np.isfinite(moments.gram).all():
        return np.full_like(spectrum, np.nan)
    within = moments.within / freedom + delta * np.eye(len(spectrum))
    whitened = np.linalg.solve(np.linalg.cholesky(within), means.T)
    values = np.linalg.svd(whitened, compute_uv=False) ** 2 / (classes - 1)
    spectrum[: len(values)] = values
    return spectrum
