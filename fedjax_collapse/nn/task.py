"""Tasks: the loss of a batch, and the score of each example that evaluation averages."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.options import check_fields
from fedjax_collapse.core.records import Batch, Outputs, UserError
from fedjax_collapse.losses import cross_entropy, masked_mean


@dataclasses.dataclass(frozen=True)
class Task:
    """Functions of a network's outputs and a batch, both pure.

    Attributes:
        loss: the mean loss over the true rows, which is minimised.
        score: the score of each row, [batch] bool or float; ``metric`` is its mean over the test set.
        metric: the name of the mean score in the metrics.
        is_classification: whether the network returns a logit for each class and labels are integers.
    """

    loss: Callable[[Outputs, Batch], jax.Array]
    score: Callable[[Outputs, Batch], jax.Array]
    metric: str = "accuracy"
    is_classification: bool = False

    def __post_init__(self):
        check_fields(self)

    def check(self, outputs: Outputs, num_classes: int) -> None:
        """Raises UserError if the network's outputs for one example do not match the classes of the data."""
        if outputs.features.ndim != 2 or len(outputs.features) != 1:
            raise UserError(f"network: its features have shape {list(outputs.features.shape)}, expected [batch, d]")
        if self.is_classification and outputs.logits.shape != (1, num_classes):
            raise UserError(
                f"network: its logits have shape {list(outputs.logits.shape[1:])}, expected [{num_classes}], one for "
                f"each class of the data"
            )


def _classification_loss(outputs, batch):
    return cross_entropy(outputs.logits, batch.labels, batch.mask)


def _is_correct(outputs, batch):
    return jnp.argmax(outputs.logits, axis=1) == batch.labels


def _squared_errors(outputs, batch):
    """Returns the mean squared error of each row, over its predictions."""
    if batch.labels.size != outputs.logits.size:
        shapes = f"predictions [batch, {outputs.logits.shape[1:]}] of labels [batch, {batch.labels.shape[1:]}]"
        raise UserError(f"network: {shapes}, expected as many numbers in both")
    errors = outputs.logits - batch.labels.reshape(outputs.logits.shape)
    return jnp.mean(errors.reshape(len(errors), -1) ** 2, axis=1)


def _regression_loss(outputs, batch):
    return masked_mean(_squared_errors(outputs, batch), batch.mask)


CLASSIFICATION = Task(_classification_loss, _is_correct, is_classification=True)  # cross-entropy (nats), top-1
REGRESSION = Task(_regression_loss, _squared_errors, "squared_error")
