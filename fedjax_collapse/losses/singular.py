"""The loss that motivates FedDecorr: the variance of the singular values of the feature covariance.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning" (ICLR 2023;
TPAMI 2023), eq. 7. It is not in the released code. On standardised features it equals FedDecorr's eq. 9 up to a factor
and a constant (proposition 1): ``sum_i (lambda_i - 1)^2 = ||K||_F^2 - d``.
"""

import jax.numpy as jnp

from fedjax_collapse.losses.norms import centre, smaller_gram
from fedjax_collapse.losses.shapes import Features, Mask, Value


def singular_value_variance(features: Features, mask: Mask) -> Value:
    """Returns the variance of the d singular values of the covariance of the N true rows (divisor N); 0 if N < 2.

    ``(1/d) sum_i (lambda_i - mean lambda)^2`` over all d values, including those that are zero because N <= d.

    No decomposition is needed: the covariance ``S`` is symmetric and positive semidefinite, so its singular values are
    its eigenvalues, their mean is ``m = tr S / d``, and the sum is exactly ``||S - m I||_F^2``. With fewer rows than
    features the same holds for the batch x batch Gram matrix, which has the non-zero eigenvalues of ``S``; each of the
    other ``d - batch`` adds ``m^2``.
    """
    centred, count = centre(features, mask)
    rows = centred / jnp.sqrt(jnp.maximum(count, 1))  # rows^T rows is the covariance
    batch, dim = rows.shape
    mean = jnp.sum(rows**2) / dim
    gram = smaller_gram(rows)
    deviations = gram - mean * jnp.eye(gram.shape[0], dtype=gram.dtype)
    return (jnp.sum(deviations**2) + max(dim - batch, 0) * mean**2) / dim
