"""Malicious clients send Gaussian noise in place of their update.

sent = mean + deviation N(0, 1),   drawn independently for each entry

The defaults are those of blades. ``NoisyUpdate`` adds noise to the updates of all clients.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.methods.robust._attacks import Attack
from fedjax_collapse.schema.options import NonNegative


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
        noise, is_own = optax.tree.random_like(view.key, update), self.is_own(view)
        sent = jax.tree.map(lambda u, normal: jnp.where(is_own, self.mean + self.deviation * normal, u), update, noise)
        return sent, view.memory
