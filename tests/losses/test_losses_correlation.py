"""FedDecorr's loss: published test vectors, its gradient, the identities of the papers, and masked rows."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import UserError
from fedjax_collapse.analysis.spectrum import covariance_spectrum
from fedjax_collapse.losses import correlation_frobenius

Z = np.array([[1.0, 2, 0], [2, 1, 1], [0, 3, 1], [3, 2, 4]])
GARBAGE = np.array([[np.nan, 1e30, -5], [7, 7, np.inf]])
VALUES = {"paper": 0.5456790123, "pseudocode": 0.3069444444, "official": 0.7166666565}
GRADIENTS = {
    "paper": [
        [-0.0316049383, 0.0444444444, 0.0164609053],
        [0.0217283951, 0.0444444444, 0.0384087791],
        [0.0138271605, 0.0444444444, -0.0603566529],
        [-0.0039506173, -0.1333333333, 0.0054869684],
    ],
    "official": [
        [-0.1066666672, 0.1499999969, 0.0555555546],
        [0.0733333307, 0.1499999924, 0.1296296283],
        [0.0466666651, 0.1500000013, -0.2037037020],
        [-0.0133333285, -0.4499999906, 0.0185185191],
    ],
}


def loss(features, variant="paper", eps=1e-8, garbage=False):
    features = jnp.asarray(features)
    mask = jnp.ones(len(features), bool)
    if garbage:
        features = jnp.concatenate([features[:2], GARBAGE[:1], features[2:], GARBAGE[1:]])
        mask = jnp.array([True, True, False, *[True] * (len(features) - 4), False])
    return correlation_frobenius(features, mask, variant, eps)


@pytest.mark.parametrize("garbage", [False, True])
@pytest.mark.parametrize("variant", VALUES)
def test_values(float64, variant, garbage):
    np.testing.assert_allclose(
        loss(Z, variant, garbage=garbage), VALUES[variant], atol=1e-9 if variant == "official" else 2e-8
    )


@pytest.mark.parametrize("garbage", [False, True])
@pytest.mark.parametrize("variant", GRADIENTS)
def test_gradients(float64, variant, garbage):
    gradient = jax.grad(loss)(jnp.asarray(Z), variant, garbage=garbage)
    np.testing.assert_allclose(gradient, GRADIENTS[variant], atol=2e-9 if variant == "official" else 1e-8)


@pytest.mark.parametrize("variant", VALUES)
def test_gradient_against_finite_differences(float64, variant):
    rng = np.random.default_rng(1)
    for shape in ((6, 4), (4, 9)):  # both sides of the smaller Gram matrix
        features = jnp.asarray(rng.normal(size=shape))
        jax.test_util.check_grads(lambda z, v=variant: loss(z, v), (features,), order=1, modes=["rev"], rtol=1e-6)


def test_degenerate_batches(float64):
    np.testing.assert_allclose(loss(Z[:2], "paper", eps=0.0), 1.0, atol=1e-12)
    np.testing.assert_allclose(loss(Z[:2], "official", eps=0.0), 0.5, atol=1e-12)
    constant = Z.copy()
    constant[:, 1] = 5
    np.testing.assert_allclose(loss(constant, "official"), 0.4166666628, atol=1e-9)
    for features in (Z[:1], Z[:2], constant, np.ones((4, 3)), np.zeros((4, 3))):
        for variant in VALUES:
            assert np.isfinite(jax.grad(loss)(jnp.asarray(features), variant)).all()
    assert loss(Z[:1], "official") == 0
    assert correlation_frobenius(jnp.asarray(GARBAGE), jnp.zeros(2, bool)) == 0


@pytest.mark.parametrize(
    ("count", "dim", "factor"),
    [(64, 1280, 62.0641125880), (64, 256, 62.2588235294), (64, 4096, 62.0307692308), (128, 512, 126.2544031311)],
)
def test_released_code_is_a_multiple_of_the_paper(float64, count, dim, factor):
    features = jnp.asarray(np.random.default_rng(0).normal(size=(count, dim)))
    scaled = factor * (loss(features, "paper", 0.0) - 1 / dim)
    np.testing.assert_allclose(loss(features, "official", 0.0), scaled, rtol=1e-9)


def test_proposition_1_on_the_test_vector(float64):
    correlation = np.corrcoef(Z.T)
    eigenvalues = np.linalg.eigvalsh(correlation)[::-1]
    np.testing.assert_allclose(eigenvalues, [1.9775252199, 1, 0.0224747801], atol=1e-9)
    np.testing.assert_allclose(np.sum((eigenvalues - 1) ** 2), 1.9111111111, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(2, 12), dim=st.integers(2, 12), seed=st.integers(0, 99), scale=st.floats(0.1, 100))
def test_proposition_1_bounds_and_invariance(count, dim, seed, scale):
    """The loss is the spread of the correlation spectrum; it knows neither scale nor offset of a feature."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim))
    with jax.enable_x64(True):
        value = float(loss(features, "paper", 0.0))
        moved = float(loss(features * scale + rng.normal(size=dim), "paper", 0.0))
    standardized = (features - features.mean(0)) / features.std(0)
    spectrum = covariance_spectrum(standardized)
    assert value * dim**2 - dim == pytest.approx(np.sum((spectrum - spectrum.mean()) ** 2), abs=1e-6)
    assert 1 / min(dim, count - 1) - 1e-9 <= value <= 1 + 1e-9
    assert moved == pytest.approx(value, rel=1e-6)


def test_float32_agrees_with_float64():
    features = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)
    with jax.enable_x64(True):
        exact = float(loss(features.astype(np.float64), "official"))
    assert float(loss(features, "official")) == pytest.approx(exact, rel=1e-5)


def test_unknown_variant():
    with pytest.raises(UserError, match="'offical': expected one of paper, pseudocode, official"):
        loss(Z, "offical")
