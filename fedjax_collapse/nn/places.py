"""Rows of some tokens, out of those of all tokens, and products that leave out the padding behind them."""

import functools

import jax
import jax.numpy as jnp

_PARTS = 8  # of the rows, of which a product computes as many as have a true row


def rows_at(rows: jax.Array, places: jax.Array | None) -> jax.Array:
    """Returns the rows at ``places``, [places, ...]; 0 at places out of range, and ``rows`` themselves without places.

    ``places`` in range differ, so that the gradient is a gather too: on CPUs the sum of a scatter is slow.
    """
    return rows if places is None else _move(rows, places, _inverse(places, len(rows)))


def spread(rows: jax.Array, places: jax.Array | None, count: int) -> jax.Array:
    """Returns [count, ...] with the rows at ``places`` and 0 elsewhere, the inverse of ``rows_at``."""
    return rows if places is None else _move(rows, _inverse(places, count), places)


def multiply_rows(rows: jax.Array, matrix: jax.Array, places: jax.Array | None) -> jax.Array:
    """Returns ``rows @ matrix``, [rows, out]; rows whose place is out of range are not computed, and 0 or the product.

    Those rows come last, and have no gradient. Under ``vmap``, where a branch costs all of its cases, all are computed.
    """
    return rows @ matrix if places is None else _multiply(rows, matrix, jnp.sum(places < len(places)))


def _inverse(places, count):
    """Returns at which of ``places`` each of ``count`` rows is, [count]; their number for rows at none."""
    return jnp.full(count, len(places), places.dtype).at[places].set(jnp.arange(len(places)), mode="drop")


@jax.custom_vjp
def _move(rows, origins, destinations):
    """``origins``: of each result its row; ``destinations``: of each row its result; both out of range for none."""
    return jnp.take(rows, origins, axis=0, mode="fill", fill_value=0)


_move.defvjp(
    lambda rows, origins, destinations: (_move(rows, origins, destinations), (origins, destinations)),
    lambda kept, cotangent: (_move(cotangent, *kept[::-1]), None, None),
)


@jax.custom_vjp
def _multiply(rows, matrix, count):
    return _first_rows(rows, matrix, count)


_multiply.defvjp(
    lambda rows, matrix, count: (_multiply(rows, matrix, count), (rows, matrix, count)),
    lambda kept, cotangent: (
        _first_rows(cotangent, kept[1].T, kept[2]),
        _sum_of_first(kept[0], cotangent, kept[2]),
        None,
    ),
)


def _in_parts(product):
    """A product of the first rows of ``left``: ``product(left, right, number)``, with a dynamic count of true rows."""

    @jax.custom_batching.custom_vmap
    def of_true_rows(left, right, count):
        part = -(-len(left) // _PARTS)
        numbers = range(part, len(left) + part, part)
        branches = [functools.partial(product, number=min(number, len(left))) for number in numbers]
        return jax.lax.switch(jnp.maximum(count - 1, 0) // part, branches, left, right)

    @of_true_rows.def_vmap
    def of_all_rows(axis_size, in_batched, left, right, count):
        del axis_size, count
        axes = [0 if is_batched else None for is_batched in in_batched[:2]]
        return jax.vmap(functools.partial(product, number=left.shape[1] if in_batched[0] else len(left)), axes)(
            left, right
        ), True

    return of_true_rows


@_in_parts
def _first_rows(rows, matrix, number):
    return jnp.pad(rows[:number] @ matrix, ((0, len(rows) - number), (0, 0)))


@_in_parts
def _sum_of_first(rows, others, number):
    return rows[:number].T @ others[:number]
