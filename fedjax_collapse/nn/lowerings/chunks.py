"""Evaluation of a function on chunks of a batch, so that its intermediate results fit into a CPU's cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target

CACHE_BYTES = 2**22  # about the size of one core's second- and third-level cache


def in_chunks(function: Callable, arrays: tuple[jax.Array, ...], bytes_each: int, target: Target, least: int = 1):
    """Applies ``function(*arrays)``, which returns (an array with a row per example, a sum over examples), in chunks.

    The chunks are equal and as large as ``CACHE_BYTES`` allows at ``bytes_each`` per row, but have at least ``least``
    rows; on devices other than a CPU there is only one. Not differentiable by design: use it inside functions with
    custom gradients.
    """
    batch = len(arrays[0])
    count = _count(batch, bytes_each, least) if target.is_cpu else 1
    if count == 1:
        return function(*arrays)

    def one_chunk(total, chunk):
        rows, summand = function(*lax.optimization_barrier(chunk))  # a fused slice would prevent vectorisation of loops
        return jax.tree.map(jnp.add, total, summand), rows

    chunks = tuple(array.reshape(count, batch // count, *array.shape[1:]) for array in arrays)
    _, shapes = jax.eval_shape(function, *(chunk[0] for chunk in chunks))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    total, rows = lax.scan(one_chunk, zeros, chunks)
    return rows.reshape(batch, *rows.shape[2:]), total


def _count(batch, bytes_each, least):
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    fitting = [size for size in sizes if size * bytes_each <= CACHE_BYTES] or [1]
    return batch // max(fitting[-1], next(size for size in sizes if size >= min(least, batch)))
