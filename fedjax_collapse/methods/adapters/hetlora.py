"""HetLoRA: average both factors, padded with zeros, with larger weights for clients of larger products.

    A = sum_k q_k A_k,   B = sum_k q_k B_k,   q_k = |P_k| / sum_l |P_l|,   P_k = s_k B_k A_k

with the Frobenius norm over all layers; a client of rank r_k receives the first r_k entries. With ``self_pruning``, a
client adds ``strength |B_k tail| |A_k tail|`` of the entries from floor(gamma r_k) on to its loss, and if this product
falls in a round, its rank becomes floor(gamma r_k) for good. Cho et al., "Heterogeneous LoRA for Federated Fine-tuning
of On-Device Foundation Models" (EMNLP 2024).

We found no released code; form and values of self-pruning are from other implementations. q_k has norms over all
layers, the loss a sum of products over layers. Entries below ``least`` are never pruned.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.losses.norms import root
from fedjax_collapse.methods.adapters._low_rank import Ranked, change, padded
from fedjax_collapse.methods.base import FinishView, LocalView, RoundView, Term
from fedjax_collapse.nn.adapters import adapters
from fedjax_collapse.schema.options import Count, Decay, NonNegative, only_with, option


class HetLoRA(Ranked):
    """Means of padded factors, and ranks that clients lower themselves.

    Args:
        average: weights of the factors: the ``norm`` of the clients' products, or the ``weight`` of the other params,
            which other papers call HetLoRA.
        self_pruning: whether clients lower their ranks.
        strength: factor lambda of the tail's term.
        gamma: fraction of its rank that a pruning client keeps; 0.99 removes one entry.
        least: lowest rank, which has no tail.
    """

    average: str = option("norm", choices=("norm", "weight"))
    self_pruning: bool = option(False)
    strength: NonNegative = only_with(0.01, self_pruning=True)
    gamma: Decay = only_with(0.99, self_pruning=True)
    least: Count = only_with(1, self_pruning=True)

    @property
    def unused(self) -> tuple[str, ...]:
        """Only clients that prune have a term in their loss, and a memory."""
        return () if self.self_pruning else ("init_memory", "penalty", *super().unused)

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        """Returns the number of entries that the client has pruned."""
        return jnp.zeros((), jnp.int32)

    def rank_of(self, view: RoundView) -> jax.Array:
        given = super().rank_of(view)
        return given - view.memory if self.self_pruning else given

    def penalty(self, view: LocalView) -> dict[str, Term]:
        return {"tail": Term(self.strength, tail(view.params, self._kept(view), self.rank_of(view)))}

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        by = view.client.weight if self.average == "weight" else norm(view.public.params)
        return self._pruned(view), (by, {layer: (by * a, by * b) for layer, (a, b, _) in padded(view).items()})

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        (by, sums), new = report, {}
        for layer, old in shared.items():
            a, b = (jnp.where(by > 0, total / jnp.where(by > 0, by, 1), old[i]) for i, total in enumerate(sums[layer]))
            new[layer] = old._replace(a=a, b=b)
        return change(update, shared, new)

    def _kept(self, view):
        """Returns the rank that the client has if it prunes now."""
        rank = self.rank_of(view)
        kept = jnp.floor(self.gamma * rank).astype(rank.dtype)
        return jnp.minimum(jnp.maximum(kept, self.least), rank)

    def _pruned(self, view):
        if not self.self_pruning:
            return view.memory
        kept, rank = self._kept(view), self.rank_of(view)
        before, after = (tail(v.params, kept, rank) for v in (self.receive(view)[0], view.trained))
        return view.memory + jnp.where(after < before, rank - kept, 0).astype(view.memory.dtype)


def norm(params: PyTree) -> jax.Array:
    """Returns the Frobenius norm of the products of all adapters, from matrices of rank x rank."""
    total = 0
    for a, b, scale in adapters(params).values():
        scaled = scale[:, None] * b
        total += jnp.sum((a.T @ a) * (scaled @ scaled.T))
    return root(total)


def tail(params: PyTree, first: jax.Array, end: jax.Array) -> jax.Array:
    """Returns ``|B| |A|`` of the entries from ``first`` to ``end``, summed over the layers; its gradient at 0 is 0."""
    total = 0
    for a, b, scale in adapters(params).values():
        index = jnp.arange(len(scale))
        is_tail = (first <= index) & (index < end)
        total += root(jnp.sum(a**2 * is_tail)) * root(jnp.sum(b**2 * is_tail[:, None]))
    return total
