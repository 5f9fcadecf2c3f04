"""Updates are clipped to a norm at the server, and averaged with equal weights.

    mean of u_i min(1, max_norm / ||u_i||)

Sun et al., "Can You Really Backdoor Federated Learning?" (2019). ``ClipUpdate`` clips at the clients, before the mean
by size and without holding all uploads; but an attack that replaces uploads (``ipm``, ``alie``, ``min_max``) is not
clipped by it. Params only; see ``median.py``.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.schema.options import Positive


class NormBound(Method):
    """The mean of clipped uploads.

    Args:
        max_norm: largest norm r, in the units of the params.
    """

    max_norm: Positive = 1.0

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        return _robust.clipped_mean(stacked, view.counted, self.max_norm)
