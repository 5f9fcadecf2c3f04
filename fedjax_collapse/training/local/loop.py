"""The local training loop: phases of epochs of steps on shuffled minibatches."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.loops import repeat, repeat_for_all
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import EPOCH, OPTIMIZER, Batch, Key, PyTree, Trained, Variables
from fedjax_collapse.data.batches import (
    count_tokens,
    cut_tokens,
    get_batch,
    over_batches,
    pad_to_batches,
    shuffled_rows,
    token_rows,
    zeros_of,
)
from fedjax_collapse.methods.base import RoundView
from fedjax_collapse.nn.places import rows_at
from fedjax_collapse.optim.local_training import divide
from fedjax_collapse.training.local.context import LocalContext
from fedjax_collapse.training.local.gradient import correct, frozen_outputs, gradient_and_metrics

Trainee = tuple[Variables, dict[str, PyTree]]  # the values that a step changes: the model, and the methods' carries

_SHOWN = 3  # the number of names in a message


class NotFinite(FloatingPointError):
    """A loss term or a parameter is not finite after a step; raised only if nothing is compiled.

    Args:
        what: names the values, with a verb.
        where: round, client and step, each from 0.
        variables: the model before the step.
        batch: the batch of the step.
    """

    def __init__(self, what: str, where: tuple[int, int, int], variables: Variables, batch: Batch):
        super().__init__(f"{what} not finite")
        self.what, self.where, self.variables, self.batch = what, where, variables, batch


def train(context: LocalContext) -> Trained:
    """Returns one client after its local training, which starts from ``context.start``, or the server's variables.

    Every loop bound is of one client: under vmap, JAX runs to the largest bound and leaves finished clients untouched.
    """
    variables = context.server.variables if context.start is None else context.start
    starting = context.algorithm.having("init_carry").items()
    carries = {name: method.init_carry(RoundView(**context.view_fields(name))) for name, method in starting}
    epoch, optimizer_state = 0, ()
    tables = {} if context.training.augmentation else _frozen_tables(context)
    sums = []
    for part, steps in context.training.phase_steps(context.client.size, context.client.budget):
        phase = _Phase(context, part, variables.params, tables)
        (variables, carries), epoch, optimizer_state, of_phase = phase.run((variables, carries), steps, epoch)
        sums.append((steps, *of_phase))
    steps, total, by_epoch = jax.tree.map(lambda *values: functools.reduce(jnp.add, values), *sums)
    metrics = _means(total)
    for number in range(context.training.logged_epochs):
        of_epoch = _means(jax.tree.map(lambda leaf, i=number: leaf[i], by_epoch))
        metrics |= {f"{EPOCH}{number + 1}/{name}": mean for name, mean in of_epoch.items()}
    return Trained(
        variables=variables,
        steps=steps,
        learning_rate=context.training.learning_rate_in(context.round),
        metrics=metrics,
        carries=carries,
        optimizer=optimizer_state,
    )


class _Phase:
    """Steps that train one part of the network, with a fresh optimizer or the client's stored one.

    Params that are not trained are no part of the loops' state, so that all clients share them. The tree of the params
    that change in a step has None in their place.
    """

    def __init__(self, context: LocalContext, part: str, start: PyTree, tables: PyTree):
        self.context, self.tables, self.training, self.client = context, tables, context.training, context.client
        self.start = start
        frozen = context.model.mask(self.training.frozen_part())
        self.not_trained = masks.union(frozen, masks.invert(context.model.mask(part))).params
        self.optimizer = self.training.make_optimizer(context.round)
        self.rows = pad_to_batches(self.client.rows, self.training.batch_size)
        self.cuts_tokens = context.batch_parts > 1 and context.examples.pad is not None
        self.most_rows = self.training.batch_size * (context.examples.labels.shape[1] if self.cuts_tokens else 1)
        # traced once, both for its shapes and in the loop
        self.differentiate = jax.jit(self._differentiate, static_argnums=0, inline=True)

    def run(
        self, trained: Trainee, steps: jax.Array, first_epoch: jax.Array | int
    ) -> tuple[Trainee, jax.Array, PyTree, tuple[PyTree, PyTree]]:
        """Returns the trained params and carries after the steps, the next epoch, the optimizer's state and sums.

        Sums are of examples seen and of metrics, over all steps and by epoch.
        """
        per_epoch, size = self.training.steps_per_epoch(self.client.size), self.client.size
        num_epochs = divide(steps + per_epoch - 1, jnp.maximum(per_epoch, 1))

        def epoch(index, carry):
            key_order, key_steps = jax.random.split(jax.random.fold_in(self.client.key, first_epoch + index))
            order = shuffled_rows(key_order, jnp.arange(len(self.rows)), size)

            def step(i, carry):
                count, number = index * per_epoch + i, jnp.asarray(i, size.dtype)
                with _naming_step(self.client.id, count):
                    new = self.step(number, order, key_steps, first_epoch + index, carry)
                    if what := _not_finite(new):
                        where = int(self.context.round), int(self.client.id), int(count)
                        batch, _ = self._get_batch(self.most_rows, number, order, key_steps)
                        raise NotFinite(what, where, self.whole(carry[0][0]), batch)
                    return new

            left = jnp.where(index < num_epochs, steps - index * per_epoch, 0)  # other clients may have more epochs
            return repeat(jnp.minimum(per_epoch, left), step, carry)

        (variables, carries), first = trained, jnp.zeros((), size.dtype)
        trained = variables._replace(params=masks.without(self.not_trained, variables.params)), carries
        arguments = trained, first, jnp.arange(len(self.rows)), self.client.key
        self.shapes = jax.eval_shape(self.differentiate, self.most_rows, *arguments)
        total = zeros_of(self.shapes[2])
        logged = self.training.logged_epochs
        by_epoch = jax.tree.map(lambda zero: jnp.zeros(logged, zero.dtype), total) if logged else ()
        if self.training.momentum_reset:
            optimizer_state = self.optimizer.init(trained[0].params)
        else:
            optimizer_state = self.client.state.memory[OPTIMIZER]
        carry = trained, optimizer_state, (total, by_epoch)
        (variables, carries), optimizer_state, sums = repeat_for_all(num_epochs, epoch, carry)
        trained = self.whole(variables), carries
        return trained, first_epoch + num_epochs, optimizer_state, sums

    def step(self, index: jax.Array, order: jax.Array, key: Key, epoch: jax.Array, carry: PyTree) -> PyTree:
        """Returns trained params and carries, optimizer state and sums after a step.

        A batch of few examples, or tokens, costs no more than the parts that it fills.
        """
        trained, state, (total, by_epoch) = carry
        params, parts = trained[0].params, max(self.context.batch_parts, 1)
        part = -(-self.most_rows // parts)
        num_parts = divide(self._count_rows(index, order) + part - 1, part)
        sizes = [min(count * part, self.most_rows) for count in range(1, parts + 1)]
        branches = [functools.partial(self.differentiate, size) for size in sizes]
        if self.context.batch_parts == 1:  # a second one, which no step takes: one alone would not be a branch
            num_parts, branches = num_parts + 1, [lambda *_: zeros_of(self.shapes), *branches]
        outcome = jax.lax.switch(num_parts - 1, branches, trained, index, order, key)
        gradient, (batch_stats, carries), metrics = outcome
        gradient = correct(self.context, gradient, masks.fill(params, self.start), self.not_trained)
        updates, state = self.optimizer.update(masks.without(self.not_trained, gradient), state, params)
        params = optax.apply_updates(params, updates)
        if by_epoch:
            by_epoch = jax.tree.map(lambda logged, m: logged.at[epoch].add(m, mode="drop"), by_epoch, metrics)
        trained = Variables(params, batch_stats), carries
        return trained, state, (jax.tree.map(jnp.add, total, metrics), by_epoch)

    def _differentiate(self, num_rows, trained, index, order, key):
        """Returns a batch's gradient, its running statistics with next carries, and its sums.

        The batch has ``num_rows`` examples, or tokens. Sums are the number of true rows, and the metrics times this
        number.
        """
        (variables, carries), (batch, frozen) = trained, self._get_batch(num_rows, index, order, key)
        key, context = jax.random.fold_in(key, index), self.context._replace(carries=carries)
        outcome = gradient_and_metrics(context, self.whole(variables), batch, frozen, key, self.not_trained)
        gradient, batch_stats, metrics, carries = outcome
        metrics = metrics if context.has_metrics else {}
        rows = jnp.sum(batch.mask, dtype=self.client.size.dtype)
        return gradient, (batch_stats, carries), (rows, jax.tree.map(lambda m: m * rows, metrics))

    def whole(self, variables: Variables) -> Variables:
        """Returns the variables with the params that are not trained."""
        return variables._replace(params=masks.fill(variables.params, self.start))

    def _count_rows(self, index, order):
        """Returns how many examples a step's batch has, or how many tokens it needs."""
        if not self.cuts_tokens:
            return self.client.size - index * self.training.batch_size
        positions, mask = self._positions(self.training.batch_size, index, order)
        return count_tokens(self.context.examples, self.rows[positions], mask)

    def _positions(self, count, index, order):
        """Returns the indices [count] of a step's examples, and whether they are true (not padding)."""
        first = index * self.training.batch_size
        return jax.lax.dynamic_slice_in_dim(order, first, count), first + jnp.arange(count) < self.client.size

    def _get_batch(self, num_rows, index, order, key):
        """Returns a step's batch with ``num_rows`` examples, or tokens, and the frozen outputs on it."""
        context, augmentation = self.context, self.training.augmentation
        count = self.training.batch_size if self.cuts_tokens else num_rows
        positions, mask = self._positions(count, index, order)
        key, views = Stream.AUGMENTATION.key(key), context.model.task.views
        batch = get_batch(context.examples, self.rows[positions], mask, augmentation, key, views)
        length = len(batch.mask) // count
        batch = context.batch(cut_tokens(batch, num_rows) if self.cuts_tokens else batch)
        if augmentation:
            return batch, frozen_outputs(context, batch)
        positions = rows_at(token_rows(positions, length), batch.places)
        return batch, jax.tree.map(lambda leaf: leaf[positions], self.tables)


