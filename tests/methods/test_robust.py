"""Robust rules and attacks: test vectors, padding and lost uploads, and rejected settings."""

import dataclasses
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_close, assert_same_bits, cases, check, run_at_once

from experiments.configs import robust
from fedjax_collapse import FedAvg, FedExP, methods, simulate
from fedjax_collapse.config.build import algorithm
from fedjax_collapse.config.cells import cells_of
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import resolve_arm
from fedjax_collapse.core.records import Batch, Drawn, Server, Variables
from fedjax_collapse.methods import CohortView
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.methods.robust._attacks import Honest
from fedjax_collapse.methods.robust.alie import deviations
from fedjax_collapse.methods.robust.min_max import largest_step
from fedjax_collapse.training import server

UPLOADS = [
    (1.0, 0.0, 2.0), (1.3, 0.1, 1.7), (0.8, -0.3, 2.2), (1.1, 0.4, 2.4), (0.6, -0.2, 1.9),
    (10.0, -10.0, 0.0), (-5.0, 5.0, 5.0),
]  # fmt: skip
PRECISION = 5e-8  # of the vectors' digits


def tree_of(vectors):
    """As params: a matrix, a vector, and what is never sent."""
    vectors = jnp.asarray(vectors)
    return {"bias": vectors[..., 2:], "frozen": None, "kernel": vectors[..., :2].reshape(*vectors.shape[:-1], 1, 2)}


def vector_of(tree):
    """Of one upload."""
    return np.concatenate([np.ravel(tree["kernel"]), np.ravel(tree["bias"])])


def cohort(count, shared=(), padding=0):
    """View of the first uploads, each of a client of its own, with padding among them."""
    counted = jnp.arange(count + padding) != 1 if padding else jnp.ones(count, bool)
    ids = jnp.cumsum(counted) - 1
    return CohortView(
        shared=shared,
        id=jnp.where(counted, ids, count),
        counted=counted,
        weight=counted / count,
        num_clients=jnp.array(count),
        round=jnp.array(0),
        key=jax.random.split(jax.random.key(0), count + padding),
    )


def combined(method, count=7, shared=()):
    """What the method makes of the uploads, with padding among them, which is a number (``server.combine_uploads``)."""
    vectors, view = np.insert(np.array(UPLOADS[:count]), 1, 77.0, axis=0), cohort(count, shared, padding=1)
    made = jax.jit(lambda method, stacked: method.combine_uploads(stacked, view))(method, tree_of(vectors))
    assert made["frozen"] is None
    return vector_of(made)


RULES = {  # of all seven uploads
    "median": (methods.Median(), (1, 0, 2)),
    "trimmed mean, 1": (methods.TrimmedMean(1), (0.96, 0, 2.04)),
    "trimmed mean, 2": (methods.TrimmedMean(2), (0.9666667, -0.0333333, 2.0333333)),
    "krum": (methods.Krum(2), UPLOADS[0]),
    "multi-krum, 3": (methods.Krum(2, 3), (0.8, -0.1666667, 2.0333333)),
    "multi-krum": (methods.Krum(2, 0), (0.8, -0.1666667, 2.0333333)),
    "bulyan": (methods.Bulyan(1), (0.9666667, -0.0333333, 2.0333333)),
    "geometric median": (methods.GeometricMedian(), (0.9722305, -0.019716, 2.0215726)),
    "norm bound": (methods.NormBound(2.5), (0.7220392, -0.049984, 1.6414848)),
    "centred clipping, 1": (methods.CentredClipping(1.0), (0.3191869, -0.0228955, 0.720723)),
    "centred clipping, 3 steps": (methods.CentredClipping(1.0, 3), (0.8571537, -0.0383939, 1.8849239)),
    "centred clipping, 10": (methods.CentredClipping(10.0), (0.9815811, -0.2958668, 2.1714286)),
}


@pytest.mark.parametrize("name", RULES)
def test_vectors_of_rules(float64, name):
    method, expected = RULES[name]
    shared = tree_of(np.zeros(3)) | {"frozen": jnp.ones(2)}
    assert_close(combined(method, shared=shared), np.array(expected), PRECISION)


