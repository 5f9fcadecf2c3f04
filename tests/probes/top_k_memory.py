"""Top-k uploads with error feedback: what is not sent is added to the next update."""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse import Method, option


@struct.dataclass
class LargestEntries(Method):
    """Of every array the ``count`` entries of largest magnitude."""

    count: int = option(3)

    def init_memory(self, variables, shapes):
        return jax.tree.map(jnp.zeros_like, variables.params)

    def upload(self, update, view):
        whole = jax.tree.map(jnp.add, update, view.memory)
        sent = jax.tree.map(self.largest, whole)
        return sent, jax.tree.map(jnp.subtract, whole, sent)

    def largest(self, leaf):
        order = jnp.argsort(-jnp.abs(leaf).ravel())[: self.count]
        return jnp.zeros_like(leaf).ravel().at[order].set(leaf.ravel()[order]).reshape(leaf.shape)
