"""What a client does in a round: the one local-training loop that all algorithms share."""

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_collapse import selection
from fedjax_collapse.data.batches import get_batch, over_batches, padded_rows, shuffled_rows, zeros_of
from fedjax_collapse.losses import cross_entropy, masked_mean
from fedjax_collapse.records import (
    Batch,
    Client,
    Examples,
    LocalView,
    Model,
    Outputs,
    Scalar,
    Server,
    Trained,
    UserError,
    Variables,
)
from fedjax_collapse.regularizers.base import check_options, option

if TYPE_CHECKING:
    from fedjax_collapse.algorithms.base import Algorithm


def classification(outputs: Outputs, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the true rows: the task of all papers."""
    return cross_entropy(outputs.logits, batch.labels, batch.mask)


@struct.dataclass
class LocalTraining:
    """Hyper-parameters of a client's local training: SGD as in PyTorch, its momentum starting at zero every round.

    ``g = gradient + weight_decay params; buffer <- momentum buffer + g; params <- params - learning_rate buffer``.
    Weight decay acts on all params, biases and BatchNorm scales included.

    ``task_loss``: what the regularizers' terms are added to.
    ``clip_norm``: largest norm of the gradient over all params, as ``torch.nn.utils.clip_grad_norm_``; None is none.
    ``drop_last``: leave out an epoch's last partial batch. A client with fewer examples than a batch then takes no
    step and uploads what it got.
    ``schedule``: of the learning rate over rounds t = 0, 1, ...: ``cosine`` is times ``(1 + cos(pi t /
    schedule_rounds)) / 2``, ``decay`` is times ``schedule_factor^t``.
    ``freeze``: the part of the network that keeps its initial value, at clients and server (``selection.py``).
    """

    epochs: int = 1
    batch_size: int = option(32)
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    task_loss: Callable[[Outputs, Batch], jax.Array] = option(classification)
    clip_norm: float | None = None
    drop_last: bool = option(False)
    schedule: str = option("constant", choices=("constant", "cosine", "decay"))
    schedule_rounds: int = 100
    schedule_factor: float = 0.998
    freeze: str = option("none", choices=("none", "head"))

    def check(self) -> None:
        """Raises UserError for values that make no sense."""
        check_options(self)
        for name, least in (("epochs", 1), ("batch_size", 1), ("momentum", 0), ("weight_decay", 0)):
            if getattr(self, name) < least:
                raise UserError(f"local training: {name} {getattr(self, name)} is too small, expected >= {least}")
        if not self.learning_rate > 0:
            raise UserError(f"local training: learning_rate {self.learning_rate} is not positive")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"local training: clip_norm {self.clip_norm} is not positive; None is no clipping")
        if self.schedule == "cosine" and self.schedule_rounds < 1:
            raise UserError(f"local training: schedule_rounds {self.schedule_rounds} is too small, expected >= 1")
        if self.schedule == "decay" and not self.schedule_factor > 0:
            raise UserError(f"local training: schedule_factor {self.schedule_factor} is not positive")

    def optimizer(self, round: Scalar = 0) -> optax.GradientTransformation:
        sgd = optax.sgd(self.learning_rate_in(round), self.momentum)
        return optax.chain(optax.add_decayed_weights(self.weight_decay), sgd)

    def learning_rate_in(self, round: Scalar) -> Scalar:
        """The learning rate of a round."""
        if self.schedule == "cosine":
            return self.learning_rate * (1 + jnp.cos(jnp.pi * round / self.schedule_rounds)) / 2
        if self.schedule == "decay":
            return self.learning_rate * self.schedule_factor**round
        return self.learning_rate

    def steps_per_epoch(self, size: jax.Array) -> jax.Array:
        return (size if self.drop_last else size + self.batch_size - 1) // self.batch_size

    def examples_per_epoch(self, size: jax.Array) -> jax.Array:
        """How many of a client's examples it sees in an epoch."""
        return self.steps_per_epoch(size) * self.batch_size if self.drop_last else size


def train(
    algorithm: "Algorithm",
    model: Model,
    examples: Examples,
    server: Server,
    round: jax.Array,
    client: Client,
    halve_short_batches: bool = False,
) -> Trained:
    """One client after its epochs of shuffled minibatches, started from the server's variables.

    Every loop bound is the client's own: under vmap, JAX runs to the largest and leaves a finished client untouched.
    ``halve_short_batches``: a batch whose true rows fit into half of it costs half; only without vmap, which would run
    both cases.
    """
    training = algorithm.training
    halve_short_batches = halve_short_batches and training.batch_size > 1 and not training.drop_last
    optimizer = training.optimizer(round)
    direct = functools.partial(_direct, algorithm, server, client)
    freeze = selection.part(training.freeze, server.variables)
    batch_size, steps_per_epoch = training.batch_size, training.steps_per_epoch(client.size)
    rows = padded_rows(client, batch_size)
    context = _Context(
        algorithm, model, server, round, client, _class_counts(model, examples, client, server.variables)
    )
    frozen = _run_frozen(context, examples)

    def get_local_batch(positions, mask):
        batch = get_batch(examples, rows[positions], mask)
        return batch, jax.tree.map(lambda leaf: leaf[positions], frozen)

    def differentiate(num_rows, variables, index, order, key):
        first = index * batch_size
        mask = first + jnp.arange(num_rows) < client.size
        batch, frozen_outputs = get_local_batch(jax.lax.dynamic_slice_in_dim(order, first, num_rows), mask)
        loss = functools.partial(_local_loss, context, batch, frozen_outputs, jax.random.fold_in(key, index))
        gradient, (batch_stats, metrics) = jax.grad(loss, has_aux=True)(*variables)
        return gradient, batch_stats, jax.tree.map(lambda m: m * jnp.sum(mask), metrics)

    def step(index, order, key, carry):
        variables, optimizer_state, sums = carry
        inputs = (variables, index, order, key)
        if halve_short_batches:
            is_short = client.size - index * batch_size <= batch_size // 2
            branches = (functools.partial(differentiate, n) for n in (batch_size // 2, batch_size))
            gradient, batch_stats, metrics = jax.lax.cond(is_short, *branches, *inputs)
        else:
            gradient, batch_stats, metrics = differentiate(batch_size, *inputs)
        gradient = direct(gradient, variables.params)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, variables.params)
        params = selection.choose(freeze.params, variables.params, optax.apply_updates(variables.params, updates))
        variables = Variables(params, batch_stats)
        return variables, optimizer_state, jax.tree.map(jnp.add, sums, metrics)

    def epoch(index, carry):
        key_order, key_steps = jax.random.split(jax.random.fold_in(client.key, index))
        order = shuffled_rows(key_order, jnp.arange(len(rows)), client.size)

        def named_step(i, carry):
            with _failures_named(client.id, index * steps_per_epoch + i):
                return _all_finite(step(i, order, key_steps, carry))

        return jax.lax.fori_loop(0, steps_per_epoch, named_step, carry)

    variables = server.variables
    example = get_local_batch(jnp.arange(batch_size), jnp.ones(batch_size, bool))
    loss = functools.partial(_local_loss, context, *example, client.key)
    sums = zeros_of(jax.eval_shape(loss, *variables)[1][1])
    carry = (variables, optimizer.init(variables.params), sums)
    variables, _, sums = jax.lax.fori_loop(0, training.epochs, epoch, carry)
    return Trained(
        variables=variables,
        steps=training.epochs * steps_per_epoch,
        learning_rate=training.learning_rate_in(round),
        metrics=jax.tree.map(lambda s: s / (training.epochs * training.examples_per_epoch(client.size)), sums),
    )


def _direct(algorithm, server, client, gradient, params):
    """The gradient that the optimizer sees: corrected by the algorithm, then clipped.

    What is frozen counts for nothing in the norm, and what is private to the client is not the algorithm's to correct.
    """
    training = algorithm.training
    private = selection.part(algorithm.private, server.variables).params
    freeze = selection.part(training.freeze, server.variables).params
    corrected = selection.choose(private, gradient, algorithm.correct(gradient, params, server, client))
    if training.clip_norm is not None:
        heard = jax.tree.map(lambda g, is_frozen: jnp.zeros_like(g) if is_frozen else g, corrected, freeze)
        scale = jnp.minimum(training.clip_norm / (optax.tree.norm(heard) + 1e-6), 1)
        corrected = jax.tree.map(lambda g: scale * g, corrected)
    strength = algorithm.decay(client)
    if strength is not None:
        decayed = jax.tree.map(lambda g, w: g + strength * w, corrected, params)
        corrected = selection.choose(private, corrected, decayed)
    return corrected


class _Context(NamedTuple):
    """What stays the same over all steps of one client in one round."""

    algorithm: "Algorithm"
    model: Model
    server: Server
    round: jax.Array
    client: Client
    class_counts: jax.Array


def _local_loss(context, batch, frozen, key, params, batch_stats):
    """The task's loss plus every regularizer's terms; also the new running statistics and every term by name."""
    outputs, batch_stats = context.model.apply(Variables(params, batch_stats), batch, train=True)
    loss = context.algorithm.training.task_loss(outputs, batch)
    is_correct = jnp.argmax(outputs.logits, axis=1) == batch.labels
    metrics = {"task_loss": loss, "accuracy": masked_mean(is_correct.astype(loss.dtype), batch.mask)}
    for name, regularizer in context.algorithm.regularizers.items():
        view = LocalView(
            params=params,
            outputs=outputs,
            batch=batch,
            server=context.server.variables,
            shared=context.server.shared[name],
            memory=context.client.state.memory[name],
            round=context.round,
            class_counts=context.class_counts,
            frozen=frozen[name],
            key=key,
        )
        for term_name, term in regularizer.penalty(view).items():
            loss = loss + term.strength * term.value
            metrics[f"{name}/{term_name}"] = term.value
    return loss, (batch_stats, metrics)


def _class_counts(model, examples, client, variables):
    """Examples of each class that the client owns, [classes]."""
    is_owned = jnp.arange(len(client.rows)) < client.size
    counts = jnp.zeros(model.output_shapes(variables).logits.shape[1], jnp.int32)
    return counts.at[examples.labels[client.rows]].add(is_owned)


def _run_frozen(context, examples):
    """For each regularizer, the outputs of the models that it asked for on all of the client's rows."""
    client, batch_size = context.client, context.algorithm.training.batch_size
    tables = {}
    for name, regularizer in context.algorithm.regularizers.items():
        asked = (context.server.variables, context.server.shared[name], client.state.memory[name])
        tables[name] = {}
        for key, variables in regularizer.frozen(*asked).items():

            def write(first, batch, table, variables=variables):
                outputs = context.model.apply(variables, batch, train=False)[0]
                return jax.tree.map(lambda t, o: jax.lax.dynamic_update_slice_in_dim(t, o, first, 0), table, outputs)

            shapes = context.model.output_shapes(variables)
            count = len(padded_rows(client, batch_size))
            table = jax.tree.map(lambda s, count=count: jnp.zeros((count, *s.shape[1:]), s.dtype), shapes)
            tables[name][key] = over_batches(batch_size, examples, client, write, table)
    return tables


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
