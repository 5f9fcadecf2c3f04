"""Malicious clients send Gaussian noise in place of their update.

sent = mean + deviation N(0, 1),   drawn independently for each entry

The defaults are those of blades. ``NoisyUpdate`` adds noise to the updates of all clients.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.methods.robust._attacks import Attack
from fedjax_collapse.schema.options import NonNegative


@struct.dataclass
class GaussianAttack(Attack):
    """Noise as the update.

    Args:
        mean: mean of the noise, in the units of the params; 0.1 in blades.
        deviation: standard deviation of the noise, likewise; 0.1 in blades.
    """

    mean: float = 0.1
    deviation: NonNegative = 0.1

    density = 1.0

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(view.key, len(leaves))
        is_own = self.is_own(view)
        sent = [
            jnp.where(is_own, self.mean + self.deviation * jax.random.normal(key, leaf.shape, leaf.dtype), leaf)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(structure, sent), view.memory