def test_an_even_median_is_the_mean_of_both(float64):
    assert_close(combined(methods.Median(), 6), np.array([1.05, -0.1, 1.95]), 1e-12)


def test_equal_scores_are_in_the_order_of_identities():
    """Of updates of small integers, whose scores are exact in float32, too."""

    @jax.jit
    def rank(stacked, counted, ids):
        return _robust.krum_ranks(_robust.squared_distances(stacked, counted), counted, ids, 1)

    rng, ties = np.random.default_rng(0), 0
    for _ in range(100):
        vectors, ids = rng.integers(-2, 3, (6, 3)), rng.permutation(6)
        squares = np.sort(np.sum((vectors[:, None] - vectors[None]) ** 2, axis=2), axis=1)
        scores = squares[:, 1:4].sum(1)  # of 6 - 1 - 2, but itself
        found = rank(tree_of(vectors.astype(np.float32)), jnp.ones(6, bool), jnp.asarray(ids))
        assert np.argsort(found).tolist() == np.lexsort((ids, scores)).tolist()
        ties += np.sum(scores == scores.min()) > 1
    assert ties > 10


@cases((4096, 1), (0, 1e6))
def test_distances_of_uploads_that_have_much_in_common(common, farthest):
    """In float32; all digits are lost without a subtraction, or of honest uploads beside one that is huge."""
    rows = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    rows[3] *= farthest
    rows += common
    expected = np.sum((rows[:, None].astype(float) - rows[None]) ** 2, axis=2) + np.diag([np.inf] * 5)
    found = jax.jit(_robust.squared_distances)({"w": rows}, np.ones(5, bool))
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    pairs = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(np.asarray(found)[pairs], expected[pairs], rtol=1e-5)


def test_trust(float64):
    """The root's upload is the reference, and does not count unless it is among the others."""
    stacked, root = tree_of(UPLOADS), tree_of(UPLOADS[0])
    trusted_mean = jax.jit(_robust.trusted_mean)
    found = trusted_mean(stacked, jnp.ones(7, bool), root)
    assert_close(vector_of(found), np.array([0.8732901, -0.0422373, 1.8503881]), PRECISION)
    others = jnp.arange(7) > 0
    expected = vector_of(trusted_mean(stacked, others, root))
    assert_close(combined(methods.FLTrust(0)), expected, 1e-12)
    assert np.abs(expected - vector_of(found)).max() > 1e-3
    opposed = tree_of(-np.array(UPLOADS[:1]))
    assert not np.any(vector_of(trusted_mean(opposed, jnp.ones(1, bool), root)))


@pytest.mark.parametrize("method", [m() for m in (methods.Median, methods.TrimmedMean, methods.Krum, methods.Bulyan)])
def test_few_uploads_are_enough(float64, method):
    """Uploads may be lost: of one it is what is used, of none 0."""
    assert_close(combined(method, 1), np.array(UPLOADS[0]), 1e-12)
    nothing = dataclasses.replace(cohort(1), counted=jnp.zeros(1, bool))
    made = jax.jit(lambda stacked: method.combine_uploads(stacked, nothing))(tree_of(UPLOADS[:1]))
    assert not np.any(vector_of(made))


