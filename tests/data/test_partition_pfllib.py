"""PFLlib's partitions: every row once, its bounds, equal seeds, and what cannot be drawn in one line."""

import numpy as np
import pytest
from conftest import one_line
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from test_partition import assert_exact_cover, class_counts, digest

from fedjax_collapse import UserError, partition
from fedjax_collapse.data.sources import digits

CLASSES = np.repeat(np.arange(10), 100)


@settings(max_examples=30, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 10),
    alpha=st.sampled_from([0.1, 0.5, 5.0]),
    seed=st.integers(0, 999),
)
def test_dir(classes, clients, alpha, seed):
    """The least size is that of batches of 10 and a quarter for the test; no client grows once it has an even share."""
    labels = np.random.default_rng(seed).integers(0, classes, 600)
    try:
        parts = partition.pfllib_dir(labels, clients, alpha, seed, max_tries=50)
    except UserError:
        reject()
    assert_exact_cover(parts, 600)
    assert min(map(len, parts)) >= min(40, 600 // (2 * clients))
    assert max(map(len, parts)) < 600 / clients + np.bincount(labels).max() + 1


def test_dir_is_dirichlet_with_its_least_size():
    labels = digits().pooled().labels  # 1,797, of which 20 clients have 89.85 each
    expected = partition.dirichlet(labels, 20, 0.1, min_size=40, max_tries=5000)
    assert digest(partition.pfllib_dir(labels, 20, 0.1)) == digest(expected)
    assert min(map(len, partition.pfllib_dir(labels, 40, 0.5))) >= 22  # half an even share is less than 40


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 12),
    held=st.integers(1, 12),
    balance=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pat(classes, clients, held, balance, seed):
    assume(held <= classes <= clients * held)
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 150))
    holders = -(-clients * held // classes)
    try:
        parts = partition.pfllib_pat(labels, clients, held, seed, balance)
    except UserError as error:
        assert "find no client with room" in str(error) and clients * held % classes
        return
    assert_exact_cover(parts, len(labels))
    counts = class_counts(labels, parts)
    assert (counts > 0).sum(axis=1).max() <= held and (counts > 0).sum(axis=0).max() <= holders
    for of_class in counts.T:
        *sizes, rest = of_class[of_class > 0]
        even = 150 / (len(sizes) + 1)
        least = max(even / 10, min(40, len(labels) / (2 * clients)) / classes)
        assert all(size == int(even) if balance else int(least) <= size < even for size in sizes)
        assert rest >= even


def test_pat_goes_in_order():
    """Ten classes, two each: clients 0 to 3 share classes 0 and 1. A part of a class is contiguous in the file."""
    parts = partition.pfllib_pat(CLASSES, 20, 2)
    assert [np.unique(CLASSES[part]).tolist() for part in parts] == [[k // 4 * 2, k // 4 * 2 + 1] for k in range(20)]
    first = np.sort(parts[0][CLASSES[parts[0]] == 0])
    np.testing.assert_array_equal(first, np.arange(len(first)))
    even = partition.pfllib_pat(CLASSES, 20, 10, balance=True)
    assert [len(part) for part in even] == [50] * 20


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(5, 20), held=st.integers(1, 10), alpha=st.sampled_from([0.5, 100.0]), seed=st.integers(0, 99)
)
def test_exdir(clients, held, alpha, seed):
    assume(clients * held >= 10)
    try:
        parts = partition.pfllib_exdir(CLASSES, clients, alpha, held, seed, max_tries=300)
    except UserError:
        reject()
    assert_exact_cover(parts, 1000)
    holds = class_counts(CLASSES, parts) > 0
    assert holds.sum(axis=1).max() <= held and min(map(len, parts)) >= 10
    assert alpha < 1 or holds.sum(axis=0).min() >= max(held * clients // 10 // 2, 1)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("pfllib_dir", dict(alpha=0.5), "c35640bf"),
        ("pfllib_pat", {}, "1e5e439d"),
        ("pfllib_exdir", dict(alpha=100.0), "c5c90c01"),
    ],
)
def test_same_seed_same_rows(name, options, expected):
    draw = getattr(partition, name)
    assert digest(draw(CLASSES, 10, **options)) == digest(draw(CLASSES, 10, **options, seed=0)) == expected
    assert digest(draw(CLASSES, 10, **options, seed=1)) != expected


@pytest.mark.parametrize(
    ("name", "clients", "options", "message"),
    [
        ("pfllib_dir", 20, dict(alpha=0.01, max_tries=9), "no draw of 9 gave .* 25 of 1000 .*; raise alpha, lower min"),
        ("pfllib_pat", 7, {}, r"classes 8 to 9 find no client with room, .* make .* \(7 \* 2\) a multiple of the 10"),
        ("pfllib_pat", 3, {}, "room for 6 of 10 classes; use at least"),
        ("pfllib_pat", 900, {}, "class 0 has 100 examples for 180 clients that take at least 1 each; use fewer"),
        ("pfllib_exdir", 20, dict(alpha=0.01, max_tries=30), "no draw of 30 gave each of 20 clients 10 of 1000"),
        ("pfllib_exdir", 20, dict(alpha=1.0, classes_per_client=11), "11 classes per client, expected 1 to 10"),
        ("given", 3, dict(owners=np.arange(1000) % 2), "3 clients but 2 in the data; use clients=2"),
        ("given", 2, dict(owners=np.arange(9) % 2), "1000 examples need as many owners"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(name, clients, options, message):
    with one_line(message):
        getattr(partition, name)(CLASSES, clients, **options)
