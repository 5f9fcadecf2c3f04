"""Balanced softmax: the softmax of local training knows the client's class counts, so its logits need not.

    loss = cross-entropy of f_c + tau log n_c,     n_c: the client's examples of class c

in the place of plain cross-entropy (``losses/calibrated.py``). Ren et al., "Balanced Meta-Softmax for Long-Tailed
Visual Recognition" (NeurIPS 2020), with tau = 1; here the counts are each client's own, as in FedETF's and FedVLS's
released code, which differ in what they make of a class that a client lacks: an option. ``task_loss`` in the metrics is
this loss; accuracies, and the loss of the evaluated model, are of the plain logits.
"""

import jax
from flax import struct

from fedjax_collapse.core.options import NonNegative, option
from fedjax_collapse.losses import balanced_cross_entropy
from fedjax_collapse.losses.calibrated import BALANCED_VACANT
from fedjax_collapse.methods.base import LocalView, Method


@struct.dataclass
class BalancedSoftmax(Method):
    """Cross-entropy of logits plus the log of the client's counts, ``tau`` times.

    ``vacant``: a class without an example leaves the softmax (``exclude``), counts as if it had one (``floor_one``), or
    all counts are shares with 1e-9 added (``eps``).
    """

    needs_classes = True
    tau: NonNegative = 1.0
    vacant: str = option("exclude", choices=BALANCED_VACANT)

    def task(self, view: LocalView) -> jax.Array:
        labels, mask = view.batch.labels, view.batch.mask
        return balanced_cross_entropy(view.outputs.logits, labels, mask, view.class_counts, self.tau, self.vacant)
