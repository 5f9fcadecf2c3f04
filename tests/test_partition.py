"""Partitions: every example exactly once, the published bounds, and explained failures."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import UserError, partition, sources


def assert_exact_cover(parts, count):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([0.05, 0.1, 0.5, 5.0, 1e5]),
    seed=st.integers(0, 999),
)
def test_dirichlet_covers_exactly_and_keeps_its_bounds(classes, clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, classes, 400)
    try:
        parts = partition.dirichlet(labels, clients, alpha, seed, min_size=5, max_tries=50)
    except UserError:
        return  # hopeless draws are another test's
    assert_exact_cover(parts, 400)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients and min(sizes) >= 5
    assert max(sizes) < 400 / clients + np.bincount(labels).max() + 1


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 200), clients=st.integers(1, 20), seed=st.integers(0, 99))
def test_iid_covers_exactly_in_even_parts(count, clients, seed):
    labels = np.zeros(count, int)
    if clients > count:
        with pytest.raises(UserError, match=f"use at most {count} clients"):
            partition.iid(labels, clients, seed)
        return
    parts = partition.iid(labels, clients, seed)
    assert_exact_cover(parts, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_large_alpha_is_uniform_and_small_alpha_is_not():
    labels = np.repeat(np.arange(10), 500)
    share = {}
    for alpha in (0.1, 1e5):
        parts = partition.dirichlet(labels, 10, alpha)
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        share[alpha] = np.abs(counts / 500 - 0.1).max()
    assert share[1e5] < 0.01 and share[0.1] > 0.3


def test_same_seed_same_partition():
    labels = sources.digits().labels
    parts = partition.dirichlet(labels, 10, 0.1, seed=0)
    digest = hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()
    assert digest[:16] == "711e60ca3f27e0ce"
    other = partition.dirichlet(labels, 10, 0.1, seed=1)
    assert [len(p) for p in parts] != [len(p) for p in other]


def test_rounding_never_gives_a_row_to_a_client_without_a_share():
    """With float error the cumulative shares may end below 1; the released routine then feeds the last, full client."""
    labels = np.repeat(np.arange(30), 40)
    for seed in range(20):
        parts = partition.dirichlet(labels, 6, 0.5, seed)
        assert max(map(len, parts)) < 1200 / 6 + 40


def test_plain_dirichlet_does_not_balance():
    labels = np.repeat(np.arange(10), 300)
    sizes = [max(map(len, partition.dirichlet(labels, 10, 0.1, seed, balance=False, min_size=1))) for seed in range(8)]
    assert max(sizes) > 300 + 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_clients=10, alpha=0.0), "alpha 0 is not positive"),
        (dict(num_clients=10, alpha=-1.0), "alpha -1 is not positive"),
        (dict(num_clients=0, alpha=1.0), "clients: 0 is too small"),
        (dict(num_clients=600, alpha=1.0), "use at most 500 clients"),
        (dict(num_clients=50, alpha=0.01, max_tries=20), "no draw of 20 gave each of 50 clients 10 of 5000 examples"),
    ],
)
def test_impossible_requests_are_explained(arguments, message):
    labels = np.repeat(np.arange(10), 500)
    with pytest.raises(UserError, match=message) as error:
        partition.dirichlet(labels, **arguments)
    assert "\n" not in str(error.value)
