"""raFLoRA: average each slice of the adapters over the clients that have it, and decompose the sum of the slices.

    M = sum_j sum_{k in C_j} (p_k / sum_{l in C_j} p_l) s_k B_k[:, j] A_k[j, :],   C_j = {k: r_k >= h_j}

Slice j has the entries from h_{j-1} to h_j, where h_1 < h_2 < ... are the different ranks of the clients. FlexLoRA
divides each slice by the weight of all clients, so that directions of high rank fade over rounds ("rank collapse"). M
is decomposed as in FlexLoRA, with the roots of the singular values in both factors, and a client receives the first r_k
entries. Wu et al., "Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity" (2026).

We found no released code; the roots in both factors are from another implementation. Levels are the configured ranks,
not the cohort's, and a slice that no client of the cohort has keeps its old value.
"""

from itertools import pairwise

import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import Ranked, change, closest
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.nn.adapters import Adapter, adapters


class RaFLoRA(Ranked):
    """Averages of the products of slices, by rank.

    A report has a matrix [in, out] for every layer and different rank.
    """

    replaces_adapters = True

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        weight, levels = view.client.weight, self._levels(view.model.adapters.rank)
        held = jnp.where(jnp.asarray(levels) <= self.rank_of(view), weight, 0)
        own = adapters(view.public.params).items()
        return view.memory, (held, {layer: [weight * m for m in _products(one, levels)] for layer, one in own})

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        (held, sums), new = report, {}
        for layer, old in shared.items():
            slices = zip(held, sums[layer], _products(old, self._levels(len(old.scale))), strict=True)
            means = [jnp.where(by > 0, total / jnp.where(by > 0, by, 1), before) for by, total, before in slices]
            new[layer] = closest(sum(means), old, is_balanced=True)
        return change(update, shared, new)

    def _levels(self, most):
        return sorted({*self.ranks, most})


def _products(adapter, levels):
    """Returns the product of each slice; it is 0 after the client's rank, where the scale is 0."""
    a, b, scale = adapter
    return [Adapter(a[:, i:j], b[i:j], scale[i:j]).product for i, j in pairwise([0, *levels])]
