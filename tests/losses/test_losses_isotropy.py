"""SIGReg, Weak-SIGReg and VISReg: test vectors, the definitions by NumPy, and what they are for normal features."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st
from loss_checks import evaluate

from fedjax_collapse.losses import characteristic_distance, identity_distance, sliced_normality

Z, A = (f(np.arange(1.0, 1 + n * d) ** 2).reshape(n, d) for f, n, d in ((np.sin, 6, 4), (np.cos, 4, 3)))


def of(function, *arguments, term=None):
    """The function as a loss of features, labels and mask."""

    def loss(features, labels, mask):
        values = function(features, mask, *map(_array, arguments))
        return values if term is None else values[term]

    return loss


def _array(argument):
    return jnp.asarray(argument) if isinstance(argument, np.ndarray) else argument


@pytest.mark.parametrize(
    ("points", "expected", "at_zero"), [("code", 0.5982486304, 2.412285478), ("paper", 0.6011833901, 2.453524321)]
)
def test_characteristic_distance_vectors(points, expected, at_zero):
    loss = of(characteristic_distance, A, points)
    value, gradient = evaluate(loss, Z)
    assert value == pytest.approx(expected, abs=1e-10)
    assert points == "paper" or gradient[0, 0] == pytest.approx(-0.0672618311, abs=1e-10)
    value, gradient = evaluate(loss, 0 * Z)
    assert value == pytest.approx(at_zero, abs=1e-9) and np.all(gradient == 0)


@hypothesis.given(rows=st.integers(2, 6), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=5, deadline=None)
def test_characteristic_distance_definition(rows, seed):
    z = np.random.default_rng(seed).normal(size=(rows, 4))
    p = z @ (A / np.linalg.norm(A, axis=0))
    for points, t in (("code", np.linspace(0, 3, 17)), ("paper", np.linspace(-5, 5, 17))):
        phi = np.exp(-(t**2) / 2)
        error = np.exp(1j * t * p[..., None]).mean(0) - phi
        integral = np.trapezoid(phi * np.abs(error) ** 2, t) * (2 if points == "code" else 1)
        value, _ = evaluate(of(characteristic_distance, A, points), z)
        assert value == pytest.approx(rows * integral.mean(), rel=1e-9)


def test_identity_distance_vectors():
    assert evaluate(of(identity_distance), Z)[0] == pytest.approx(1.185100650, abs=1e-9)
    assert evaluate(of(identity_distance, A / 2), Z)[0] == pytest.approx(1.362610298, abs=1e-9)


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_identity_distance_definition(rows):
    """With fewer rows in the batch than features as with more; the former have a least value."""
    z = np.tile(Z, (1, 2))[:rows]
    value, _ = evaluate(of(identity_distance), z)
    assert value == pytest.approx(np.linalg.norm(np.cov(z.T) - np.eye(8)), rel=1e-9)
    assert value >= np.sqrt(8 + 1 - rows)


def test_sliced_normality_vectors():
    for term, expected in (("scale", 0.1076489653), ("shape", 0.2122317100), ("centre", 0.06773963443)):
        assert evaluate(of(sliced_normality, A, term=term), Z)[0] == pytest.approx(expected, abs=1e-10)


def test_sliced_normality_gradient_does_not_flow_through_the_deviations():
    _, gradient = evaluate(of(sliced_normality, A, term="shape"), Z)
    sigma, unit = Z.std(0) + 1e-6, A / np.linalg.norm(A, axis=0)
    p = (Z - Z.mean(0)) / sigma @ unit
    q = scipy.stats.norm.ppf(np.arange(1, 7) / 7)[np.argsort(np.argsort(p, axis=0), axis=0)]
    of_centred = 2 * (p - q) @ unit.T / (p.size * sigma)
    np.testing.assert_allclose(gradient, of_centred - of_centred.mean(0), rtol=1e-9)


@pytest.mark.parametrize("rows", [2, 5])
def test_sliced_normality_definition(rows):
    z = Z[:rows]
    sigma = z.std(0) + 1e-6
    p = np.sort((z - z.mean(0)) / sigma @ (A / np.linalg.norm(A, axis=0)), axis=0)
    q = scipy.stats.norm.ppf(np.arange(1, rows + 1) / (rows + 1))
    expected = {
        "scale": np.mean((sigma - 1) ** 2),
        "shape": np.mean((p - q[:, None]) ** 2),
        "centre": np.mean(z.mean(0) ** 2),
    }
    for term, value in expected.items():
        assert evaluate(of(sliced_normality, A, term=term), z)[0] == pytest.approx(value, rel=1e-9)


def test_a_constant_feature_has_no_gradient_of_shape():
    _, gradient = evaluate(of(sliced_normality, A, term="shape"), np.where(np.arange(4) == 1, 3.0, Z))
    assert np.all(gradient[:, 1] == 0) and np.any(gradient[:, 0] != 0)


def test_normal_features_have_small_values():
    normal = np.random.default_rng(0).normal(size=(4000, 4))
    line = np.outer(normal[:, 0], np.ones(4))  # all features equal: collapsed
    for loss in (
        of(characteristic_distance, A),
        of(identity_distance),
        of(sliced_normality, A, term="shape"),
    ):
        assert 20 * evaluate(loss, normal)[0] < evaluate(loss, line)[0]


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_are_zero(rows):
    terms = [of(sliced_normality, A, term=term) for term in ("scale", "shape", "centre")]
    for loss in (of(characteristic_distance, A), of(identity_distance), *terms):
        value, gradient = evaluate(loss, Z[:rows])
        assert value == 0 and np.all(gradient == 0)
