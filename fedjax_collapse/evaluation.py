"""Evaluation of a model on a test set: accuracy, loss and the features whose spectrum is studied."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.records import Examples, Model, Variables


class Evaluation(NamedTuple):
    """Top-1 accuracy (0 to 1), mean cross-entropy (nats), and the features [examples, features]."""

    accuracy: jax.Array
    loss: jax.Array
    features: jax.Array


@functools.partial(jax.jit, static_argnames=("model", "batch_size"))
def evaluate(model: Model, variables: Variables, examples: Examples, batch_size: int = 512) -> Evaluation:
    """The model in evaluation mode (running statistics) on every example once."""
    count = len(examples.labels)
    batch_size = min(batch_size, count)
    rows = jnp.arange(count + -count % batch_size).reshape(-1, batch_size)

    def evaluate_batch(rows):
        batch = get_batch(examples, jnp.minimum(rows, count - 1), rows < count)
        outputs, _ = model.apply(variables, batch, train=False)
        is_correct = (jnp.argmax(outputs.logits, axis=1) == batch.labels) & batch.mask
        loss = cross_entropy(outputs.logits, batch.labels, batch.mask) * jnp.sum(batch.mask)
        return jnp.sum(is_correct), loss, outputs.features

    num_correct, loss, features = jax.lax.map(evaluate_batch, rows)
    features = features.reshape(-1, features.shape[-1])[:count]
    return Evaluation(jnp.sum(num_correct) / count, jnp.sum(loss) / count, features)
