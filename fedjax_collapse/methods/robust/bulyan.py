"""Bulyan: Krum chooses n - 2f updates one by one; then each coordinate is a mean of values around the median.

    the mean of the n - 4f chosen values that are closest to the chosen values' median

El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium" (ICML 2018), with f malicious clients
among the n whose uploads count, n >= 4f + 3. Krum's n is the number of updates that remain. Params only, with equal
weights; see ``median.py``.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Natural


class Bulyan(Method):
    """A trimmed mean around the median of the updates that Krum chooses.

    Args:
        attackers: number f of malicious uploads that it withstands; a cohort needs 4f + 3 clients.
    """

    attackers: Natural = 1

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        _robust.check_cohort("Bulyan", cohort_size, 4 * int(self.attackers) + 3, "4 attackers + 3")

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        return _robust.bulyan(stacked, view.counted, view.id, self.attackers)
