"""Batches from rows of an index table, and passes over one client's data."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.loops import repeat
from fedjax_collapse.core.records import Batch, Examples, Key, PyTree
from fedjax_collapse.data.augment import Augmentation

_VIEWS = 2**30  # before the numbers of further views; identities of examples are smaller


def get_batch(
    examples: Examples,
    rows: jax.Array,
    mask: jax.Array,
    augmentation: Augmentation | None = None,
    key: Key | None = None,
    views: int = 1,
) -> Batch:
    """Returns the examples at ``rows`` [batch], normalised; rows where ``mask`` is False must be in range.

    Without ``examples.mean``, inputs are not changed, and integers stay integers.

    Each image is augmented with a separate key, derived from ``key`` and its row in the whole data set, not from its
    position in the batch or on the device; ``views`` times, with keys of their own, of which all but the first are
    ``Batch.views``.

    With ``examples.pad``, labels and mask have an entry for each token of all rows, in order.
    """
    inputs = examples.inputs.at[rows].get(mode="promise_in_bounds")
    inputs = inputs if examples.mean is None else inputs.astype(examples.mean.dtype)
    seen = [inputs] * views
    if augmentation is not None:
        identities = rows if examples.identities is None else examples.identities[rows]
        keys = [key, *(jax.random.fold_in(key, _VIEWS + view) for view in range(1, views))]
        keys = [jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, identities) for key in keys]
        seen = [jax.vmap(augmentation)(inputs, of_rows) for of_rows in keys]
    if examples.mean is not None:
        seen = [(inputs - examples.mean) / examples.std for inputs in seen]
    labels = examples.labels.at[rows].get(mode="promise_in_bounds")
    if examples.pad is not None:
        mask = (mask[:, None] & (labels != examples.pad)).reshape(-1)
        labels = labels.reshape(-1)
    return Batch(seen[0], labels, mask, views=tuple(seen[1:]))


def blocks_of(examples: Examples, rows: np.ndarray, size: int) -> Iterator[tuple[Examples, np.ndarray]]:
    """Yields blocks of ``size`` of the examples at ``rows``, in order, the last one padded, and which are true."""
    for first in range(0, len(rows), size):
        own = rows[first : first + size]
        padded = np.pad(own, (0, size - len(own)), mode="edge")
        labels = np.asarray(examples.labels)[padded]
        yield examples._replace(inputs=examples.inputs[padded], labels=labels), np.arange(size) < len(own)


def cut_tokens(batch: Batch, room: int) -> Batch:
    """Returns a batch with the rows of the tokens that targets need, padded to ``room`` rows.

    These tokens have a target or precede one in their sequence. ``room`` must be at least ``count_tokens``.
    """
    count = len(batch.mask)
    is_needed = _are_needed(batch.mask.reshape(len(batch.inputs), -1)).reshape(-1)
    (places,) = jnp.nonzero(is_needed, size=room, fill_value=count)
    labels, mask = (of_all.at[places].get(mode="fill", fill_value=0) for of_all in (batch.labels, batch.mask))
    return Batch(batch.inputs, labels, mask, places)


def count_tokens(examples: Examples, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the number of tokens that targets need, in the sequences at ``rows`` [batch] where ``mask`` is True."""
    labels = examples.labels.at[rows].get(mode="promise_in_bounds")
    return jnp.sum(_are_needed(mask[:, None] & (labels != examples.pad)))


def _are_needed(mask):
    return jax.lax.cummax(mask.astype(jnp.int32), axis=1, reverse=True)


def token_rows(rows: jax.Array, length: int) -> jax.Array:
    """Returns the rows of the tokens of sequences of that length, [rows * length]; ``rows`` themselves if it is 1."""
    return rows if length == 1 else (rows[:, None] * length + jnp.arange(length)).reshape(-1)


def shuffled_rows(key: Key, rows: jax.Array, size: jax.Array) -> jax.Array:
    """Shuffles the first ``size`` rows; the rest is padding. The order does not depend on the amount of padding."""
    position = jnp.arange(rows.shape[0])
    bits = jax.random.bits(key, rows.shape)
    bits = jnp.where(position < size, bits, bits.dtype.type(jnp.iinfo(bits.dtype).max))
    return jax.lax.sort((bits, rows), num_keys=1, is_stable=True)[1]


def sum_batches(
    batch_size: int, examples: Examples, rows: jax.Array, size: jax.Array, summarize: Callable[[Batch], PyTree]
) -> PyTree:
    """Returns the sum of ``summarize(batch)`` over batches of the first ``size`` rows, each row once."""
    first_rows = pad_to_batches(rows, batch_size)[:batch_size]
    zeros = zeros_of(jax.eval_shape(summarize, get_batch(examples, first_rows, jnp.ones(batch_size, bool))))
    add = functools.partial(jax.tree.map, jnp.add)
    return over_batches(batch_size, examples, rows, size, lambda _, batch, total: add(total, summarize(batch)), zeros)


def over_batches(
    batch_size: int,
    examples: Examples,
    rows: jax.Array,
    size: jax.Array,
    body: Callable[[jax.Array, Batch, PyTree], PyTree],
    carry: PyTree,
) -> PyTree:
    """Applies ``carry = body(position, batch, carry)`` to batches of the first ``size`` of ``rows``, in order."""
    rows = pad_to_batches(rows, batch_size)

    def run(index, carry):
        first = index * batch_size
        mask = first + jnp.arange(batch_size) < size
        batch = get_batch(examples, jax.lax.dynamic_slice_in_dim(rows, first, batch_size), mask)
        return body(first, batch, carry)

    return repeat(-(-size // batch_size), run, carry)


def pad_to_batches(rows: jax.Array, batch_size: int) -> jax.Array:
    """Pads rows to whole batches, so that a slice of the last batch is not clamped."""
    return jnp.pad(rows, (0, -len(rows) % batch_size))


def zeros_of(shapes: PyTree) -> PyTree:
    """Returns zeros with the shapes and dtypes of a result of ``jax.eval_shape``."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
