"""What a client does in a round: the one local-training loop that all algorithms share."""

import contextlib
import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse import selection
from fedjax_collapse.data.batches import get_batch, over_batches, pad_to_batches, shuffled_rows, zeros_of
from fedjax_collapse.losses import masked_mean
from fedjax_collapse.records import Client, Examples, LocalView, Model, Server, Trained, Variables

if TYPE_CHECKING:
    from fedjax_collapse.algorithms.base import Algorithm


_AUGMENTATION = 2**31 - 1  # stream of randomness within an epoch; the others are its steps


def train(
    algorithm: "Algorithm",
    model: Model,
    examples: Examples,
    server: Server,
    round: jax.Array,
    client: Client,
    batch_parts: int = 1,
) -> Trained:
    """One client after its epochs of shuffled minibatches, started from the server's variables.

    Every loop bound is the client's own: under vmap, JAX runs to the largest and leaves a finished client untouched.
    ``batch_parts``: into how many parts a batch is cut, so that one whose true rows fit into fewer costs no more than
    those; only without vmap, which would run all cases.
    """
    training = algorithm.training
    optimizer = training.optimizer(round)
    direct = functools.partial(_direct, algorithm, server, client)
    freeze = training.untrained(server.variables)
    batch_size, steps_per_epoch = training.batch_size, training.steps_per_epoch(client.size)
    rows = pad_to_batches(client.rows, batch_size)
    context = _Context(
        algorithm, model, server, round, client, _class_counts(model, examples, client, server.variables)
    )
    augmentation = training.augmentation
    tables = {} if augmentation else _run_frozen(context, examples)

    def get_local_batch(positions, mask, key):
        batch = get_batch(examples, rows[positions], mask, augmentation, key)
        if augmentation:
            return batch, _frozen_outputs(context, batch)
        return batch, jax.tree.map(lambda leaf: leaf[positions], tables)

    @functools.partial(jax.jit, static_argnums=0, inline=True)  # traced once, for its shapes and in the loop
    def differentiate(num_rows, variables, index, order, key):
        first = index * batch_size
        mask = first + jnp.arange(num_rows) < client.size
        positions = jax.lax.dynamic_slice_in_dim(order, first, num_rows)
        batch, frozen_outputs = get_local_batch(positions, mask, jax.random.fold_in(key, _AUGMENTATION))
        loss = functools.partial(_local_loss, context, batch, frozen_outputs, jax.random.fold_in(key, index))
        gradient, (batch_stats, metrics) = jax.grad(loss, has_aux=True)(*variables)
        return gradient, batch_stats, jax.tree.map(lambda m: m * jnp.sum(mask), metrics)

    def step(index, order, key, carry):
        variables, optimizer_state, sums = carry
        inputs = (variables, index, order, key)
        part = -(-batch_size // batch_parts)
        num_parts = (client.size - index * batch_size + part - 1) // part
        branches = [
            functools.partial(differentiate, min(count * part, batch_size)) for count in range(1, batch_parts + 1)
        ]
        gradient, batch_stats, metrics = jax.lax.switch(num_parts - 1, branches, *inputs)  # no branch if there is one
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
                return _all_finite(step(jnp.asarray(i, dtype), order, key_steps, carry))

        return jax.lax.fori_loop(0, steps_per_epoch, named_step, carry)

    variables, dtype = server.variables, client.size.dtype
    order, first = jnp.arange(len(rows)), jnp.zeros((), dtype)
    sums = zeros_of(jax.eval_shape(differentiate, batch_size, variables, first, order, client.key)[2])
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
    freeze = training.untrained(server.variables).params
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
    outputs, batch_stats = context.model.apply(Variables(params, batch_stats), batch, train=True, key=key)
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
    """``_frozen_outputs`` on all of the client's rows; without augmentation they stay the same over all epochs."""
    client, batch_size = context.client, context.algorithm.training.batch_size
    count = len(pad_to_batches(client.rows, batch_size))

    def write(first, batch, tables):
        outputs = _frozen_outputs(context, batch)
        return jax.tree.map(lambda t, o: jax.lax.dynamic_update_slice_in_dim(t, o, first, 0), tables, outputs)

    batch = get_batch(examples, client.rows[:1], jnp.ones(1, bool))
    shapes = jax.eval_shape(functools.partial(_frozen_outputs, context), batch)
    tables = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), shapes)
    if not jax.tree.leaves(tables):
        return tables
    return over_batches(batch_size, examples, client.rows, client.size, write, tables)


def _frozen_outputs(context, batch):
    """For each regularizer, the outputs of the models that it asked for."""
    outputs = {}
    for name, regularizer in context.algorithm.regularizers.items():
        asked = (context.server.variables, context.server.shared[name], context.client.state.memory[name])
        models = regularizer.frozen(*asked)
        outputs[name] = {key: context.model.apply(model, batch, train=False)[0] for key, model in models.items()}
    return outputs


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
