"""Rows of some tokens, and batches of the tokens that targets need."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Batch, Examples
from fedjax_collapse.data.batches import count_tokens, cut_tokens
from fedjax_collapse.nn.places import rows_at, spread

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


def test_only_needed_tokens_are_kept():
    mask = jnp.array([[False, True, False], [False, False, False], [True, False, True]])
    batch = Batch(jnp.arange(9).reshape(3, 3), jnp.arange(10, 19), mask.reshape(-1))
    labels, rows = jnp.where(mask, 1, 0), jnp.arange(3)
    examples = Examples(batch.inputs, labels, None, None, pad=jnp.array(0))
    assert count_tokens(examples, rows, jnp.ones(3, bool)) == 5 and count_tokens(examples, rows, rows < 2) == 2
    found = cut_tokens(batch, 6)
    assert found.places.tolist() == [0, 1, 6, 7, 8, 9]  # 0 and 7 have no target, but a later token has
    assert found.labels.tolist() == [10, 11, 16, 17, 18, 0]
    assert found.mask.tolist() == [False, True, True, False, True, False]
    assert found.inputs is batch.inputs
