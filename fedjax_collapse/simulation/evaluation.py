"""Evaluation on a test set: of the server's model, also by domain."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.analysis.confusion import has_predictions
from fedjax_collapse.core.options import Count, checked
from fedjax_collapse.core.records import Batch, Examples, Outputs, Variables
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.data.domains import Domains
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.nn.model import Model

_BATCHES_SENT = 20  # at a time, if the examples are on the host


class Evaluation(NamedTuple):
    """The outputs for every test example, in their order, and the mean loss."""

    scores: jax.Array  # [examples] of the task; for classification whether it is correct, bool; see ``is_finite``
    features: jax.Array  # [examples, features]
    logits: jax.Array  # [examples, classes]
    loss: jax.Array  # in nats, of cross-entropy
    of_finite_model: jax.Array | bool = True  # whether parameters and running statistics are finite

    @property
    def is_finite(self) -> bool:
        """Whether the model, all features, and the largest logit of every example are finite.

        Otherwise ``scores`` are meaningless: the argmax over NaN is the first class.
        """
        has_outputs = np.isfinite(self.features).all() and has_predictions(np.asarray(self.logits))
        return bool(has_outputs and self.of_finite_model)

    @property
    def score(self) -> float:
        """Mean score; for classification top-1 accuracy, from 0 to 1. NaN unless the outputs are finite."""
        return float(np.mean(self.scores)) if self.is_finite else np.nan

    def domain_scores(self, domains: Domains) -> dict[str, float]:
        """Returns the mean score on each domain's part of the test set.

        NaN for a domain without test examples, and for all of them unless the outputs are finite.
        """
        parts = ((name, self.scores[domains.test == i]) for i, name in enumerate(domains.names))
        is_finite = self.is_finite
        return {name: float(np.mean(part)) if len(part) and is_finite else np.nan for name, part in parts}


@checked
def evaluate(model: Model, variables: Variables, examples: Examples, batch_size: Count = 512) -> Evaluation:
    """Evaluates the model in evaluation mode (running statistics) on every example once.

    Inputs in a NumPy array stay on the host and are sent in blocks; the result is then on the host as well.
    """
    batch_size = min(batch_size, len(examples.labels))
    if isinstance(examples.inputs, np.ndarray):
        return _evaluate_in_blocks(model, variables, examples, batch_size)
    return _evaluate(model, variables, examples, batch_size)


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def _evaluate(model, variables, examples, batch_size):
    count = len(examples.labels)
    *of_examples, losses = _evaluate_batches(model, variables, examples, count, batch_size)
    return Evaluation(*(values[:count] for values in of_examples), jnp.sum(losses) / count, all_finite(variables))


def _evaluate_in_blocks(model, variables, examples, batch_size):
    """Evaluates blocks of whole batches, padded to one size so that they share one compiled program."""
    count = len(examples.labels)
    batches = -(-count // batch_size)
    size = min(_BATCHES_SENT, batches) * batch_size

    def evaluate_block(first):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        block = examples._replace(inputs=examples.inputs[rows], labels=np.asarray(examples.labels)[rows])
        return jax.device_get(_evaluate_block(model, variables, block, count - first, batch_size))

    outcomes = [evaluate_block(first) for first in range(0, count, size)]
    *of_examples, losses = (np.concatenate(parts) for parts in zip(*outcomes, strict=True))
    loss = np.sum(losses[:batches]) / count
    return Evaluation(*(values[:count] for values in of_examples), loss, jax.jit(all_finite)(variables))


def _evaluate_batches(model, variables, examples, count, batch_size):
    """Returns score, features and logits of every example, in whole batches, and every batch's summed loss.

    Examples from ``count`` on are ignored.
    """
    stored = len(examples.labels)
    rows = jnp.arange(stored + -stored % batch_size).reshape(-1, batch_size)

    def evaluate_batch(rows):
        batch = get_batch(examples, jnp.minimum(rows, stored - 1), rows < count)
        outputs, _ = model.apply(variables, batch, train=False)
        loss = model.task.loss(outputs, batch) * jnp.sum(batch.mask)
        return scores_of(model, outputs, batch), outputs.features, outputs.logits, loss

    *of_examples, losses = jax.lax.map(evaluate_batch, rows)
    return *(values.reshape(-1, *values.shape[2:]) for values in of_examples), losses


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
