"""FedDecorr's loss: published test vectors, degenerate batches, and proposition 1 of the paper."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse.analysis.spectrum import covariance_spectrum
from fedjax_collapse.losses import correlation_frobenius

Z = np.array([[1.0, 2, 0], [2, 1, 1], [0, 3, 1], [3, 2, 4]])
GARBAGE = np.array([[np.nan, 1e30, -5], [7, 7, np.inf]])
VALUES = {"paper": 0.5456790123, "pseudocode": 0.3069444444, "official": 0.7166666565}


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


def test_degenerate_batches(float64):
    np.testing.assert_allclose(loss(Z[:2], "paper", eps=0.0), 1.0, atol=1e-12)
    np.testing.assert_allclose(loss(Z[:2], "official", eps=0.0), 0.5, atol=1e-12)
    constant = Z.copy()
    constant[:, 1] = 5
    np.testing.assert_allclose(loss(constant, "official"), 0.4166666628, atol=1e-9)
    assert loss(Z[:1], "official") == 0
    assert correlation_frobenius(jnp.asarray(GARBAGE), jnp.zeros(2, bool)) == 0


@settings(max_examples=25, deadline=None)
@given(shape=st.sampled_from([(2, 2), (3, 12), (12, 5)]), seed=st.integers(0, 99), scale=st.floats(0.1, 100))
def test_proposition_1_bounds_and_invariance(shape, seed, scale):
    """The loss is the spread of the correlation spectrum; it knows neither scale nor offset of a feature."""
    (count, dim), rng = shape, np.random.default_rng(seed)
    features = rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim))
    with jax.enable_x64(True):
        value = float(loss(features, "paper", 0.0))
        moved = float(loss(features * scale + rng.normal(size=dim), "paper", 0.0))
    standardized = (features - features.mean(0)) / features.std(0)
    spectrum = covariance_spectrum(standardized)
    assert value * dim**2 - dim == pytest.approx(np.sum((spectrum - spectrum.mean()) ** 2), abs=1e-6)
    assert 1 / min(dim, count - 1) - 1e-9 <= value <= 1 + 1e-9
    assert moved == pytest.approx(value, rel=1e-6)
