"""Sign flipping: malicious clients send minus their update, perhaps scaled.

sent = -scale u

u is the update after earlier methods; blades flips each local gradient instead.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.methods.robust._attacks import Attack
from fedjax_collapse.schema.options import Positive


class SignFlip(Attack):
    """The opposite update.

    Args:
        scale: factor s.
    """

    scale: Positive = 1.0

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        factor = jnp.where(self.is_own(view), -self.scale, 1)
        return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), update), view.memory