ATTACKS = {  # of the last two of seven clients
    "alie": (methods.ALIE(0.3), (0.8915494, -0.069382, 1.9715494)),
    "ipm": (methods.IPM(0.3, 0.5), (-0.48, 0, -1.02)),
    "min-max": (methods.MinMax(0.3), (0.7381327, -0.2248860, 1.8181327)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_vectors_of_attacks(float64, name):
    """Honest uploads stay as they are; padding, with whatever it holds, changes nothing."""
    method, expected = ATTACKS[name]

    def corrupted(vectors, view):
        return jax.jit(lambda stacked: method.corrupt_uploads(stacked, view))(tree_of(vectors))

    plain = corrupted(UPLOADS, cohort(7))
    rows = np.concatenate([plain["kernel"].reshape(7, 2), plain["bias"]], axis=1)
    assert_close(rows[:5], np.array(UPLOADS[:5]), 0)
    assert_close(rows[5:], np.array([expected] * 2), PRECISION)
    padded = corrupted(np.insert(np.array(UPLOADS), 1, 77.0, axis=0), cohort(7, padding=1))
    assert_close(vector_of(jax.tree.map(lambda leaf: leaf[-1], padded)), np.array(expected), PRECISION)


def test_numbers_of_attacks(float64):
    counts = np.array([(7, 2), (20, 4), (50, 10), (100, 20), (10, 2), (2, 1), (1, 1), (4, 4)])
    found = jax.jit(jax.vmap(lambda count, malicious: deviations(count - malicious, malicious)))(*counts.T)
    assert_close(found[:4], np.array([0.2533471, 0.1573107, 0.2533471, 0.2858409]), PRECISION)
    assert found[4:].tolist() == [0, 0, 0, 0]

    def steps():
        for count, malicious in ((5, 2), (1, 1)):
            honest = Honest(tree_of(UPLOADS[:count]), jnp.ones(count, bool), malicious)
            yield largest_step(honest, honest.deviation)

    assert_close(jax.jit(lambda: [*steps()])(), [0.8211676453, 0], PRECISION)


def test_attacks_on_data(federation, network):
    images = np.asarray(federation.train.inputs[:6], np.float32)
    batch = Batch(jnp.asarray(images), jnp.array([0, 1, 2, 3, 1, 2]), jnp.arange(6) < 5)
    clients = [SimpleNamespace(id=jnp.array(id), num_clients=jnp.array(5)) for id in (4, 3)]  # malicious is the last
    mine, other = (SimpleNamespace(client=client, model=network) for client in clients)
    flipped = methods.LabelFlip().batch(batch, mine)
    assert flipped.labels.tolist() == [3, 2, 1, 0, 2, 1]
    backdoor = methods.Backdoor(target=2, poisoned=0.5, size=3)
    for method in (methods.LabelFlip(), backdoor):
        assert_same_bits(method.batch(batch, other), batch)
    found = backdoor.batch(batch, mine)  # three of five are patched
    assert found.labels.tolist() == [2, 2, 2, 3, 1, 2]
    expected = images.copy()
    expected[:3, 5:, 5:] = images[:5].max(axis=(0, 1, 2))
    assert_same_bits(found.inputs, expected)
    assert_same_bits(found._replace(inputs=()), batch._replace(inputs=(), labels=found.labels))


class Seen(methods.Method):
    """A client remembers its labels: its class counts, two passes over its data, and what it trains on."""

    def init_memory(self, variables, shapes):
        return (jnp.zeros(4, int),) * 4

    def init_carry(self, view):
        return jnp.zeros(4, int)

    def carry(self, view):
        return view.carry + self.count(view.batch)

    def finish(self, view):
        passed = view.over_batches(lambda total, batch: total + self.count(batch), jnp.zeros(4, int))
        return (view.class_counts, view.sum_over_batches(self.count), passed, view.carry), ()

    @staticmethod
    def count(batch):
        return jnp.zeros(4, int).at[batch.labels].add(batch.mask)


def test_all_that_a_malicious_client_computes_is_of_changed_batches(federation, network):
    """The last of five clients; the others have their own labels."""
    result = run_at_once(federation, network, FedAvg(TRAINING, {"flip": methods.LabelFlip(), "seen": Seen()}))
    expected = np.array(federation.class_counts())
    assert expected[4].tolist() != expected[4][::-1].tolist()
    expected[4] = expected[4][::-1]
    for counts in result.state.clients.memory["seen"]:
        np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("method", [methods.NormBound(), methods.GeometricMedian(), methods.CentredClipping()])
def test_what_does_not_count_is_never_read(method):
    """Uploads of padding, and those that are lost, may hold what is no number."""
    algorithm, counted = FedAvg(methods={"it": method}), jnp.array([True, False, True])
    params = {"w": jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf], [3.0, -1.0]])}
    clients = Drawn(
        id=jnp.arange(3), size=jnp.ones(3, int), weight=jnp.array([0.5, 0.0, 0.5]), arrives=counted,
        key=jax.random.split(jax.random.key(0), 3), num_clients=jnp.full(3, 3), mean_size=jnp.ones(3),
    )  # fmt: skip
    shared = {"it": method.init_shared(Variables({"w": jnp.zeros(2)}, {}), None) if method.has("init_shared") else ()}
    made = server.combine_uploads(algorithm, Server(None, shared, ()), 0, clients, params)
    alone = jax.tree.map(lambda leaf: leaf[::2], (clients, params))
    expected = server.combine_uploads(algorithm, Server(None, shared, ()), 0, *alone)
    assert_same_bits(made, expected)


