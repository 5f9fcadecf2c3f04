"""LiDAR: the rank that a linear discriminant analysis sees, in which variance within classes does not count.

Thilak et al., "LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL Architectures" (ICLR 2024). There, the
views of one image are a class; here classes are.
"""

import math

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.moments import Moments
from fedjax_collapse.analysis.rank import exp_entropy


def lidar(moments: Moments, delta: float = 1e-4, eps: float = 1e-8) -> float:
    """``exp(-sum p log p)`` with ``p = (q + eps) / sum(q + eps)``, of the spectrum below: from 1 to C' - 1 but for eps.

    0 if the class means coincide; NaN as the spectrum. The paper has ``p = q / sum q + eps``, which differs by 1e-7.
    """
    values = discriminant_spectrum(moments, delta)
    if not values.sum() > 0:
        return math.nan if np.isnan(values).any() else 0.0
    shares = (values + eps) / np.sum(values + eps)
    return exp_entropy(shares)


def discriminant_spectrum(moments: Moments, delta: float = 1e-4) -> Float[np.ndarray, " features"]:
    """Eigenvalues of ``S_w^(-1/2) S_b S_w^(-1/2)``, descending.

    ``S_w`` is the pooled covariance within classes, over N - C', plus ``delta`` on its diagonal, ``S_b`` that of the C'
    class means, over C' - 1. Released code averages covariances of classes instead of pooling them, which is the same
    for classes of one size. NaN with one class, no more examples than classes, or features that are not finite.
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
