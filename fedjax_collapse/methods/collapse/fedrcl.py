"""FedRCL: supervised contrast on each local batch, relaxed where the rows of a class are already close together.

    loss = cross-entropy + contrast * hardest_contrast(features) + relaxation * excess_similarity(features)

Seo et al., "Relaxed Contrastive Learning for Federated Learning" (CVPR 2024), following the released code: strengths 1
and 1, temperature 0.05, threshold 0.7, and of all pairs only the hardest (``losses/relaxed_contrastive.py``).

As published, both terms are computed at every level of the network (the stem and each stage of a ResNet, before their
last ReLU, averaged over the pixels). We take the mean over levels; the paper may take a sum. ``levels="last"`` uses
only the input of the classifier, after the ReLU and the projector, if any; it works with any network and costs least.
"""

from typing import Annotated

from fedjax_collapse.losses.relaxed_contrastive import excess_similarity, hardest_contrast
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Interval, NonNegative, Positive, option


class FedRCL(Regularizer):
    """Supervised contrast of the batch's hardest pairs, and its relaxation.

    Args:
        contrast: strength lambda_1 of the supervised contrast.
        relaxation: strength lambda_2 of the penalty on similar rows of a class.
        temperature: temperature t of both terms.
        threshold: cosine above which rows of a class are pushed apart.
        levels: where the terms are computed: at every level of the network (``all``, as published: a ResNet's stem and
            stages before their last ReLU), or at the classifier's input (``last``), for any network.
    """

    strengths = ("contrast", "relaxation")
    contrast: NonNegative = 1.0
    relaxation: NonNegative = 1.0
    temperature: Positive = 0.05
    threshold: Annotated[float, Interval(-1, 1)] = 0.7
    levels: str = option("all", choices=("all", "last"))

    @property
    def needs(self) -> tuple[str, ...]:
        return ("classes", "levels") if self.levels == "all" else ("classes",)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        labels, mask = view.batch.labels, view.batch.mask
        levels = view.outputs.levels if self.levels == "all" else [view.outputs.features]
        contrast = [hardest_contrast(level, labels, mask, self.temperature) for level in levels]
        relaxed = [excess_similarity(level, labels, mask, self.temperature, self.threshold) for level in levels]
        return {
            "contrast": Term(self.contrast, sum(contrast) / len(levels)),
            "relaxation": Term(self.relaxation, sum(relaxed) / len(levels)),
        }
