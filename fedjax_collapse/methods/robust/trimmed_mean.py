"""The coordinate-wise trimmed mean: without the lowest and the highest values of every coordinate.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018), who drop as many
values on each side as there are malicious clients. Flower drops ``floor(0.2 n)`` of n. Params only, with equal weights;
see ``median.py``.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Natural


class TrimmedMean(Method):
    """The mean of every coordinate without its extreme values.

    Args:
        trim: number b; a cohort needs 2b + 1 clients. If uploads are lost, fewer values are dropped, so that one
            remains.
    """

    trim: Natural = 1

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        _robust.check_cohort("TrimmedMean", cohort_size, 2 * int(self.trim) + 1, "2 trim + 1")

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        return _robust.trimmed_mean(stacked, view.counted, self.trim)
