"""FedRS: scale down the logits of classes that a client lacks, so that its softmax pushes them away less.

    loss = cross-entropy of r_c f_c,     r_c = 1 if the client has examples of class c, else alpha

It replaces plain cross-entropy (``losses/calibrated.py``). Li & Zhan, "FedRS: Federated Learning with Restricted
Softmax for Label Distribution Non-IID Data" (KDD 2021). alpha is 0.9, 0.5 or 0.1 there, and 0.7 in FedVLS's table; 1 is
plain cross-entropy. The authors' code uses scales between alpha and 1, by the frequency of each class
(``scale="continuous"``), and scales the product of features and kernel without the bias. So its training never changes
the bias, which evaluation uses (``use_bias=False``). PyTorch also applies no weight decay to params without a gradient;
here weight decay acts on that bias unless it is frozen, as by ``LocalTraining(freeze="Dense_0/bias")`` for a head of
that name. ``task_loss`` in the metrics is this loss; accuracies and the loss of the evaluated model use the plain
logits.
"""

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError
from fedjax_collapse.losses import restricted_cross_entropy
from fedjax_collapse.losses.calibrated import SCALES
from fedjax_collapse.methods.base import LocalView, Method, Setup
from fedjax_collapse.schema.options import Fraction, option


class FedRS(Method):
    """Cross-entropy of logits scaled by the client's class counts.

    Args:
        alpha: scale of the logits of missing classes; 0.1, 0.5 and 0.9 in the paper; 1 is plain cross-entropy.
        scale: 1 for the client's classes (``binary``), or ``alpha + (1 - alpha) n_c / max n_c`` for all classes
            (``continuous``, the authors' code).
        use_bias: False leaves the bias of the classifier, which must be linear, out of the loss, as the authors' code
            does.
    """

    needs = ("classes",)
    alpha: Fraction = 0.5
    scale: str = option("binary", choices=SCALES)
    use_bias: bool = option(True)

    def check_with(self, setup: Setup) -> None:
        if self.use_bias:
            return
        model, mask = setup.model, setup.model.mask("head").params
        names = [path.rpartition("/")[2] for path in masks.select(mask, mask)]
        if sorted(names) not in (["kernel"], ["bias", "kernel"]):
            raise UserError(
                f"FedRS: use_bias=False needs a linear classifier, that of network {type(model.module).__name__} has "
                f"{', '.join(names)}; set use_bias=True"
            )

    def task(self, view: LocalView) -> jax.Array:
        logits, labels, mask = view.outputs.logits, view.batch.labels, view.batch.mask
        if not self.use_bias:
            head = masks.select(view.model.mask("head").params, view.params)
            logits = view.outputs.features @ next(leaf for path, leaf in head.items() if path.endswith("kernel"))
        return restricted_cross_entropy(logits, labels, mask, view.class_counts, self.alpha, self.scale)
