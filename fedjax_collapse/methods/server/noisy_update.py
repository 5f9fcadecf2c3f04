"""Gaussian noise on the update of each client.

sent = update + deviation * N(0, 1),   drawn independently for each entry
"""

import jax
from flax import struct

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.schema.options import NonNegative


@struct.dataclass
class NoisyUpdate(Method):
    """Adds Gaussian noise to each client's update.

    Args:
        deviation: standard deviation sigma, in the units of the params.
    """

    strengths = ("deviation",)
    density = 1.0
    deviation: NonNegative = 1e-3

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(view.key, len(leaves))
        noisy = [
            leaf + self.deviation * jax.random.normal(key, leaf.shape, leaf.dtype)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy), view.memory
