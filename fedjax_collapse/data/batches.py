"""From rows of an index table to batches."""

import jax
import jax.numpy as jnp

from fedjax_collapse.records import Batch, Examples, Key


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
