"""What several losses share (distances with a derivative of their own, roots at zero), and FedProx's term of params."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fedjax_collapse.core.records import Variables
from fedjax_collapse.losses import proximal_distance
from fedjax_collapse.losses.norms import inverse_root, root, squared_distances
from fedjax_collapse.methods import FedProx


def test_squared_distances_and_their_derivative():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        values = squared_distances(jnp.asarray(a), jnp.asarray(b))
        check_grads(jax.jit(squared_distances), (a, b), order=2, rtol=1e-6)  # twice, both modes
    expected = [[np.sum((x - y) ** 2) for y in b] for x in a]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_equal_rows_have_distance_and_gradient_exactly_zero():
    rng = np.random.default_rng(0)
    rows = jnp.asarray(np.tile(1e3 + rng.normal(size=301), (8, 1)), jnp.float32)
    squares, pull = jax.jit(lambda x: jax.vjp(squared_distances, x, x))(rows)
    assert np.all(squares == 0)
    weights = jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)
    for gradient in jax.jit(pull)(weights):  # sums of weights that round differently
        assert np.all(gradient == 0)


@pytest.mark.parametrize("function", [root, inverse_root])
def test_roots_are_flat_at_zero(function):
    x = jnp.array([0.0, 1e-30, 4.0])
    expected = {root: ([0, 1e-15, 2], [0, 5e14, 0.25]), inverse_root: ([0, 0, 0.5], [0, 0, -0.0625])}[function]
    np.testing.assert_allclose(function(x), expected[0], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(function))(x), expected[1], rtol=1e-6)


W, W0 = np.array([1, -2, 0.5, 3]), np.array([0.5, -1, 0.5, 1])


def test_vector():
    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(lambda w: 0.01 * proximal_distance(w, jnp.asarray(W0)))(jnp.asarray(W))
    assert float(value) == pytest.approx(0.02625, abs=1e-15) and value.dtype == np.float64
    np.testing.assert_allclose(gradient, [0.005, -0.01, 0, 0.02], atol=1e-15)


def test_tree():
    def tree(x):
        return {"dense": {"kernel": jnp.asarray(x[:2, None], jnp.float32)}, "bias": (jnp.asarray(x[2:], jnp.float32),)}

    value, gradient = jax.jit(jax.value_and_grad(proximal_distance))(tree(W), tree(W0))
    assert float(value) == pytest.approx(2.625, rel=1e-6) and value.dtype == np.float32 and value.shape == ()
    difference = tree(W - W0)
    jax.tree.map(lambda g, d: np.testing.assert_allclose(g, d, rtol=1e-6), gradient, difference)
    with jax.enable_x64(True):
        assert proximal_distance(tree(W), tree(W0)).dtype == np.float32


def test_the_reference_is_a_constant():
    assert np.all(jax.grad(proximal_distance, argnums=1)(jnp.asarray(W), jnp.asarray(W0)) == 0)


def test_not_squared():
    """Half the distance 2.291287847, its gradient a unit vector halved, and 0 at the reference."""
    plain = jax.value_and_grad(lambda w, w0: proximal_distance(w, w0, squared=False))
    with jax.enable_x64(True):
        value, gradient = plain(jnp.asarray(W), jnp.asarray(W0))
        at_reference = plain(jnp.asarray(W), jnp.asarray(W))
    assert float(value) == pytest.approx(5.25**0.5 / 2, rel=1e-14)
    np.testing.assert_allclose(gradient, (W - W0) / 5.25**0.5 / 2, rtol=1e-14)
    assert at_reference[0] == 0 and np.all(at_reference[1] == 0)


def test_the_unsquared_term_is_left_out_of_the_first_round():
    reference = {"w": jnp.asarray(W0)}
    for squared, first in ((True, 2.625), (False, 0.0)):
        sent, mine = Variables(reference, {}), {"w": jnp.asarray(W)}
        views = [SimpleNamespace(params=mine, server=sent, round=r) for r in (0, 1)]
        values = [float(FedProx(squared=squared).penalty(view)["proximal"].value) for view in views]
        np.testing.assert_allclose(values, [first, 2.625 if squared else 5.25**0.5 / 2], rtol=1e-6)
