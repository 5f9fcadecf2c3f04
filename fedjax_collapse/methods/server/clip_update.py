"""Clipping of a client's update to a maximum norm.

    sent = update * min(1, max_norm / ||update||)

With ``noisy_update`` after it every client adds noise, without accounting; ``dp_fedavg`` adds noise once to the sum, as
in McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018).
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses.norms import root
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.schema.options import Positive


class ClipUpdate(Method):
    """Clips the norm of the update over all params; after FedNova, the norm of its direction.

    Args:
        max_norm: largest norm r, in the units of the params.
    """

    scales_upload = True

    max_norm: Positive = 1.0

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        norm = root(optax.tree.norm(update, squared=True))
        scale = jnp.minimum(1, self.max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda leaf: (scale * leaf).astype(leaf.dtype), update), view.memory
