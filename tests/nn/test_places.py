"""Rows of some tokens, products of the first rows, and rounds that leave out what no target needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_collapse.core.records import Batch
from fedjax_collapse.data.batches import sort_tokens
from fedjax_collapse.nn.places import multiply_rows, rows_at, spread

PLACES = jnp.array([4, 0, 3, 6, 6, 6])  # of six tokens; three of the places are padding


def test_rows_go_and_come_back():
    rows = jax.random.normal(jax.random.key(0), (6, 2))
    chosen = rows_at(rows, PLACES)
    np.testing.assert_array_equal(chosen, [*np.asarray(rows)[[4, 0, 3]], *np.zeros((3, 2))])
    back = spread(chosen, PLACES, 6)
    np.testing.assert_array_equal(back, np.where(np.isin(np.arange(6), PLACES)[:, None], rows, 0))
    assert rows_at(rows, None) is rows and spread(rows, None, 6) is rows
    for function in (rows_at, lambda rows, places: spread(rows, places, 6)):
        matrix = jax.jacrev(function)(rows, PLACES).reshape(12, 12)
        np.testing.assert_array_equal(matrix @ rows.ravel(), function(rows, PLACES).ravel())  # both are linear


@pytest.mark.parametrize("count", [0, 1, 3, 8, 9, 19])
def test_products_of_the_first_rows(count):
    """And their gradients, also under vmap; rows behind them do not count."""
    with jax.enable_x64(True):
        rows, matrix, weights = (
            jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(19, 3), (3, 4), (19, 4)])
        )
        is_true = (jnp.arange(19) < count)[:, None]
        rows, places = jnp.where(is_true, rows, 0), jnp.where(is_true[:, 0], jnp.arange(19), 19)

        def scalar(multiply, rows, matrix):
            return jnp.sum(jnp.where(is_true, weights * multiply(rows, matrix) ** 2, 0))

        def value_and_gradient(multiply):
            return jax.value_and_grad(lambda *both: scalar(multiply, *both), argnums=(0, 1))

        expected = value_and_gradient(jnp.matmul)(rows, matrix)
        cut = value_and_gradient(lambda rows, matrix: multiply_rows(rows, matrix, places))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), cut(rows, matrix), expected)
        two = jax.vmap(cut)(jnp.stack([rows, 2 * rows]), jnp.stack([matrix, matrix / 2]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, atol=1e-14), two, expected)
        assert np.any(multiply_rows(rows + 1, matrix, places)[count:] == 0) == (count < 17)  # parts of three rows


def test_needed_tokens_come_first():
    mask = jnp.array([[False, True, False], [False, False, False], [True, False, True]])
    batch = Batch(jnp.arange(9).reshape(3, 3), jnp.arange(10, 19), mask.reshape(-1))
    found = sort_tokens(batch)
    assert found.places.tolist() == [0, 1, 6, 7, 8, 9, 9, 9, 9]  # 0 and 7 have no target, but a later token has
    assert found.labels.tolist() == [10, 11, 16, 17, 18, 0, 0, 0, 0]
    assert found.mask.tolist() == [False, True, True, False, True, *[False] * 4]
    assert found.inputs is batch.inputs
