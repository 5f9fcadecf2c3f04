"""Penalties on the batch covariance: DeCov, Structured DeCov, and two terms of VICReg.

* Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations" (ICLR 2016).
* Xiong et al., "Regularizing Deep Convolutional Neural Networks with a Structured Decorrelation Constraint" (ICDM
  2016).
* Bardes et al., "VICReg" (ICLR 2022), to which FedUV's classifier variance is related.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Scalar, UserError
from fedjax_collapse.losses.norms import centre, smaller_gram, squared_gram_norm
from fedjax_collapse.losses.shapes import Features, Mask, Value


def decov(features: Features, mask: Mask) -> Value:
    """Returns DeCov: half the sum of the squared covariances of distinct features over the N true rows.

    ``1/2 (||C||_F^2 - ||diag C||_2^2)`` with ``C`` the d x d covariance with divisor N. A sum, not a mean: it grows
    with d^2 and with the fourth power of the features' scale. 0 if N < 2. The gradient flows through the mean.
    """
    centred, count = centre(features, mask)
    return 0.5 * _between_groups(centred, centred.shape[1]) / jnp.maximum(count, 1) ** 2


def structured_decov(features: Features, mask: Mask, num_groups: int = 16, eta: Scalar = 0.0) -> Value:
    """Returns Structured DeCov: DeCov without the pairs of features of the same group.

    ``1/2 sum C_ij^2`` over pairs in different groups, minus ``eta/2 sum C_ij^2`` over pairs i != j in the same group;
    ``C`` as in ``decov``. Groups are contiguous, of ``d / num_groups`` features each, so ``num_groups = d`` is DeCov.

    This is our reading of the paper's abstract, the only part accessible to us: small covariances between groups, no
    restriction within a group. FedDecorr's comparison states neither groups nor weight.

    Raises:
        UserError: if the features cannot be divided into ``num_groups`` equal groups.
    """
    dim = features.shape[1]
    if num_groups < 1 or dim % num_groups:
        raise UserError(f"structured decov num_groups {num_groups}: expected a divisor of the {dim} features")
    centred, count = centre(features, mask)
    between = _between_groups(centred, num_groups)
    within = _between_groups(centred, dim) - between
    return 0.5 * (between - eta * within) / jnp.maximum(count, 1) ** 2


def vicreg_variance(features: Features, mask: Mask, gamma: Scalar = 1.0, eps: Scalar = 1e-4) -> Value:
    """Returns VICReg's variance term: the shortfall of features' deviations from ``gamma``, mean over features.

    ``mean_j max(0, gamma - sqrt(var_j + eps))``, the variance with divisor N - 1 over the N true rows; 0 if N < 2.
    """
    centred, count = centre(features, mask)
    variance = jnp.sum(centred**2, axis=0) / jnp.maximum(count - 1, 1)
    shortfall = jnp.mean(jax.nn.relu(gamma - jnp.sqrt(variance + eps)))
    return jnp.where(count < 2, 0, shortfall)


def vicreg_covariance(features: Features, mask: Mask) -> Value:
    """VICReg's covariance term: ``sum_{i != j} C_ij^2 / d``, with ``C`` of divisor N - 1 over the N true rows.

    0 if N < 2. It differs from DeCov only by the factor ``2/d (N/(N-1))^2``.
    """
    centred, count = centre(features, mask)
    dim = centred.shape[1]
    return _between_groups(centred, dim) / (dim * jnp.maximum(count - 1, 1) ** 2)


def _between_groups(rows, num_groups):
    """Returns the sum of ``(X^T X)_ij^2`` over features i, j in different contiguous groups."""
    batch, dim = rows.shape
    if batch < dim:  # avoids the d x d matrix; rounding must not make the difference negative
        groups = rows.reshape(batch, num_groups, dim // num_groups)
        inside = jnp.sum(jax.vmap(squared_gram_norm, in_axes=1)(groups))
        return jnp.maximum(squared_gram_norm(rows) - inside, 0)
    group = np.arange(dim) // (dim // num_groups)
    return jnp.sum(jnp.where(group[:, None] == group[None], 0, smaller_gram(rows)) ** 2)
