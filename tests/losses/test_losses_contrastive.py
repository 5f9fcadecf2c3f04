"""MOON's loss: test vectors, the definition by NumPy, and the clipping of short vectors."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import evaluate

from fedjax_collapse.losses import model_contrastive

ROWS = np.array([[1, 2, 2], [0, 3, 4]], float)
SERVER = np.array([[2, 1, 2], [1, 2, 2]], float)
PREVIOUS = np.array([[2, -1, 0], [0, 4, 3]], float)


def moon(features, labels, mask, server, previous, temperature=0.5):
    if len(features) > len(server):
        server, previous = (jnp.pad(x, ((1, 2), (0, 0)), constant_values=jnp.nan) for x in (server, previous))
    return model_contrastive(features, server, previous, mask, temperature)


def test_vectors():
    for temperature, expected in {0.5: 0.4381647167, 1.0: 0.5254738260}.items():
        value, _ = evaluate(moon, ROWS, extras=(SERVER, PREVIOUS, temperature))
        assert value == pytest.approx(expected, abs=1e-10)
    for row, expected in enumerate([0.1561600728, 0.7201693607]):
        one = slice(row, row + 1)
        value, _ = evaluate(moon, ROWS[one], extras=(SERVER[one], PREVIOUS[one]))
        assert value == pytest.approx(expected, abs=1e-10)


def test_equal_models_give_ln_2_and_exactly_no_gradient():
    value, gradient = evaluate(moon, ROWS, extras=(SERVER, SERVER))
    assert value == pytest.approx(np.log(2), abs=1e-15) and np.all(gradient == 0)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(0, 1000), st.floats(0.05, 5), st.floats(0.01, 100))
def test_definition_and_invariances(seed, temperature, scale):
    rows, server, previous = np.random.default_rng(seed).normal(size=(3, 4, 5))

    def cosine(a, b):
        return np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    def value_of(rows, server=server, previous=previous):
        return evaluate(moon, rows, extras=(server, previous, temperature))

    towards, away = (np.exp(cosine(rows, other) / temperature) for other in (server, previous))
    value, gradient = value_of(rows)
    assert value == pytest.approx(np.mean(-np.log(towards / (towards + away))))
    assert value_of(3 * rows, scale * server, previous / scale)[0] == pytest.approx(value)
    assert np.log1p(np.exp(-2 / temperature)) <= value <= np.log1p(np.exp(2 / temperature))
    np.testing.assert_allclose(np.sum(gradient * rows, axis=1), 0, atol=1e-12)


def test_small_norms_are_clipped_one_by_one():
    tiny, x, y = 1e-9 * np.eye(3)[:1], np.eye(3)[:1], np.eye(3)[1:2]
    for rows, server in [(tiny, x), (x, tiny)]:
        value, _ = evaluate(moon, rows, extras=(server, y, 1.0))
        assert value == pytest.approx(np.log1p(np.exp(-0.1)), abs=1e-12)  # cosine 1e-9 / 1e-8
