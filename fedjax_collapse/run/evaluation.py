"""Evaluation on a test set: of the server's model, also by domain."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.analysis.confusion import has_predictions
from fedjax_collapse.analysis.moments import Moments, class_moments, merged
from fedjax_collapse.core.records import Batch, Examples, Outputs, Variables, in_one_line
from fedjax_collapse.data.batches import blocks_of, get_batch
from fedjax_collapse.data.domains import Domains
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import Count, checked

_BATCHES_SENT = 20  # at a time, if the examples are on the host
_SEQUENCES = 64  # in a batch, if every token has a label: the logits of one are large


class Evaluation(NamedTuple):
    """The outputs for every test example, in their order, and the mean loss.

    If every token has a label, an example is a sequence, whose scores are summed; outputs are not stored, only the
    moments of the features of all tokens.
    """

    scores: jax.Array  # [examples] of the task; for classification whether it is correct, bool; see ``is_finite``
    features: jax.Array | None  # [examples, features]
    logits: jax.Array | None  # [examples, classes]
    loss: jax.Array  # in nats, of cross-entropy
    of_finite_model: jax.Array | bool = True  # whether parameters and running statistics are finite; also the outputs
    weights: Mapping[str, jax.Array] = {}  # by mean of the task with weights, "" for ``metric``: [examples] their sums
    weighted: Mapping[str, jax.Array] = {}  # likewise, [examples] sums of weighted scores
    moments: Moments | None = None  # of the features of tokens

    __repr__ = in_one_line

    @property
    def is_finite(self) -> bool:
        """Whether the model, all features, and the largest logit of every example are finite.

        Otherwise ``scores`` are meaningless: the argmax over NaN is the first class.
        """
        if self.features is None:
            return bool(self.of_finite_model)
        has_outputs = np.isfinite(self.features).all() and has_predictions(np.asarray(self.logits))
        return bool(has_outputs and self.of_finite_model)

    @property
    def score(self) -> float:
        """Mean score; for classification top-1 accuracy, from 0 to 1. NaN unless the outputs are finite."""
        return self.mean() if self.is_finite else np.nan

    @property
    def further(self) -> dict[str, float]:
        """The further means of the task, by name; NaN unless the outputs are finite."""
        return {name: self.mean(name=name) if self.is_finite else np.nan for name in self.weights if name}

    def mean(self, of: np.ndarray | slice = slice(None), name: str = "") -> float:
        """Returns the mean score of some examples, by default of all; the task's mean of that name, or ``metric``.

        With weights, sums over the examples are divided; NaN if there are none.
        """
        if not self.weights:
            return float(np.mean(self.scores[of]))
        total, weight = (float(np.sum(np.asarray(sums[name])[of])) for sums in (self.weighted, self.weights))
        return total / weight if weight else np.nan

    def domain_scores(self, domains: Domains) -> dict[str, float]:
        """Returns the mean score on each domain's part of the test set.

        NaN for a domain without test examples, and for all of them unless the outputs are finite.
        """
        parts = ((name, domains.test == i) for i, name in enumerate(domains.names))
        is_finite = self.is_finite
        return {name: self.mean(part) if part.any() and is_finite else np.nan for name, part in parts}


@checked
def evaluate(model: Model, variables: Variables, examples: Examples, batch_size: Count = 512) -> Evaluation:
    """Evaluates the model in evaluation mode (running statistics) on every example once.

    Inputs in a NumPy array stay on the host and are sent in blocks; the result is then on the host as well. So it is if
    every token has a label; then batches are of at most 64 sequences.
    """
    batch_size = min(batch_size, len(examples.labels))
    if examples.pad is not None:
        return _evaluate_tokens(model, variables, examples, min(batch_size, _SEQUENCES))
    if isinstance(examples.inputs, np.ndarray):
        return _evaluate_in_blocks(model, variables, examples, batch_size)
    return _evaluate(model, variables, examples, batch_size)


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def _evaluate(model, variables, examples, batch_size):
    count = len(examples.labels)
    *of_examples, losses, sums = _evaluate_batches(model, variables, examples, count, batch_size)
    of_examples = [values[:count] for values in of_examples]
    sums = jax.tree.map(lambda values: values[:count], sums)
    return Evaluation(*of_examples, jnp.sum(losses) / count, all_finite(variables), *sums)


def _evaluate_in_blocks(model, variables, examples, batch_size):
    """Evaluates blocks of whole batches, padded to one size to use one compiled program."""
    count = len(examples.labels)
    batches = -(-count // batch_size)
    size = min(_BATCHES_SENT, batches) * batch_size

    outcomes = [
        jax.device_get(_evaluate_block(model, variables, block, int(is_true.sum()), batch_size))
        for block, is_true in blocks_of(examples, np.arange(count), size)
    ]
    *of_examples, losses, sums = jax.tree.map(lambda *parts: np.concatenate(parts), *outcomes)
    loss = np.sum(losses[:batches]) / count
    of_examples, sums = jax.tree.map(lambda values: values[:count], (of_examples, sums))
    return Evaluation(*of_examples, loss, jax.jit(all_finite)(variables), *sums)


def _evaluate_tokens(model, variables, examples, batch_size):
    """Evaluates batch by batch; stores sums by sequence and the moments of the tokens' features."""
    count, outcomes, moments = len(examples.labels), [], None
    for block, is_true in blocks_of(examples, np.arange(count), batch_size):
        *of_block, features, mask = jax.device_get(_evaluate_sequences(model, variables, block, is_true))
        features = features[mask]
        shift = None if moments is None else moments.shift
        found = class_moments(features, np.zeros(len(features), int), 1, shift=shift)
        moments = found if moments is None else merged(moments, found)
        outcomes.append(of_block)
    sums, losses, targets, are_sound = jax.tree.map(lambda *parts: np.concatenate(parts), *outcomes)
    weights, weighted = jax.tree.map(lambda values: values[:count], sums)
    is_finite = bool(are_sound.all() and jax.jit(all_finite)(variables))
    loss = losses.sum() / max(targets.sum(), 1)
    return Evaluation(weighted[""], None, None, loss, is_finite, weights, weighted, moments)


