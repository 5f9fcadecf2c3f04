"""Tasks: the loss of a batch, and the score of each example that evaluation averages."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Batch, Outputs, UserError
from fedjax_collapse.losses import (
    binary_cross_entropy,
    cosines,
    cross_entropy,
    cross_entropy_of_many,
    masked_mean,
    view_similarity,
)
from fedjax_collapse.schema.options import Count, check_fields

NAMES = ("classification", "regression", "next_word", "next_character", "multi_label", "self_supervised")


@dataclasses.dataclass(frozen=True)
class Task:
    """Pure functions of a network's outputs and a batch.

    Attributes:
        loss: the mean loss over the true rows, which is minimised.
        score: the score of each row, [batch] bool or float; ``metric`` is its mean over the test set.
        metric: the name of the mean score in the metrics.
        is_classification: whether the network returns a logit for each class and labels are integers.
        parts: further means of the score, as pairs of a name and a function of a batch that returns the weight of each
            row, [batch] numbers or bool. A mean that is called ``metric`` is the metric.
        views: the number of augmented views of an example in a batch of local training; in ``outputs.views`` are the
            outputs on all but the first. Other batches have one view.
    """

    loss: Callable[[Outputs, Batch], jax.Array]
    score: Callable[[Outputs, Batch], jax.Array]
    metric: str = "accuracy"
    is_classification: bool = False
    parts: tuple[tuple[str, Callable[[Batch], jax.Array]], ...] = ()
    views: Count = 1

    def __post_init__(self):
        check_fields(self)

    def check_classes(self, num_classes: int) -> None:
        """Raises UserError if the task needs class labels, and the data have none."""
        if self.is_classification and not num_classes:
            raise UserError(
                "data: the task predicts classes, but there are no class_names; give integers as "
                "labels and class_names, or another task, such as Model(..., task=REGRESSION)"
            )

    def check(self, outputs: Outputs, num_classes: int, length: int = 1) -> None:
        """Raises UserError if the network's outputs for one example do not match the classes of the data.

        Args:
            outputs: shapes of the outputs.
            num_classes: number of classes of the data.
            length: number of tokens of an example, if each has a label; otherwise 1.
        """
        shape, rows, predicts = outputs.features.shape, "[batch, d], a row for each example", "last"
        if length > 1:
            rows, predicts = f"[batch * {length}, d], a row for each token", "every"
        if len(shape) != 2 or shape[0] != length:
            advice = f'; shakespeare_lstm has them with predicts="{predicts}" (in a config network.predicts)'
            advice *= len(shape) == 2  # rows only
            raise UserError(f"network: its features have shape {list(shape)}, expected {rows} as labels are{advice}")
        if self.is_classification and outputs.logits.shape != (length, num_classes):
            raise UserError(
                f"network: its logits have shape {list(outputs.logits.shape[1:])}, expected [{num_classes}], one for "
                f"each class of the data"
            )

    def weights(self, batch: Batch, name: str = "") -> jax.Array:
        """Returns the weight of each row in the named mean, by default ``metric``, [batch]; 0 for padding."""
        part = dict(self.parts).get(name or self.metric)
        return batch.mask if part is None else jnp.where(batch.mask, part(batch), 0)

    @property
    def further(self) -> tuple[str, ...]:
        """The names of the means that are reported in addition to ``metric``."""
        return tuple(name for name, _ in self.parts if name != self.metric)


def named(name: str, num_classes: int) -> Task:
    """Returns the task of a name in ``NAMES``, for this number of classes; equal arguments give equal tasks.

    Raises:
        UserError: there is no such task.
    """
    if name == "next_word":
        return next_word(num_classes - 4)
    tasks = {"classification": CLASSIFICATION, "regression": REGRESSION, "next_character": NEXT_CHARACTER}
    tasks |= {"multi_label": multi_label(min(5, max(num_classes, 1))), "self_supervised": SELF_SUPERVISED}
    if name not in tasks:
        raise UserError(f"task {name!r}: expected one of {', '.join(NAMES)}")
    return tasks[name]


def next_word(vocabulary: int) -> Task:
    """Returns the task to predict each next word, scored as in TensorFlow Federated.

    Ids are 0 for padding, 1 to V for words, V+1 for other words, V+2 and V+3 for begin and end of a sentence. Any id
    may be predicted. ``accuracy_with_oov`` is over all targets but padding, ``accuracy_no_oov`` without other words,
    and ``accuracy``, TFF's ``accuracy_no_oov_or_eos``, also without the end. The loss is over all targets but padding.

    Args:
        vocabulary: the number of words V.

    Raises:
        UserError: if ``vocabulary`` is not positive.
    """
    if vocabulary < 1:
        raise UserError(f"task next_word: {vocabulary} words, expected at least 1 and four other ids")
    oov, end = vocabulary + 1, vocabulary + 3
    parts = (
        ("accuracy", _Without((oov, end))),
        ("accuracy_no_oov", _Without((oov,))),
        ("accuracy_with_oov", _Without(())),
    )
    return dataclasses.replace(NEXT_CHARACTER, parts=parts)


def multi_label(top: int = 5) -> Task:
    """Returns the task to predict several labels of an example: labels [batch, L] of 0 and 1.

    The loss is the mean binary cross-entropy over labels and rows, in nats. TensorFlow Federated sums it over the
    batch: ``training.task_loss`` ``fedjax_collapse.losses:summed_binary_cross_entropy``. The score is the recall among
    the ``top`` largest logits: true labels among them over all true labels, both summed over the test set, as in Keras.
    """
    metric = f"recall_at_{top}"
    return Task(_multi_label_loss, _Recall(top), metric, parts=((metric, _number_of_labels),))


def self_supervised(stop_gradient: bool = True) -> Task:
    """Returns the task to predict the projection of another view of the same example, without labels.

    The network has the head ``heads.Siamese``. The loss is SimSiam's (Chen & He, CVPR 2021),
    ``-(cos(p_1, h_2) + cos(p_2, h_1)) / 2`` with projections h and predictions p of two augmented views, each
    normalised by its own BatchNorm statistics. The score is ``cos(p, h)`` of an example's first view, as is minus the
    loss of batches with one view; it is 1 for a collapsed network, too. Measure the encoder by ``linear_probe`` and
    its effective rank.

    Args:
        stop_gradient: whether projections are constants; without, or without predictor, the network collapses.
    """
    return Task(_SiameseLoss(stop_gradient), _similarities, "similarity", views=2)


@dataclasses.dataclass(frozen=True)
class _SiameseLoss:
    stop_gradient: bool

    def __call__(self, outputs: Outputs, batch: Batch) -> jax.Array:
        projections, predictions = siamese_outputs(outputs)
        if self.stop_gradient:
            projections = jax.lax.stop_gradient(projections)
        return -view_similarity(predictions, projections, batch.mask)


def siamese_outputs(outputs: Outputs) -> tuple[jax.Array, jax.Array]:
    """Returns the projections and the predictions of all views, [views, batch, d] each.

    Raises:
        UserError: if the network has another head than ``heads.Siamese``.
    """
    views = jnp.stack([view.logits for view in (outputs, *outputs.views)])
    if views.ndim != 4:
        raise UserError(f"network: logits {list(views.shape[2:])} of an example; set network.head='siamese'")
    return views[:, :, 0], views[:, :, 1]


def _similarities(outputs, batch):
    projections, predictions = siamese_outputs(outputs)
    return cosines(predictions[0], projections[0])


@dataclasses.dataclass(frozen=True)
class _Without:
    """Selects the rows whose labels are none of these."""

    labels: tuple[int, ...]

    def __call__(self, batch: Batch) -> jax.Array:
        return functools.reduce(jnp.logical_and, (batch.labels != label for label in self.labels), batch.mask)


def _number_of_labels(batch):
    return batch.labels.sum(axis=1)


@dataclasses.dataclass(frozen=True)
class _Recall:
    """The fraction of a row's true labels among its ``top`` largest logits; 0 without true labels."""

    top: int

    def __call__(self, outputs: Outputs, batch: Batch) -> jax.Array:
        if self.top > batch.labels.shape[1]:
            raise UserError(f"task: recall at {self.top} of {batch.labels.shape[1]} labels; lower top of multi_label")
        _, chosen = jax.lax.top_k(outputs.logits, self.top)
        found = jnp.take_along_axis(batch.labels, chosen, axis=1).astype(outputs.logits.dtype)
        return found.sum(axis=1) / jnp.maximum(batch.labels.astype(found.dtype).sum(axis=1), 1)


