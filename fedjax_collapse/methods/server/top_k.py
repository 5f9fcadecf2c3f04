"""Top-k sparsification with error feedback: only the largest entries are sent; the rest is added to the next update.

    sent = the entries of u = update + e of largest magnitude, a fraction of each param array;   e <- u - sent

Stich et al., "Sparsified SGD with Memory" (2018), applied per array and per round. Entries that tie with the smallest
one sent are sent as well. The residual e stays at the client, also through rounds in which it does not participate.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.schema.options import Share, option


class TopK(Method):
    """Sends the largest entries of each array.

    Args:
        share: fraction of the entries that is sent, at least one of each array.
        error_feedback: whether unsent entries are added to the client's next update, or dropped.
    """

    share: Share = option(0.1)
    error_feedback: bool = option(True)

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.params) if self.error_feedback else ()

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        if not self.error_feedback:
            return jax.tree.map(self._largest, update), ()
        whole = jax.tree.map(jnp.add, update, view.memory)
        sent = jax.tree.map(self._largest, whole)
        return sent, jax.tree.map(jnp.subtract, whole, sent)

    @property
    def density(self) -> float:
        return self.share

    def _largest(self, leaf):
        magnitudes = jnp.abs(leaf)
        least = jax.lax.top_k(magnitudes.ravel(), max(1, math.ceil(self.share * leaf.size)))[0][-1]
        return jnp.where(magnitudes >= least, leaf, 0)
