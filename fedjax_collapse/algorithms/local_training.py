"""What a client does in a round: the one local-training loop that all algorithms share."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_collapse.data.batches import get_batch, shuffled_rows
from fedjax_collapse.losses import cross_entropy, masked_mean
from fedjax_collapse.records import (
    Batch,
    Client,
    Examples,
    LocalView,
    Model,
    Outputs,
    PyTree,
    Server,
    Trained,
    UserError,
    Variables,
)
from fedjax_collapse.regularizers.base import option

if TYPE_CHECKING:
    from fedjax_collapse.algorithms.base import Algorithm


def classification(outputs: Outputs, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the true rows: the task of all papers."""
    return cross_entropy(outputs.logits, batch.labels, batch.mask)


@struct.dataclass
class LocalTraining:
    """Hyper-parameters of a client's local training: SGD as in PyTorch, its momentum starting at zero every round.

    ``g = gradient + weight_decay params; buffer <- momentum buffer + g; params <- params - learning_rate buffer``.
    Weight decay acts on all params, biases and BatchNorm scales included. The last batch of an epoch may be partial.
    ``task_loss`` is what the regularizers' terms are added to.
    """

    epochs: int = 1
    batch_size: int = option(32)
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    task_loss: Callable[[Outputs, Batch], jax.Array] = option(classification)

    def check(self) -> None:
        """Raises UserError for values that make no sense."""
        for name, least in (("epochs", 1), ("batch_size", 1), ("momentum", 0), ("weight_decay", 0)):
            if getattr(self, name) < least:
                raise UserError(f"local training: {name} {getattr(self, name)} is too small, expected >= {least}")
        if not self.learning_rate > 0:
            raise UserError(f"local training: learning_rate {self.learning_rate} is not positive")

    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.sgd(self.learning_rate, self.momentum))

    def steps_per_epoch(self, size: jax.Array) -> jax.Array:
        return (size + self.batch_size - 1) // self.batch_size


def train(
    algorithm: "Algorithm", model: Model, examples: Examples, server: Server, round: jax.Array, client: Client
) -> Trained:
    """One client after its epochs of shuffled minibatches, started from the server's variables.

    Every loop bound is the client's own: under vmap, JAX runs to the largest and leaves a finished client untouched.
    """
    training = algorithm.training
    optimizer = training.optimizer()
    batch_size, steps_per_epoch = training.batch_size, training.steps_per_epoch(client.size)
    rows = jnp.pad(client.rows, (0, -len(client.rows) % batch_size))  # so that the last slice is not clamped

    def evaluate_loss(params, batch_stats, batch):
        return _local_loss(algorithm, model, server, round, client, params, batch_stats, batch)

    def step(index, epoch_rows, carry):
        variables, optimizer_state, sums = carry
        first = index * batch_size
        mask = first + jnp.arange(batch_size) < client.size
        batch = get_batch(examples, jax.lax.dynamic_slice_in_dim(epoch_rows, first, batch_size), mask)
        gradient, (batch_stats, metrics) = jax.grad(evaluate_loss, has_aux=True)(*variables, batch)
        gradient = algorithm.correct(gradient, variables.params, server, client.state)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, variables.params)
        variables = Variables(optax.apply_updates(variables.params, updates), batch_stats)
        return variables, optimizer_state, jax.tree.map(lambda s, m: s + m * jnp.sum(mask), sums, metrics)

    def epoch(index, carry):
        epoch_rows = shuffled_rows(jax.random.fold_in(client.key, index), rows, client.size)

        def named_step(i, carry):
            with _failures_named(client.id, index * steps_per_epoch + i):
                return _all_finite(step(i, epoch_rows, carry))

        return jax.lax.fori_loop(0, steps_per_epoch, named_step, carry)

    variables = server.variables
    batch = get_batch(examples, rows[:batch_size], jnp.ones(batch_size, bool))
    _, (_, metrics) = jax.eval_shape(evaluate_loss, *variables, batch)
    sums = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), metrics)
    carry = (variables, optimizer.init(variables.params), sums)
    variables, _, sums = jax.lax.fori_loop(0, training.epochs, epoch, carry)
    return Trained(
        variables=variables,
        steps=training.epochs * steps_per_epoch,
        metrics=jax.tree.map(lambda s: s / (training.epochs * client.size), sums),
    )


def _local_loss(algorithm, model, server, round, client, params, batch_stats, batch):
    """Cross-entropy plus every regularizer's terms; also the new running statistics and every term by name."""
    outputs, batch_stats = model.apply(Variables(params, batch_stats), batch, train=True)
    loss = algorithm.training.task_loss(outputs, batch)
    is_correct = jnp.argmax(outputs.logits, axis=1) == batch.labels
    metrics = {"task_loss": loss, "accuracy": masked_mean(is_correct.astype(loss.dtype), batch.mask)}
    for name, regularizer in algorithm.regularizers.items():
        view = LocalView(
            params=params,
            outputs=outputs,
            batch=batch,
            server=server.variables,
            shared=server.shared[name],
            memory=client.state.memory[name],
            round=round,
            forward=lambda variables: model.apply(variables, batch, train=False)[0],
        )
        for term_name, term in regularizer.penalty(view).items():
            loss = loss + term.strength * term.value
            metrics[f"{name}/{term_name}"] = term.value
    return loss, (batch_stats, metrics)


def sum_over_data(
    batch_size: int,
    model: Model,
    examples: Examples,
    client: Client,
    variables: Variables,
    summarize: Callable[[Outputs, Batch], PyTree],
) -> PyTree:
    """Sum over the client's batches of ``summarize(outputs, batch)``, in evaluation mode, every row once."""
    rows = jnp.pad(client.rows, (0, -len(client.rows) % batch_size))

    def summarize_batch(index):
        first = index * batch_size
        mask = first + jnp.arange(batch_size) < client.size
        batch = get_batch(examples, jax.lax.dynamic_slice_in_dim(rows, first, batch_size), mask)
        return summarize(model.apply(variables, batch, train=False)[0], batch)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(summarize_batch, 0))
    return jax.lax.fori_loop(
        0,
        -(-client.size // batch_size),
        lambda i, total: jax.tree.map(jnp.add, total, summarize_batch(i)),
        zeros,
    )


@contextlib.contextmanager
def _failures_named(client_id: jax.Array, step: jax.Array):
    """Adds client and step to whatever goes wrong inside; their numbers are known only where nothing is compiled."""
    try:
        yield
    except Exception as error:
        if not isinstance(step, jax.core.Tracer):
            error.add_note(f"in local step {int(step)} of client {int(client_id)}")
        raise


def _all_finite(carry):
    """The carry, unchanged; outside compiled code, FloatingPointError if a loss term or parameter is not finite."""
    variables, _, sums = carry
    named = {**sums, **{jax.tree_util.keystr(k): v for k, v in jax.tree.leaves_with_path(variables.params)}}
    for name, value in named.items():
        if not isinstance(value, jax.core.Tracer) and not bool(jnp.isfinite(value).all()):
            raise FloatingPointError(f"{name} is not finite")
    return carry
