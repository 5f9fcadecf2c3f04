"""Spectra and their summaries: published test vectors and limits."""

import numpy as np
import pytest

from fedjax_collapse.analysis.moments import class_moments, merged
from fedjax_collapse.analysis.spectrum import (
    collapse_ratio,
    covariance_spectrum,
    dead_features,
    effective_rank,
    significant_dims,
)

Z = np.array([[1.0, 2, 0], [2, 1, 1], [0, 3, 1], [3, 2, 4]])


def test_spectrum_of_the_test_vector():
    spectrum = covariance_spectrum(Z)
    np.testing.assert_allclose(spectrum, [3.1269372694, 0.8495350260, 0.0235277046], atol=1e-9)
    np.testing.assert_allclose(np.log(spectrum), [1.1400540173, -0.1630661074, -3.7495766321], atol=1e-8)
    unbiased = covariance_spectrum(Z, unbiased=True)
    np.testing.assert_allclose(unbiased, [4.1692496925, 1.1327133680, 0.0313702728], atol=1e-9)


def test_spectrum_is_computed_in_float64():
    features = np.random.default_rng(0).normal(size=(200, 3)) * [1, 1e-5, 1e-7]
    spectrum = covariance_spectrum((features + 1).astype(np.float64))
    np.testing.assert_allclose(spectrum[2], 1e-14, rtol=0.3)


def test_dead_features_are_those_that_are_the_same_for_all_examples():
    features = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    features[:, 1], features[:, 3] = 0.1, 0.0
    features[:, 4] = 1e-6 * features[:, 4] + 1  # small differences are no death
    assert dead_features(features) == 2 / 5 and dead_features(features[:, :1]) == 0

    def in_parts(features, shift=None):
        first, second = features[:150], features[150:]
        moments = class_moments(first, np.zeros(150, int), 1, shift=shift)
        return merged(moments, class_moments(second, np.zeros(250, int), 1, shift=moments.shift))

    assert in_parts(features).dead_features == in_parts(features, np.full(5, 0.7)).dead_features == 2 / 5
    features[7, 0] = np.inf
    assert np.isnan([dead_features(features), in_parts(features).dead_features]).all()


def test_collapse_ratio_and_significant_dims():
    local, server = np.array([4, 1, 0.5, 0.1]), np.array([3, 0.5, 0.1, 0.01])
    assert collapse_ratio(local, server) == pytest.approx(1.2232130646, abs=1e-9)
    assert collapse_ratio(local, server, base=10.0) == pytest.approx(0.5312346842, abs=1e-9)
    assert collapse_ratio(local, server, top=1) == pytest.approx(np.log(4 / 3))
    assert collapse_ratio(local, local) == 0
    assert (significant_dims(local), significant_dims(server)) == (3, 2)
    assert (significant_dims(local, base=10.0), significant_dims(server, base=10.0)) == (4, 3)


def test_collapse_ratio_of_dead_features_is_finite():
    assert np.isfinite(collapse_ratio(np.array([1.0, 0.0]), np.array([0.0, 0.0])))


def test_effective_rank():
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert effective_rank(np.zeros(3)) == 0
    share = np.array([0.5, 0.25, 0.25])
    assert effective_rank(10 * share) == pytest.approx(2**1.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_have_no_spectrum(bad):
    features = Z.copy()
    features[1, 2] = bad
    spectrum = covariance_spectrum(features)
    assert spectrum.shape == (3,) and np.isnan(spectrum).all()
    assert np.isnan([effective_rank(spectrum), significant_dims(spectrum), collapse_ratio(spectrum, np.ones(3))]).all()
