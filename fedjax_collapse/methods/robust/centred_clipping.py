"""Centred clipping: only the part of an update that differs from the last round's is clipped.

    v <- v + mean of (u_i - v) min(1, max_norm / ||u_i - v||),   from the v of the last round, at first 0

Karimireddy et al., "Learning from History for Byzantine Robust Optimization" (ICML 2021). v is the last change of the
server's params, after a server optimizer and methods that change the server's update. One step a round as in the paper;
epfml's code takes 3. Params only, with equal weights; see ``median.py``.
"""

import optax

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Count, Positive, option


class CentredClipping(Method):
    """The last update plus the mean of clipped differences to it.

    Args:
        max_norm: largest norm r of a difference, in the units of the params; our choice.
        iterations: steps in a round; 3 in epfml's code.
    """

    not_sent = ("shared/*",)

    max_norm: Positive = 1.0
    iterations: Count = option(1)

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return optax.tree.zeros_like(variables.params)

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        centre = _robust.restrict(view.shared, stacked)
        return _robust.clipped_mean(stacked, view.counted, self.max_norm, self.iterations, centre)

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        return optax.tree.sub(after.params, before.params)
