"""A classifier of Gaussians: logits are quadratic in the features.

    logits_c = bias_c - ||root_c (features - mean_c)||^2 / 2

With ``root_c`` the inverse square root of a covariance, and ``bias_c`` the logarithm of a class's share minus half the
log-determinant of this covariance, a logit is the logarithm of the class's share times its density, up to a constant.
The method ``GHOFL`` sets the params in this way. Otherwise they start with roots of 1, random means and no bias, and
are trained like any others. Distances are computed at full precision, because a GPU's default rounds factors to ten
bits.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.nn.layers import torch_uniform


class Quadratic(nn.Module):
    """Squared distances to a mean of each class, in a metric of each class.

    Attributes:
        num_classes: number of classes.
        diagonal: whether roots are vectors [classes, d] of factors instead of matrices [classes, d, d].
    """

    num_classes: int
    diagonal: bool = False

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        shape = self.num_classes, features.shape[1]
        away = features[:, None] - self.param("mean", torch_uniform(shape[1]), shape)
        if self.diagonal:
            scaled = away * self.param("root", nn.initializers.ones, shape)
        else:
            root = self.param("root", _identities, (*shape, shape[1]))
            scaled = jnp.einsum("bci,cij->bcj", away, root, precision="highest")
        return self.param("bias", nn.initializers.zeros, shape[:1]) - jnp.sum(scaled**2, axis=2) / 2


def _identities(key, shape, dtype=float):
    del key
    return jnp.broadcast_to(jnp.eye(shape[-1], dtype=dtype), shape)
