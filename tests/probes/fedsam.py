"""FedSAM: the gradient where the loss is highest nearby, at w + rho g / ||g||; two passes a step."""

import jax
import optax
from flax import struct

from fedjax_collapse import Method


@struct.dataclass
class FedSAM(Method):
    """Sharpness-aware local training."""

    rho: float = 0.1

    def gradient(self, gradient_of, params, view):
        plain = gradient_of(params)
        scale = self.rho / (optax.tree.norm(plain) + 1e-7)
        return gradient_of(jax.tree.map(lambda w, g: w + scale * g, params, plain))
