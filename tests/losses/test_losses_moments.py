"""What several losses share: distances with a derivative of their own, the smaller Gram matrix, and roots at zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fedjax_collapse.losses.norms import inverse_root, root, squared_distances


def test_squared_distances_and_their_derivative():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        values = squared_distances(jnp.asarray(a), jnp.asarray(b))
        check_grads(lambda *x: squared_distances(*map(jnp.asarray, x)), (a, b), order=2, rtol=1e-6)  # twice, both modes
    expected = [[np.sum((x - y) ** 2) for y in b] for x in a]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_equal_rows_have_distance_and_gradient_exactly_zero():
    rng = np.random.default_rng(0)
    rows = jnp.asarray(np.tile(1e3 + rng.normal(size=301), (8, 1)), jnp.float32)
    squares, pull = jax.jit(lambda x: jax.vjp(squared_distances, x, x))(rows)
    assert np.all(squares == 0)
    for gradient in pull(jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)):  # sums of weights that round differently
        assert np.all(gradient == 0)


@pytest.mark.parametrize("function", [root, inverse_root])
def test_roots_are_flat_at_zero(function):
    x = jnp.array([0.0, 1e-30, 4.0])
    expected = {root: ([0, 1e-15, 2], [0, 5e14, 0.25]), inverse_root: ([0, 0, 0.5], [0, 0, -0.0625])}[function]
    np.testing.assert_allclose(function(x), expected[0], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(function))(x), expected[1], rtol=1e-6)
