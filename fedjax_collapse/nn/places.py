"""Selects the rows of some tokens from the rows of all tokens, and the inverse."""

import jax
import jax.numpy as jnp


def rows_at(rows: jax.Array, places: jax.Array | None) -> jax.Array:
    """Returns the rows at ``places``, [places, ...]; 0 at places out of range, and ``rows`` themselves without places.

    ``places`` in range must differ: the gradient is a gather, because the sum of a scatter is slow on CPUs.
    """
    return rows if places is None else _move(rows, places, _inverse(places, len(rows)))


def spread(rows: jax.Array, places: jax.Array | None, count: int) -> jax.Array:
    """Returns [count, ...] with the rows at ``places`` and 0 elsewhere, the inverse of ``rows_at``."""
    return rows if places is None else _move(rows, _inverse(places, count), places)


def _inverse(places, count):
    """Returns the index in ``places`` of each of ``count`` rows, [count]; ``len(places)`` for other rows."""
    return jnp.full(count, len(places), places.dtype).at[places].set(jnp.arange(len(places)), mode="drop")


@jax.custom_vjp
def _move(rows, origins, destinations):
    """``origins``: the row of each result; ``destinations``: the result of each row; out of range for none."""
    return jnp.take(rows, origins, axis=0, mode="fill", fill_value=0)


_move.defvjp(
    lambda rows, origins, destinations: (_move(rows, origins, destinations), (origins, destinations)),
    lambda kept, cotangent: (_move(cotangent, *kept[::-1]), None, None),
)
