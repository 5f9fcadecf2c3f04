"""The coordinate-wise median of the clients' updates, in place of their weighted mean.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018). Of an even number
of values it is the mean of the two in the middle, as in NumPy, Flower and epfml's code; PyTorch takes the lower one.

Like every rule that replaces the mean it weights clients equally, and protects params only: BatchNorm's running
statistics are still averaged by weight, and reports of other methods (SCAFFOLD's control variates, prototypes) are
still summed.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust


class Median(Method):
    """The median of every coordinate of the uploads."""

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        return _robust.median(stacked, view.counted)
