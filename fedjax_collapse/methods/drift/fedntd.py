"""FedNTD: local training preserves the received model's predictions for the classes other than the true one.

    loss = cross-entropy + strength * t^2 KL( received || local ),     softmax over not-true classes, temperature t

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning" (NeurIPS 2022): beta
and t are 1 (``losses/distillation.py``). The received model runs in evaluation mode; in the authors' code it runs in
training mode for the first client of the whole run only, in FedVLS's code for all clients. FedVLS's table has beta 0.1.
It can be combined with any task loss.
"""

from fedjax_collapse.losses import not_true_distillation
from fedjax_collapse.methods.base import FromReceived, LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, Positive


class FedNTD(FromReceived, Regularizer):
    """Not-true distillation from the received model.

    Args:
        strength: factor beta of the distillation; 1 as published.
        temperature: temperature T of both softmaxes; 1 as published.
    """

    needs = ("classes",)
    strength: NonNegative = 1.0
    temperature: Positive = 1.0

    def penalty(self, view: LocalView) -> dict[str, Term]:
        logits, teacher = view.outputs.logits, view.frozen["received"].logits
        value = not_true_distillation(logits, teacher, view.batch.labels, view.batch.mask, self.temperature)
        return {"not_true": Term(self.strength, value)}
