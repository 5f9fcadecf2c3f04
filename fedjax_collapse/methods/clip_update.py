"""Clipping of the whole update of a client to a largest norm.

    sent = update * min(1, max_norm / ||update||)

With ``noisy_update`` behind it, the mechanism of McMahan et al., "Learning Differentially Private Recurrent Language
Models" (2018); no privacy budget is accounted for.
"""

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_collapse.core.options import Positive
from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses.norms import root
from fedjax_collapse.methods.base import FinishView, Method


@struct.dataclass
class ClipUpdate(Method):
    """``max_norm``: of the update of all params, in their units; behind FedNova, of its normalised direction."""

    max_norm: Positive = 1.0

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        norm = root(optax.tree.norm(update, squared=True))
        scale = jnp.minimum(1, self.max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda moved: (scale * moved).astype(moved.dtype), update), view.memory
