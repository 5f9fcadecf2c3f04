"""Loops whose number of steps differs among clients that train side by side."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree


def repeat(count: jax.Array, body: Callable[[jax.Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """Returns the carry after ``carry = body(index, carry)`` for each index below ``count``: ``jax.lax.fori_loop``."""
    index, carry = differing_with(count, (jnp.zeros_like(count), carry))
    return jax.lax.fori_loop(index, count, body, carry)


def differing_with(number: jax.Array, tree: PyTree) -> PyTree:
    """Returns the same tree; where vmap has a number for each client, it has each leaf for each client, too.

    Under vmap, JAX traces the body of a loop anew until it knows what differs among clients after some steps, and all
    does if their number does. A loop in a loop was traced five times; with a start that differs it is traced once. The
    compiler removes what is chosen here.
    """
    same = number == number
    return jax.tree.map(lambda leaf: jax.lax.select(same, leaf, leaf), tree)