def _classification_loss(outputs, batch):
    if batch.labels.ndim > 1:
        shape = list(batch.labels.shape[1:])
        raise UserError(
            f"data: labels {shape} of an example, expected one integer, its class; or take task=multi_label()"
        )
    return cross_entropy(outputs.logits, batch.labels, batch.mask)


def _is_correct(outputs, batch):
    return jnp.argmax(outputs.logits, axis=1) == batch.labels


def _token_loss(outputs, batch):
    return cross_entropy_of_many(outputs.logits, batch.labels, batch.mask)


def _is_first_of_largest(outputs, batch):
    """Returns whether the argmax is the label; an argmax over thousands of classes is as slow as the gradient."""
    logits, labels = outputs.logits, batch.labels[:, None]
    own = jnp.take_along_axis(logits, labels, axis=1)
    is_before = (logits > own) | ((logits == own) & (jnp.arange(logits.shape[1]) < labels))
    return ~jnp.any(is_before, axis=1) & (own[:, 0] == own[:, 0])


def _multi_label_loss(outputs, batch):
    if batch.labels.shape != outputs.logits.shape:
        shapes = f"logits {list(outputs.logits.shape[1:])} of labels {list(batch.labels.shape[1:])}"
        raise UserError(f"network: {shapes}, expected a logit for each label")
    return binary_cross_entropy(outputs.logits, batch.labels, batch.mask)


def _squared_errors(outputs, batch):
    """Returns the mean squared error of each row, over its predictions."""
    if batch.labels.size != outputs.logits.size:
        shapes = f"predictions [batch, {outputs.logits.shape[1:]}] of labels [batch, {batch.labels.shape[1:]}]"
        raise UserError(f"network: {shapes}, expected equal numbers of both")
    errors = outputs.logits - batch.labels.reshape(outputs.logits.shape)
    return jnp.mean(errors.reshape(len(errors), -1) ** 2, axis=1)


def _regression_loss(outputs, batch):
    return masked_mean(_squared_errors(outputs, batch), batch.mask)


CLASSIFICATION = Task(_classification_loss, _is_correct, is_classification=True)  # cross-entropy (nats), top-1
NEXT_CHARACTER = Task(_token_loss, _is_first_of_largest, is_classification=True)  # of each token, but padding
REGRESSION = Task(_regression_loss, _squared_errors, "squared_error")
MULTI_LABEL = multi_label()
SELF_SUPERVISED = self_supervised()
