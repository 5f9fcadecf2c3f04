"""The variance of the covariance's singular values: its test vector, and its identity with a real decomposition."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import Z, bound, evaluate

from fedjax_collapse.losses import singular_value_variance

loss = bound(singular_value_variance)


def test_test_vector():
    value, _ = evaluate(loss, Z)
    assert value == pytest.approx(1.7222222222, abs=1e-10)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.sampled_from([(2, 6), (7, 7), (12, 5)]), st.integers(0, 1000))
def test_is_the_variance_of_the_singular_values(shape, seed):
    features = np.random.default_rng(seed).normal(size=shape) * np.linspace(0.3, 3, shape[1])
    singular_values = np.linalg.svd(np.cov(features, rowvar=False, ddof=0), compute_uv=False)
    value, _ = evaluate(loss, features)
    assert value == pytest.approx(np.var(singular_values), rel=1e-9)


def test_on_standardised_features_is_frobenius_minus_dimension():
    features = (Z - Z.mean(0)) / Z.std(0)  # proposition 1: both sides 1.9111111111
    value, _ = evaluate(loss, features)
    assert 3 * value == pytest.approx(1.9111111111, abs=1e-10)


def test_is_zero_only_at_an_isotropic_covariance():
    isotropic = np.concatenate([np.eye(3), -np.eye(3)])
    assert evaluate(loss, isotropic)[0] == pytest.approx(0, abs=1e-15)
    assert evaluate(loss, isotropic * [1, 1, 2])[0] > 0.1
