"""A simplex equiangular tight frame as the classifier: fixed, without params, on normalised features."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class ETFHead(nn.Module):
    """Logits ``scale * features / ||features|| @ M``; the scale is trained."""

    num_classes: int

    @nn.compact
    def __call__(self, features):
        scale = self.param("scale", nn.initializers.constant(4.0), ())
        length = jnp.sqrt(jnp.maximum(jnp.sum(features**2, axis=1, keepdims=True), 1e-24))
        return scale * (features / length) @ frame(features.shape[1], self.num_classes)


def frame(dim, num_classes):
    """M [dim, classes]: columns of length 1 and cosine -1 / (classes - 1)."""
    basis = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (dim, num_classes)))[0]
    centred = jnp.eye(num_classes) - 1 / num_classes
    return jnp.sqrt(num_classes / (num_classes - 1)) * basis @ centred
