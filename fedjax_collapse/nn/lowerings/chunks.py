"""Evaluates a function on chunks of a batch, so that intermediate results fit into a CPU's cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target

CACHE_BYTES = 2**22  # about the size of one core's second- and third-level cache


def in_chunks(
    function: Callable, arrays: tuple[jax.Array, ...], bytes_each: int, target: Target, least: int = 1, most: int = 0
):
    """Applies ``function(*arrays)``, which returns (an array with a row per example, a sum over examples), in chunks.

    The chunks are equal and as large as ``CACHE_BYTES`` allows at ``bytes_each`` per row, but have at least ``least``
    rows. If the batch needs at most ``most`` bytes, or the device is not a CPU, there is one chunk. Use it inside
    functions with custom gradients: it is not differentiable.
    """
    batch = len(arrays[0])
    count = _count(batch, bytes_each, least) if target.is_cpu and batch * bytes_each > most else 1
    if count == 1:
        return function(*arrays)

    def of_chunk(*flat):
        rows, summand = function(*(array.reshape(batch // count, -1, *array.shape[1:]) for array in flat))
        return rows.reshape(-1, *rows.shape[2:]), summand

    def add_chunk(total, flat):
        rows, summand = of_chunk(*flat)
        return jax.tree.map(jnp.add, total, summand), rows

    # rows of examples, as XLA copies arrays that have an axis of one example to change its place
    chunks = tuple(array.reshape(count, -1, *array.shape[2:]) for array in arrays)
    _, shapes = jax.eval_shape(of_chunk, *(chunk[0] for chunk in chunks))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    total, rows = lax.scan(add_chunk, zeros, chunks)
    return rows.reshape(batch, -1, *rows.shape[2:]), total


def with_gradient(gradient: Callable) -> Callable[[Callable], Callable]:
    """Returns a decorator that gives ``function(images, kernel, *static)`` a gradient.

    ``gradient(*static, (images, kernel), cotangent)`` returns the gradients of images and kernel.
    """

    def decorate(function):
        convolve = jax.custom_vjp(function, nondiff_argnums=tuple(range(2, function.__code__.co_argcount)))
        convolve.defvjp(lambda *arguments: (convolve(*arguments), arguments[:2]), gradient)
        return convolve

    return decorate


def largest_divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number that is at most ``most``, or 1."""
    return next((divisor for divisor in range(min(number, most), 1, -1) if number % divisor == 0), 1)


def _count(batch, bytes_each, least):
    needed = next(size for size in range(min(least, batch), batch + 1) if batch % size == 0)
    return batch // max(largest_divisor(batch, CACHE_BYTES // bytes_each), needed)
