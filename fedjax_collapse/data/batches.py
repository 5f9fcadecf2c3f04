"""From rows of an index table to batches, and passes over one client's data."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.records import Batch, Client, Examples, Key, Model, Outputs, PyTree, Variables


def get_batch(examples: Examples, rows: jax.Array, mask: jax.Array) -> Batch:
    """The examples at ``rows`` [batch], normalised; rows where ``mask`` is False must be in range and are ignored."""
    images = examples.images.at[rows].get(mode="promise_in_bounds").astype(examples.mean.dtype)
    labels = examples.labels.at[rows].get(mode="promise_in_bounds")
    return Batch((images - examples.mean) / examples.std, labels, mask)


def shuffled_rows(key: Key, rows: jax.Array, size: jax.Array) -> jax.Array:
    """The first ``size`` rows in random order, then the padding. The order does not depend on the amount of padding."""
    position = jnp.arange(rows.shape[0])
    bits = jax.random.bits(key, rows.shape)
    bits = jnp.where(position < size, bits, bits.dtype.type(jnp.iinfo(bits.dtype).max))
    return jax.lax.sort((bits, rows), num_keys=1, is_stable=True)[1]


def sum_over_data(
    batch_size: int,
    model: Model,
    examples: Examples,
    client: Client,
    variables: Variables,
    summarize: Callable[[Outputs, Batch], PyTree],
) -> PyTree:
    """Sum over the client's batches of ``summarize(outputs, batch)``, in evaluation mode, every row once."""

    def summary(batch):
        return summarize(model.apply(variables, batch, train=False)[0], batch)

    rows = padded_rows(client, batch_size)[:batch_size]
    zeros = zeros_of(jax.eval_shape(summary, get_batch(examples, rows, jnp.ones(batch_size, bool))))
    add = functools.partial(jax.tree.map, jnp.add)
    return over_batches(batch_size, examples, client, lambda first, batch, total: add(total, summary(batch)), zeros)


def over_batches(
    batch_size: int,
    examples: Examples,
    client: Client,
    body: Callable[[jax.Array, Batch, PyTree], PyTree],
    carry: PyTree,
) -> PyTree:
    """``carry = body(first row, batch, carry)`` over the client's rows in their stored order, as many as it owns."""
    rows = padded_rows(client, batch_size)

    def run(index, carry):
        first = index * batch_size
        mask = first + jnp.arange(batch_size) < client.size
        batch = get_batch(examples, jax.lax.dynamic_slice_in_dim(rows, first, batch_size), mask)
        return body(first, batch, carry)

    return jax.lax.fori_loop(0, -(-client.size // batch_size), run, carry)


def padded_rows(client: Client, batch_size: int) -> jax.Array:
    """The client's rows, padded to whole batches, so that a slice of the last one is not clamped."""
    return jnp.pad(client.rows, (0, -len(client.rows) % batch_size))


def zeros_of(shapes: PyTree) -> PyTree:
    """Zeros of the shapes and dtypes of a tree of ``jax.eval_shape``."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