def _means(sums):
    examples, metrics = sums
    return {name: total / examples for name, total in metrics.items()}


def _frozen_tables(context):
    """Returns ``frozen_outputs`` on all of the client's rows; without augmentation they are the same in every epoch."""
    client, batch_size = context.client, context.training.batch_size
    count = len(pad_to_batches(client.rows, batch_size))

    def write(first, batch, tables):
        outputs = frozen_outputs(context, context.batch(batch))
        first = first * length if length > 1 else first
        return jax.tree.map(lambda t, o: jax.lax.dynamic_update_slice_in_dim(t, o, first, 0), tables, outputs)

    batch = get_batch(context.examples, client.rows[:1], jnp.ones(1, bool))
    length = len(batch.mask)  # tokens of an example; 1 without labels of tokens
    shapes = jax.eval_shape(functools.partial(frozen_outputs, context), batch)
    tables = jax.tree.map(lambda s: jnp.zeros((count * length, *s.shape[1:]), s.dtype), shapes)
    if not jax.tree.leaves(tables):
        return tables
    return over_batches(batch_size, context.examples, client.rows, client.size, write, tables)


@contextlib.contextmanager
def _naming_step(client_id: jax.Array, step: jax.Array):
    """Adds client and step to any exception raised in its body; their numbers are known only if nothing is compiled."""
    try:
        yield
    except Exception as error:
        if not is_traced(step):
            error.add_note(f"in local step {int(step)} of client {int(client_id)}")
        raise


def _not_finite(carry):
    """Returns the names of terms of the loss, or else of params, that are not finite; "" in compiled code."""
    (variables, _), _, ((_, sums), _) = carry
    for kind, named in (("term", sums), ("parameter", masks.by_path(variables.params))):
        names = [name for name, value in named.items() if not (is_traced(value) or jnp.isfinite(value).all())]
        if len(names) == 1:
            return f"the {kind} {names[0]} is"
        if names:
            return f"the {kind}s {', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)} are"
    return ""