def test_as_many_are_malicious_as_are_counted(float64):
    attack = methods.SignFlip(0.3)
    for count in (3, 5, 10, 20):
        expected = np.arange(count + 1) >= count - attack.count(count)
        expected[count] = False  # padding
        assert attack.is_malicious(jnp.arange(count + 1), jnp.array(count)).tolist() == expected.tolist()


@cases(
    (methods.Krum(2), 6, "Krum: a cohort has 6 clients, expected at least 2 attackers [+] 3 = 7; "),
    (methods.Bulyan(1), 6, "Bulyan: a cohort has 6 clients, expected at least 4 attackers [+] 3 = 7; "),
    (methods.TrimmedMean(3), 6, "TrimmedMean: a cohort has 6 clients, expected at least 2 trim [+] 1 = 7; "),
    (methods.FLTrust(), 6, "FLTrust: a cohort has 6 of the 10 clients, .* expected all of them"),
    (methods.FLTrust(10), 10, "FLTrust: root 10: expected a client, from 0 to 9"),
    (methods.SignFlip(0.04), 10, "SignFlip: share 0.04 of 10 clients is none, expected at least one"),
)
def test_cohorts_that_do_not_fit(chosen, cohort_size, message):
    check(f"^{message}", chosen.check_cohort, cohort_size, 10)


def test_an_attack_without_deviations_warns():
    with pytest.warns(UserWarning, match="ALIE: with 2 of 10 clients in a cohort malicious z is 0"):
        methods.ALIE(0.2).check_cohort(10, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods.ALIE(0.2).check_cohort(20, 20)
        methods.ALIE(0.2, 1.0).check_cohort(10, 10)


@cases(
    ((methods.Median(), FedExP()), "methods 1 and 0: the server step of 1 needs the mean of the uploads"),
    ((methods.FlexLoRA(), methods.IPM()), "methods 0 and 1: the server step of 0 needs the mean of"),
    ((methods.FedAMP(), methods.Krum()), "method 1: clients upload no params"),
    ((methods.Backdoor(size=9),), r"Backdoor: size 9: inputs have the shape \(8, 8, 2\)"),
    ((methods.Backdoor(target=4),), "Backdoor: target 4: expected a class, from 0 to 3"),
    ((methods.Krum(),), "Krum: a cohort has 2 clients"),
)
def test_what_does_not_fit_is_found_before_a_run(chosen, message, federation, network):
    chosen = FedAvg(methods={str(i): method for i, method in enumerate(chosen)})
    check(f"^{message}", simulate, federation, network, chosen, participation=0.5, rounds=1, key=jax.random.key(0))


def test_the_study_joins_attacks_with_methods_and_rules():
    config = plain(robust.get_config())
    found = {str(cell): algorithm(resolve_arm(config, cell.arm, cell.setting)) for cell in cells_of(config)}
    assert len(found) == 12 * 4 and found["none/fedavg"].methods == {}
    assert set(found["alie/decov_krum"].methods) == {"alie", "decov", "krum"}
    krum = found["backdoor/feduv_krum"].methods["krum"]
    krum.check_cohort(20, 20)
    assert krum.attackers == found["backdoor/feduv"].methods["backdoor"].count(20) == 4
