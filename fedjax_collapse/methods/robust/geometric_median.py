"""The geometric median of the clients' updates (RFA), by a few steps of Weiszfeld's algorithm.

    v <- sum_i w_i u_i / sum_i w_i,   w_i = p_i / max(nu, ||u_i - v||),   from the weighted mean

Pillutla et al., "Robust Aggregation for Federated Learning" (2022), with the clients' weights p_i. The defaults are
those of TensorFlow Federated, whose 5 passes are the mean and 4 steps; epfml's code takes 8 steps from 0 with nu = 0.1.
Params only; see ``median.py``.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Count, Positive, option


class GeometricMedian(Method):
    """The point with the least sum of distances to the uploads.

    Args:
        iterations: steps after the mean.
        smoothing: smallest divisor nu, in the units of the params.
    """

    iterations: Count = option(4)
    smoothing: Positive = 1e-6

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        return _robust.geometric_median(stacked, view.weight, self.iterations, self.smoothing)
