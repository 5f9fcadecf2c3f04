"""Partitions: every example exactly once, the published bounds, and explained failures."""

import functools
import hashlib
import json

import numpy as np
from conftest import cases, check
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from fedjax_collapse import UserError, partition


def assert_exact_cover(parts, count):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 10),
    alpha=st.sampled_from([0.05, 0.1, 0.5, 5.0, 1e5]),
    seed=st.integers(0, 999),
    draw=st.sampled_from([partition.dirichlet, partition.pfllib_dir]),
)
def test_dirichlet_covers_exactly_and_keeps_its_bounds(classes, clients, alpha, seed, draw):
    """A client with an even share gets no row of the next class, by rounding neither.

    PFLlib's least size is that of batches of 10 and a quarter for the test.
    """
    labels = np.random.default_rng(seed).integers(0, classes, 400)
    options, least = {}, min(40, 400 // (2 * clients))
    if draw is partition.dirichlet:
        options, least = dict(min_size=5), 5
    try:
        parts = draw(labels, clients, alpha, seed, max_tries=50, **options)
    except UserError:
        reject()  # hopeless draws are another test's
    assert_exact_cover(parts, 400)
    assert len(parts) == clients and min(map(len, parts)) >= least
    counts = class_counts(labels, parts)
    assert np.all((np.cumsum(counts, axis=1) - counts < 400 / clients) | (counts == 0))


def assert_even(parts, count):
    """Every example exactly once, in parts whose sizes differ by at most one."""
    assert_exact_cover(parts, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 300),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([None, 1e-3, 0.1, 1.0, 1e5]),
    seed=st.integers(0, 99),
)
@example(count=150, clients=8, alpha=1e-3, seed=46)  # a client's weights of what is left are the smallest of floats
def test_iid_and_a_prior_per_client_cover_exactly_in_even_parts(count, clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 7, count)
    draw = functools.partial(partition.dirichlet_per_client, alpha=alpha) if alpha else partition.iid
    if clients > count:
        check(f"use at most {count} clients", draw, labels, clients, seed=seed)
    else:
        assert_even(draw(labels, clients, seed=seed), count)


CLASSES = np.repeat(np.arange(10), 100)
DOMAINS = np.tile([0, 0, 0, 1, 1, 2, 2, 2, 2, 2], 100)
DRAWS = {
    "iid": (dict(num_clients=10), "b0e19747"),
    "dirichlet": (dict(num_clients=10, alpha=0.1), "f01bd630"),
    "dirichlet_per_client": (dict(num_clients=10, alpha=0.1), "d662af60"),
    "pathological": (dict(num_clients=10, classes_per_client=3), "ffc4c30a"),
    "partially_disjoint": (dict(num_clients=10, classes_per_client=3), "a303adf6"),
    "quantity": (dict(num_clients=10, alpha=1.0), "5224d624"),
    "domain": (dict(num_clients=3, domains=DOMAINS, truncation=0.5), "a4961f54"),
    "pfllib_dir": (dict(num_clients=10, alpha=0.5), "c35640bf"),
    "pfllib_pat": (dict(num_clients=10), "1e5e439d"),
    "pfllib_exdir": (dict(num_clients=10, alpha=100.0), "c5c90c01"),
}


