"""Loops whose number of steps differs among clients that train in parallel."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree


def repeat(count: jax.Array, body: Callable[[jax.Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """Returns the carry after ``carry = body(index, carry)`` for each index below ``count``: ``jax.lax.fori_loop``."""
    index, carry = differing_with(count, (jnp.zeros_like(count), carry))
    return jax.lax.fori_loop(index, count, body, carry)


def repeat_for_all(count: jax.Array, body: Callable[[jax.Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """``repeat`` up to the largest count of all clients; a client's body must change nothing from its own count on.

    This takes less memory: ``repeat`` stores the previous carry in every step, and returns it to clients that have
    finished.
    """
    carry, most = differing_with(count, carry), _largest(count)
    return jax.lax.fori_loop(jnp.zeros_like(most), most, body, carry)


@jax.custom_batching.custom_vmap
def _largest(number):
    return number


@_largest.def_vmap
def _largest_of_clients(axis_size, is_batched, number):
    return _largest(jnp.max(number)), False  # one number for all, also of runs that are batched around their clients


def differing_with(number: jax.Array, tree: PyTree) -> PyTree:
    """Returns the same tree, with leaves that vmap treats as different for each client if it does so with ``number``.

    Under vmap, JAX traces the body of a loop again until it knows which values differ among clients. All do if the
    number of steps does: nested loops were traced five times, with such a start once. The compiler removes this
    operation.
    """
    same = number == number
    return jax.tree.map(lambda leaf: jax.lax.select(same, leaf, leaf), tree)
