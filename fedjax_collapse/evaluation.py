"""Evaluation on a test set: of the server's model, by domain, and of personal models on their own test sets."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data.batches import get_batch, sum_batches
from fedjax_collapse.data.federation import Domains
from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.records import Batch, ClientState, Examples, Model, Outputs, Ownership, Server, Variables

_BATCHES_SENT = 20  # at a time, of examples that lie on the host


class Evaluation(NamedTuple):
    """Of every test example, in their order, and the mean cross-entropy over them (nats)."""

    is_correct: jax.Array  # [examples] bool
    features: jax.Array  # [examples, features]
    loss: jax.Array

    @property
    def accuracy(self) -> float:
        """Top-1, from 0 to 1."""
        return float(np.mean(self.is_correct))

    def domain_accuracies(self, domains: Domains) -> dict[str, float]:
        """Accuracy on each domain's part of the test set; NaN for a domain without test examples."""
        parts = ((name, self.is_correct[domains.test == i]) for i, name in enumerate(domains.names))
        return {name: float(np.mean(part)) if len(part) else np.nan for name, part in parts}


def evaluate(model: Model, variables: Variables, examples: Examples, batch_size: int = 512) -> Evaluation:
    """The model in evaluation mode (running statistics) on every example once.

    Images in a NumPy array stay on the host and are sent block by block; the result is then on the host as well.
    """
    batch_size = min(batch_size, len(examples.labels))
    if isinstance(examples.images, np.ndarray):
        return _evaluate_in_blocks(model, variables, examples, batch_size)
    return _evaluate(model, variables, examples, batch_size)


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def _evaluate(model, variables, examples, batch_size):
    count = len(examples.labels)
    is_correct, features, losses = _evaluate_batches(model, variables, examples, count, batch_size)
    return Evaluation(is_correct[:count], features[:count], jnp.sum(losses) / count)


def _evaluate_in_blocks(model, variables, examples, batch_size):
    """All blocks are padded to one size, so that they share one compiled program, and hold whole batches."""
    count = len(examples.labels)
    batches = -(-count // batch_size)
    size = min(_BATCHES_SENT, batches) * batch_size

    def evaluate_block(first):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        block = examples._replace(images=examples.images[rows], labels=np.asarray(examples.labels)[rows])
        return jax.device_get(_evaluate_block(model, variables, block, count - first, batch_size))

    outcomes = [evaluate_block(first) for first in range(0, count, size)]
    is_correct, features, losses = (np.concatenate(parts) for parts in zip(*outcomes, strict=True))
    return Evaluation(is_correct[:count], features[:count], np.sum(losses[:batches]) / count)


def _evaluate_batches(model, variables, examples, count, batch_size):
    """Of every example, in whole batches, whether it is correct and its features; and every batch's summed loss.

    Examples from ``count`` on are ignored.
    """
    stored = len(examples.labels)
    rows = jnp.arange(stored + -stored % batch_size).reshape(-1, batch_size)

    def evaluate_batch(rows):
        batch = get_batch(examples, jnp.minimum(rows, stored - 1), rows < count)
        outputs, _ = model.apply(variables, batch, train=False)
        loss = cross_entropy(outputs.logits, batch.labels, batch.mask) * jnp.sum(batch.mask)
        return _is_correct(outputs, batch), outputs.features, loss

    is_correct, features, losses = jax.lax.map(evaluate_batch, rows)
    return is_correct.ravel(), features.reshape(-1, features.shape[-1]), losses


_evaluate_block = jax.jit(_evaluate_batches, static_argnames=("model", "batch_size"))


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def personal_accuracies(
    algorithm: Algorithm,
    model: Model,
    server: Server,
    clients: ClientState,
    examples: Examples,
    own_tests: Ownership,
    batch_size: int = 128,
) -> jax.Array:
    """Accuracy [clients] of every client's personal model on its own test set, NaN where that is empty.

    ``clients`` are all of them, stacked. All arguments lie on the device as a whole, the examples too.
    """
    server = server._replace(variables=algorithm.evaluated(server))

    def accuracy(client):
        state, rows, size = client
        variables = base.personal(algorithm, server, state)

        def count_correct(batch):
            return jnp.sum(_is_correct(model.apply(variables, batch, train=False)[0], batch))

        return sum_batches(batch_size, examples, rows, size, count_correct) / size

    return jax.lax.map(accuracy, (clients, own_tests.rows, own_tests.sizes))


def _is_correct(outputs: Outputs, batch: Batch) -> jax.Array:
    return (jnp.argmax(outputs.logits, axis=1) == batch.labels) & batch.mask