@functools.partial(jax.jit, static_argnames="model")
def _evaluate_sequences(model, variables, block, mask):
    """Returns sums by sequence; the batch's loss, number of targets and whether it is finite; features and mask."""
    batch = get_batch(block, jnp.arange(len(mask)), mask)
    outputs, _ = model.apply(variables, batch, train=False)
    task, targets = model.task, jnp.sum(batch.mask)
    scores = task.score(outputs, batch)
    weights = {name: task.weights(batch, name) for name in ("", *task.further)}
    weighted = {name: jnp.where(of_rows != 0, of_rows * scores, 0) for name, of_rows in weights.items()}
    sums = jax.tree.map(lambda of_tokens: of_tokens.reshape(len(mask), -1).sum(axis=1), (weights, weighted))
    of_batch = jnp.stack([task.loss(outputs, batch) * targets]), jnp.stack([targets])
    is_finite = jnp.all(are_finite(outputs) | ~batch.mask)
    return sums, *of_batch, jnp.stack([is_finite]), outputs.features, batch.mask


def _evaluate_batches(model, variables, examples, count, batch_size):
    """Returns score, features and logits of every example, in whole batches, every batch's summed loss, and the sums.

    Examples from ``count`` on are ignored. The sums are ``Evaluation.weights`` and ``weighted``.
    """
    stored = len(examples.labels)
    rows = jnp.arange(stored + -stored % batch_size).reshape(-1, batch_size)

    def evaluate_batch(rows):
        batch = get_batch(examples, jnp.minimum(rows, stored - 1), rows < count)
        outputs, _ = model.apply(variables, batch, train=False)
        loss = model.task.loss(outputs, batch) * jnp.sum(batch.mask)
        scores, names = scores_of(model, outputs, batch), ("", *model.task.further) if model.task.parts else ()
        weights = {name: model.task.weights(batch, name) for name in names}
        sums = weights, {name: of_rows * scores for name, of_rows in weights.items()}
        return scores, outputs.features, outputs.logits, loss, sums

    *of_examples, losses, sums = jax.lax.map(evaluate_batch, rows)
    of_examples, sums = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), (of_examples, sums))
    return *of_examples, losses, sums


_evaluate_block = jax.jit(_evaluate_batches, static_argnames=("model", "batch_size"))


def are_finite(outputs: Outputs) -> jax.Array:
    """Returns for every row whether its features and its largest logit are finite."""
    largest = outputs.logits.max(axis=-1) if outputs.logits.ndim > 1 else outputs.logits
    parts = (jnp.isfinite(part).reshape(len(part), -1).all(axis=1) for part in (outputs.features, largest))
    return functools.reduce(jnp.logical_and, parts)


def scores_of(model: Model, outputs: Outputs, batch: Batch) -> jax.Array:
    """Returns the score of every row, 0 for padding."""
    scores = model.task.score(outputs, batch)
    return scores & batch.mask if scores.dtype == bool else jnp.where(batch.mask, scores, 0)
