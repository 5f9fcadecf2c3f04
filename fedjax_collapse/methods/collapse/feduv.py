"""FedUV: make each local classifier and its features look as if trained on balanced data.

    loss = cross-entropy + variance * classifier_variance(logits) + uniformity * hyperspherical_uniformity(features)

Son et al., "FedUV: Uniformity and Variance for Heterogeneous Federated Learning" (CVPR 2024). The published variance
is a quarter of the number of classes, uniformity 0.5. Defaults follow the paper, and the released code where the paper
is silent; the code's kernel is narrower than the paper's (``kernel_scale=1``). See ``losses/uniformity.py`` for all
options.
"""

from fedjax_collapse.losses import classifier_variance, hyperspherical_uniformity
from fedjax_collapse.losses.uniformity import DDOFS, HINGES, KERNEL_SCALES, MEDIANS
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, option


class FedUV(Regularizer):
    """Penalties on too little spread of class probabilities and of features over the batch.

    Args:
        variance: strength lambda of the first term; None is the paper's, a quarter of the number of classes.
        uniformity: strength mu of the second term.
        ddof: subtracted from the number of rows in the divisor of the standard deviations; 1 in the released code. With
            0 the target is ``sqrt(C - 1) / C``.
        hinge: how the shortfall from one-hot rows counts: its positive part (``plain``), the square of that
            (``squared``), or all, signed (``none``).
        kernel_scale: factor of sigma in the kernel: 2 in the paper, 1 in the released code.
        median: median of an even number of distances: the ``lower`` of the middle two (released code), or their
            ``average``.
        attached: whether the gradient flows through the median distance, as in the released code.
    """

    needs = ("classes",)
    strengths = ("variance", "uniformity")
    variance: NonNegative | None = None
    uniformity: NonNegative = 0.5
    ddof: int = option(1, choices=DDOFS)
    hinge: str = option("plain", choices=HINGES)
    kernel_scale: int = option(2, choices=KERNEL_SCALES)
    median: str = option("lower", choices=MEDIANS)
    attached: bool = option(True)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        outputs, mask = view.outputs, view.batch.mask
        variance = classifier_variance(outputs.logits, mask, self.ddof, self.hinge)
        uniformity = hyperspherical_uniformity(outputs.features, mask, self.kernel_scale, self.median, self.attached)
        strength = outputs.logits.shape[-1] / 4 if self.variance is None else self.variance
        return {"variance": Term(strength, variance), "uniformity": Term(self.uniformity, uniformity)}
