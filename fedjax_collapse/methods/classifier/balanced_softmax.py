"""Balanced softmax: local training adds the log of the client's class counts to the logits.

    loss = cross-entropy of f_c + tau log n_c,     n_c: the client's examples of class c

It replaces plain cross-entropy (``losses/calibrated.py``). Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual
Recognition" (NeurIPS 2020), with tau = 1. Here each client uses its own counts, as in FedETF's and FedVLS's released
code, which differ in their treatment of classes that a client lacks (``vacant``). ``task_loss`` in the metrics is this
loss; accuracies and the loss of the evaluated model use the plain logits.
"""

import jax

from fedjax_collapse.losses import balanced_cross_entropy
from fedjax_collapse.losses.calibrated import BALANCED_VACANT
from fedjax_collapse.methods.base import LocalView, Method
from fedjax_collapse.schema.options import NonNegative, option


class BalancedSoftmax(Method):
    """Cross-entropy of logits plus ``tau`` times the log of the client's class counts.

    Args:
        tau: factor of the log counts; 1 as published, 0 is plain cross-entropy.
        vacant: a class without examples is excluded from the softmax (``exclude``), counts as one example
            (``floor_one``, FedETF's code), or 1e-9 is added to class frequencies, in place of counts (``eps``, FedVLS's
            code).
    """

    needs = ("classes",)
    tau: NonNegative = 1.0
    vacant: str = option("exclude", choices=BALANCED_VACANT)

    def task(self, view: LocalView) -> jax.Array:
        labels, mask = view.batch.labels, view.batch.mask
        return balanced_cross_entropy(view.outputs.logits, labels, mask, view.class_counts, self.tau, self.vacant)
