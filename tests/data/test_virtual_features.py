"""GGEUR's virtual features: the vector of their covariance, from clients' moments, and how they are distributed."""

import numpy as np
import pytest
from conftest import assert_same_bits

from fedjax_collapse import UserError
from fedjax_collapse.data.sources.virtual_features import class_covariances, draw_virtual_features

FEATURES = np.array([[1.0, 0], [3, 2], [0, 1], [2, 1], [1, 4]])
OWNERS = np.array([0, 0, 1, 1, 1])


def test_the_vector():
    """And the same from the moments that clients send."""
    (covariance,) = class_covariances(FEATURES, np.zeros(5, int)).values()
    np.testing.assert_allclose(covariance, [[1.04, 0.16], [0.16, 1.84]], rtol=1e-12)
    mean, total = FEATURES.mean(axis=0), 0
    np.testing.assert_allclose(mean, [1.4, 1.6])
    for client in (0, 1):
        own = FEATURES[client == OWNERS]
        gap = own.mean(axis=0) - mean
        total = total + len(own) / 5 * (np.cov(own.T, bias=True) + np.outer(gap, gap))
    np.testing.assert_allclose(covariance, total, rtol=1e-12)


def test_features_are_around_the_clients_own():
    """Their deviations have the covariance of the class at all clients; another class does not change them."""
    features = np.concatenate([FEATURES, [[50.0, 50]], [[51.0, 50]]])
    labels, owners = np.array([7] * 5 + [2] * 2), np.concatenate([OWNERS, [0, 0]])
    drawn = draw_virtual_features(features, labels, owners, 40_000, seed=3)
    assert drawn.features.dtype == np.float32
    for label, owner, own in ((7, 0, [0, 1]), (7, 1, [2, 3, 4]), (2, 0, [5, 6])):
        chosen = np.isin(drawn.rows, own)
        assert chosen.sum() == 40_000 - len(own) and np.ptp(np.bincount(drawn.rows[chosen])[own]) <= 1
        noise = drawn.features[chosen] - features[drawn.rows[chosen]]
        np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.03)
        np.testing.assert_allclose(np.cov(noise.T), class_covariances(features, labels)[label], atol=0.05)
        assert set(labels[own]) == {label} and set(owners[own]) == {owner}
    alone = draw_virtual_features(FEATURES, labels[:5], OWNERS, 40_000, seed=3)
    assert_same_bits(alone.features, drawn.features[drawn.rows < 5])
    assert not np.array_equal(alone.features, draw_virtual_features(FEATURES, labels[:5], OWNERS, 40_000, 2).features)


def test_a_client_with_enough_examples_gets_none():
    drawn = draw_virtual_features(FEATURES, np.zeros(5, int), OWNERS, 2)
    assert drawn.features.shape == (0, 2) and len(drawn.rows) == 0
    with pytest.raises(UserError, match="count 0"):
        draw_virtual_features(FEATURES, np.zeros(5, int), OWNERS, 0)


@pytest.mark.parametrize(
    ("enlarged", "factors"), [("none", (1, 1)), ("official", (5, 41 / 9)), ("largest", (41 / 9, 5))]
)
def test_features_around_the_means_of_other_clients(enlarged, factors):
    """From the class's covariance, whose eigenvalues, ascending, are multiplied by the factors."""
    labels, virtual = np.zeros(5, int), 40_000
    drawn = draw_virtual_features(FEATURES, labels, OWNERS, 1, 0, virtual, enlarged)
    assert drawn.features.shape == (2 * virtual, 2)
    values, vectors = np.linalg.eigh(class_covariances(FEATURES, labels)[0])
    for client in (0, 1):
        own = drawn.features[client == OWNERS[drawn.rows]]
        assert len(own) == virtual
        np.testing.assert_allclose(own.mean(axis=0), FEATURES[client != OWNERS].mean(axis=0), atol=0.05)
        np.testing.assert_allclose(np.cov(own.T), (vectors * values * factors) @ vectors.T, rtol=0.05, atol=0.05)
