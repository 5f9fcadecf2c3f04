"""Loops whose number of steps differs among clients that train side by side."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree


def repeat(count: jax.Array, body: Callable[[jax.Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """Returns the carry after ``carry = body(index, carry)`` for each index below ``count``: ``jax.lax.fori_loop``."""
    index, carry = differing_with(count, (jnp.zeros_like(count), carry))
    return jax.lax.fori_loop(index, count, body, carry)


def repeat_for_all(count: jax.Array, body: Callable[[jax.Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """``repeat`` for a body that changes nothing from a client's count on: the largest count is that of all clients.

    This takes less memory. For each call of its body, ``repeat`` keeps the carry from before, which clients whose count
    is reached get back.
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
    """Returns the same tree; where vmap has a number for each client, it has each leaf for each client, too.

    Under vmap, JAX traces the body of a loop anew until it knows what differs among clients after some steps, and all
    does if their number does. A loop in a loop was traced five times; with a start that differs it is traced once. The
    compiler removes what is chosen here.
    """
    same = number == number
    return jax.tree.map(lambda leaf: jax.lax.select(same, leaf, leaf), tree)
