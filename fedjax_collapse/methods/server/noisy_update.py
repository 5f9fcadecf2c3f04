"""Gaussian noise on the update of each client.

sent = update + deviation * N(0, 1),   drawn independently for each entry
"""

import jax
import optax

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.schema.options import NonNegative


class NoisyUpdate(Method):
    """Adds Gaussian noise to each client's update.

    Args:
        deviation: standard deviation sigma, in the units of the params.
    """

    strengths = ("deviation",)
    density = 1.0
    deviation: NonNegative = 1e-3

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        noise = optax.tree.random_like(view.key, update)
        return jax.tree.map(lambda leaf, normal: leaf + self.deviation * normal, update, noise), view.memory
