"""FedVLS: learn the classes that a client has without forgetting the classes that it lacks.

    loss = cross-entropy of f_c + calibration log(n_c / N + 1e-9),      n_c of the client's N examples are of class c
           + distillation * KL( received || local ),                    softmax over the client's vacant classes
           + logit * suppression                                        of a class's logit on rows of other classes

Guo et al., "Exploring Vacant Classes in Label-Skewed Federated Learning" (AAAI 2025). The terms are in
``losses/calibrated.py`` and ``losses/distillation.py``. The paper's lambda, here ``distillation``, is 0.1 (MNIST,
CIFAR-10) or 0.5 (CIFAR-100, TinyImageNet); the other strengths are 1.

Differences from the released code: its suppression, which produced the paper's tables, is not the paper's formula: it
is 0.005 times as strong and bounded below (``variant``). Its client trains without weight decay, unlike the baselines
in its tables, and it runs the received model in training mode; here all methods use the same optimizer and the received
model runs in evaluation mode. ``task_loss`` in the metrics is the calibrated cross-entropy; accuracies and the loss of
the evaluated model use the plain logits.
"""

import jax

from fedjax_collapse.losses import balanced_cross_entropy, logit_suppression, vacant_distillation
from fedjax_collapse.losses.distillation import SUPPRESSIONS
from fedjax_collapse.methods.base import FromReceived, LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, option


class FedVLS(FromReceived, Regularizer):
    """Calibrated cross-entropy, vacant-class distillation and logit suppression, each with a separate strength.

    Args:
        calibration: factor kappa of the log frequencies; 0 is plain cross-entropy.
        distillation: factor lambda of the distillation; 0.5 in the paper for CIFAR-100 and TinyImageNet.
        logit: factor mu of the suppression.
        variant: suppression of the released code (``official``), or of the paper (``paper``), which is unbounded below.
    """

    needs = ("classes",)
    strengths = ("calibration", "distillation", "logit")
    calibration: NonNegative = 1.0
    distillation: NonNegative = 0.1
    logit: NonNegative = 1.0
    variant: str = option("official", choices=SUPPRESSIONS)

    def task(self, view: LocalView) -> jax.Array:
        labels, mask = view.batch.labels, view.batch.mask
        return balanced_cross_entropy(view.outputs.logits, labels, mask, view.class_counts, self.calibration, "eps")

    def penalty(self, view: LocalView) -> dict[str, Term]:
        logits, mask, counts = view.outputs.logits, view.batch.mask, view.class_counts
        distillation = vacant_distillation(logits, view.frozen["received"].logits, mask, counts)
        suppression = logit_suppression(logits, view.batch.labels, mask, counts, self.variant)
        return {"distillation": Term(self.distillation, distillation), "logit": Term(self.logit, suppression)}
