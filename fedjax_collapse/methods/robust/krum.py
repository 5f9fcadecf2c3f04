"""Krum: the one update that is closest to its neighbours, or the mean of several such updates (multi-Krum).

    score_i = sum of the n - f - 2 smallest ||u_i - u_j||^2,   j != i

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NeurIPS 2017), with f
malicious clients among the n whose uploads count, n >= 2f + 3. Released codes differ: ByzantineMomentum takes n - f - 1
distances that are not squared, and epfml's code fourth powers, and the sum of the chosen updates. Equal scores are in
the order of identities. Params only, with equal weights; see ``median.py``.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Natural


class Krum(Method):
    """The best updates by their distances to others.

    Args:
        attackers: number f of malicious uploads that it withstands; a cohort needs 2f + 3 clients. If uploads are lost,
            a score has at least one term.
        select: number of best updates that are averaged: 1 for Krum, 0 for n - f - 2, multi-Krum.
    """

    attackers: Natural = 1
    select: Natural = 1

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        _robust.check_cohort("Krum", cohort_size, 2 * int(self.attackers) + 3, "2 attackers + 3")

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        distances = _robust.squared_distances(stacked, view.counted)
        ranks = _robust.krum_ranks(distances, view.counted, view.id, self.attackers)
        best = jnp.where(self.select == 0, jnp.sum(view.counted) - self.attackers - 2, self.select)
        return _robust.mean_of(stacked, view.counted & (ranks < jnp.maximum(best, 1)))