def class_counts(labels, parts):
    """[clients, classes]."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def test_same_seed_same_partition():
    """The hashes are fixed, so a change that moves published partitions cannot go unnoticed."""

    def digest(name, **arguments):
        parts = getattr(partition, name)(CLASSES, **arguments)
        return hashlib.sha256(b"|".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()[:8]

    for name, (arguments, expected) in DRAWS.items():
        assert digest(name, **arguments) == expected != digest(name, seed=1, **arguments), name


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(2, 12),
    clients=st.integers(1, 8),
    held=st.integers(1, 12),
    method=st.sampled_from((*partition.PATHOLOGICAL, "partially_disjoint")),
    seed=st.integers(0, 999),
)
def test_clients_hold_few_classes(classes, clients, held, method, seed):
    """In FedMR's order, 0, 1, 2, ... come first."""
    held, draw = min(held, classes), functools.partial(partition.pathological, method=method, max_tries=20)
    if method == "partially_disjoint":
        draw = partition.partially_disjoint
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 17))
    try:
        parts = draw(labels, clients, held, seed)
    except UserError as error:
        assert method == "niid" or (clients * held < classes and "have room for" in str(error)), error
        reject()
    if method == "partially_disjoint" and held == classes:
        assert_even(parts, len(labels))
        return
    assert_exact_cover(parts, len(labels))
    holds = class_counts(labels, parts) > 0
    holders = holds.sum(axis=0)
    if method == "shards":
        assert holds.sum(axis=1).max() <= held * (1 + -(-classes // (clients * held)))
        return
    assert np.all(holds.sum(axis=1) == held) and holders.min() >= 1
    if method == "balanced":
        assert holders.max() - holders.min() <= 1
    if method == "niid":
        assert np.all(holds[np.arange(clients), np.arange(clients) % classes])
    if method in ("sequential", "partially_disjoint"):
        assert np.all(holds[np.arange(classes) // held, np.arange(classes)])


def test_as_many_shards_as_examples():
    assert_even(partition.pathological(np.repeat([0, 1], 3), 3, 2, method="shards"), 6)


def test_double_pass_counts_every_example_twice():
    once, twice = (partition.partially_disjoint(CLASSES, 10, 3, double_pass=flag) for flag in (False, True))
    np.testing.assert_array_equal(np.bincount(np.concatenate(twice)), 2)
    np.testing.assert_array_equal(class_counts(CLASSES, twice), 2 * class_counts(CLASSES, once))


@settings(max_examples=20, deadline=None)
@given(clients=st.integers(1, 8), alpha=st.sampled_from([0.3, 1.0, 1e7]), seed=st.integers(0, 99))
def test_quantity_skew_is_in_the_sizes_alone(clients, alpha, seed):
    parts = partition.quantity(CLASSES, clients, alpha, seed, min_size=5)
    assert_exact_cover(parts, 1000)
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 5
    assert alpha < 1e7 or np.abs(sizes - 1000 / clients).max() <= 2
    largest = class_counts(CLASSES, parts)[sizes.argmax()] / sizes.max()
    assert np.abs(largest - 0.1).max() < 0.12


def test_a_client_per_domain():
    parts, cut = (partition.domain(CLASSES, 3, DOMAINS, truncation=truncation) for truncation in (0.0, 0.5))
    assert_exact_cover(parts, 1000)
    assert [len(part) for part in cut] == [100, 100, 100]
    for own in (parts, cut):
        assert [np.unique(DOMAINS[part]).tolist() for part in own] == [[0], [1], [2]]
    office = np.repeat(np.arange(4), [766, 898, 125, 236])  # Office-Caltech10: DSLR has 125 training images
    assert {len(part) for part in partition.domain(office, 4, office, truncation=0.5)} == {62}


def test_a_file_of_named_or_numbered_clients_and_of_repeated_rows(tmp_path):
    path = tmp_path / "parts.json"
    path.write_text('{"ward": [5, 1], "home": [2]}')
    parts = partition.from_file(CLASSES, 2, path)
    assert parts.names == ("ward", "home") and [part.tolist() for part in parts] == [[5, 1], [2]]
    path.write_text("[[0, 1], [1, 2]]")
    assert [part.tolist() for part in partition.from_file(CLASSES, 2, path, repeated=True)] == [[0, 1], [1, 2]]
    path.write_text(json.dumps({str(client): [client] for client in sorted(range(12), key=str)}))
    assert [part.tolist() for part in partition.from_file(CLASSES, 12, path)] == [[client] for client in range(12)]


@cases(
    ('{"0": [0], "2": [1]}', "keys 0, 2: expected the clients' numbers 0 to 1, each once"),
    ('{"0": [0], "ward": [1]}', "keys 0, ward: expected"),
    ('{"0": [0], "0": [1]}', "key '0' is there more than once"),
    ('{"ward": [0], "home": []}', "client home: expected a list of at least one row"),
    ("[[0, 1], [1, 2]]", "row 1 is listed more than once"),
    ("[[0, 1], [2, 1000]]", "rows 0 to 1000 are not all among the 1000 examples"),
    ("[[0, 1], [0.5]]", "client 1: expected a list of at least one row"),
    ("[[0, 1], [2], [3]]", "2 clients but 3 in"),
    ("[[0, 1]", "expected a JSON list"),
    (None, "cannot be read \\(No such file or directory\\); .*give the path of a partition file"),
)
def test_a_wrong_file_of_indices_is_explained(content, message, tmp_path):
    path = tmp_path / "parts.json"
    if content is not None:
        path.write_text(content)
    check(message, partition.from_file, CLASSES, 2, str(path))


def test_plain_dirichlet_does_not_balance():
    labels = np.repeat(np.arange(10), 300)
    sizes = [max(map(len, partition.dirichlet(labels, 10, 0.1, seed, balance=False, min_size=1))) for seed in range(8)]
    assert max(sizes) > 300 + 300


LABELS = np.repeat(np.arange(10), 500)
FINE = np.repeat(np.arange(100), 5)


@cases(
    ("dirichlet", LABELS, dict(num_clients=10, alpha=0.0), "alpha 0 is not positive"),
    ("dirichlet", LABELS, dict(num_clients=600, alpha=1.0), "use at most 500 clients"),
    ("dirichlet", LABELS, dict(num_clients=50, alpha=0.05), "no draw of 1000 gave each of 50 clients 10 of 5000"),
    ("dirichlet", LABELS, dict(num_clients=9, alpha=np.inf), "alpha inf is not finite; .* use iid"),
    ("quantity", LABELS, dict(num_clients=50, alpha=0.001, max_tries=9), "no draw of 9 gave each of 50"),
    ("pathological", FINE, dict(num_clients=10, classes_per_client=3), "room for 30 of 100 classes; use at least"),
    ("pathological", FINE, dict(num_clients=90, classes_per_client=90), "class 0 has 5 examples for 81 clients"),
    ("pathological", FINE, dict(num_clients=9, classes_per_client=101), "101 classes per client, expected 1 to"),
    ("pathological", FINE, dict(num_clients=9, classes_per_client=20, method="shard"), "'shard': expected one of"),
    ("pathological", FINE, dict(num_clients=10, classes_per_client=11, method="niid"), "use method='balanced'"),
    ("pathological", FINE, dict(num_clients=10, classes_per_client=51, method="shards"), "expected 1 to 50 shards"),
    ("partially_disjoint", FINE, dict(num_clients=9, classes_per_client=0), "0 classes per client, expected 1"),
    ("domain", CLASSES, dict(num_clients=4, domains=DOMAINS), "4 clients but 3 domains; use clients=3"),
    ("domain", CLASSES, dict(num_clients=3, domains=DOMAINS[1:]), "1000 examples need as many domains"),
    ("domain", CLASSES, dict(num_clients=3, domains=DOMAINS, truncation=0.001), "truncation 0.001 needs 1000"),
    ("domain", CLASSES, dict(num_clients=4, domains=DOMAINS + (DOMAINS > 0)), "leave a client without any"),
    ("pfllib_dir", CLASSES, dict(num_clients=20, alpha=0.01, max_tries=9), "no draw of 9 .*; raise alpha, lower"),
    ("pfllib_pat", CLASSES, dict(num_clients=7), r"classes 8 to 9 find no client .* \(7 \* 2\) a multiple"),
    ("pfllib_pat", CLASSES, dict(num_clients=3), "room for 6 of 10 classes; use at least"),
    ("pfllib_pat", CLASSES, dict(num_clients=900), "class 0 has 100 examples for 180 clients that take at least 1"),
    ("pfllib_exdir", CLASSES, dict(num_clients=20, alpha=0.01, max_tries=30), "no draw of 30 gave each of 20"),
    ("pfllib_exdir", CLASSES, dict(num_clients=20, alpha=1.0, classes_per_client=11), "11 classes per client, exp"),
    ("given", CLASSES, dict(num_clients=3, owners=np.arange(1000) % 2), "3 clients but 2 in the data; use"),
    ("given", CLASSES, dict(num_clients=2, owners=np.arange(9) % 2), "1000 examples need as many owners"),
)
def test_impossible_requests_are_explained(name, labels, arguments, message):
    check(message, getattr(partition, name), labels, **arguments)


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
