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


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def evaluate(model: Model, variables: Variables, examples: Examples, batch_size: int = 512) -> Evaluation:
    """The model in evaluation mode (running statistics) on every example once."""
    count = len(examples.labels)
    batch_size = min(batch_size, count)
    rows = jnp.arange(count + -count % batch_size).reshape(-1, batch_size)

    def evaluate_batch(rows):
        batch = get_batch(examples, jnp.minimum(rows, count - 1), rows < count)
        outputs, _ = model.apply(variables, batch, train=False)
        loss = cross_entropy(outputs.logits, batch.labels, batch.mask) * jnp.sum(batch.mask)
        return _is_correct(outputs, batch), outputs.features, loss

    is_correct, features, loss = jax.lax.map(evaluate_batch, rows)
    features = features.reshape(-1, features.shape[-1])[:count]
    return Evaluation(is_correct.ravel()[:count], features, jnp.sum(loss) / count)


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

    ``clients`` are all of them, stacked.
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
