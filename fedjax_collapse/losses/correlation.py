"""FedDecorr's loss: the squared Frobenius norm of the batch's feature correlation matrix.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning" (ICLR 2023;
TPAMI 2023), eq. 9 and algorithm 1. The released code differs from eq. 9 by the factor ``((N-1)^2 / N) d / (d-1)``, 62
for N = 64 and d = 1280, so a strength for one variant is not valid for another.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar, check_choice
from fedjax_collapse.losses.norms import centre, squared_gram_norm
from fedjax_collapse.losses.shapes import Features, Mask, Value

VARIANTS = ("paper", "pseudocode", "official")


def correlation_frobenius(features: Features, mask: Mask, variant: str = "paper", eps: Scalar = 1e-8) -> Value:
    """Returns FedDecorr's penalty on the N true rows of a batch with d features; other rows have no influence.

    With K the d x d correlation matrix and ``Q = (N-1) K``:

    * ``paper`` (eq. 9): ``sum_ij K_ij^2 / d^2``;
    * ``pseudocode`` (algorithm 1): ``sum_ij (Q_ij / N)^2 / d^2``;
    * ``official`` (released code): mean over i != j of ``Q_ij^2``, divided by N.

    ``eps`` is added to each variance under the root, in all variants (the paper has none), so a constant feature has
    correlation 0 with all features, including itself. 0 if N < 2. The gradient flows through mean and variance.

    Raises:
        UserError: if ``variant`` is unknown.
    """
    check_choice("feddecorr variant", variant, VARIANTS)
    dim = features.shape[1]
    centred, count = centre(features, mask)
    variance = jnp.sum(centred**2, axis=0) / jnp.maximum(count - 1, 1)
    standardized = centred / jnp.sqrt(variance + eps)
    total = squared_gram_norm(standardized)  # sum_ij Q_ij^2
    if variant == "paper":
        return total / (dim * jnp.maximum(count - 1, 1)) ** 2
    if variant == "pseudocode":
        return total / (dim * jnp.maximum(count, 1)) ** 2
    diagonal = jnp.sum(jnp.sum(standardized**2, axis=0) ** 2)
    return (total - diagonal) / (dim * max(dim - 1, 1) * jnp.maximum(count, 1))
