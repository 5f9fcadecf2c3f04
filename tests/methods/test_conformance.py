"""Every method that lies in ``methods/`` keeps the contract; a new file is tested by itself."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composed_algorithms import composed, network_of
from conftest import TWO_EPOCHS as TRAINING
from conftest import assert_same_bits, cases, check, one_line

import fedjax_collapse
from fedjax_collapse import REGRESSION, FedAvg, Method, Model, Participation, engine, nn, simulate
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import masks
from fedjax_collapse.methods.base import exclusives
from fedjax_collapse.schema.options import hints, problem

ALGORITHMS = [algorithm.replace(training=TRAINING) for algorithm in composed()]
ALGORITHMS += [  # adapters' methods that the composed ones leave out, and options that keep something else
    FedAvg(TRAINING, {name: kind()})
    for name, kind in METHODS.items()
    if not any(name in composed.methods for composed in ALGORITHMS)
]
ALGORITHMS += [
    FedAvg(TRAINING, {"afl": METHODS["afl"]()}),
    FedAvg(TRAINING, {"ccvr": METHODS["ccvr"](clients="all")}),
    FedAvg(TRAINING.replace(momentum_reset=False), {"scaffold": METHODS["scaffold"]()}),
]
WRONG = (-2, 0, 1.5, float("nan"), "none of them", (0,))
NEEDING_CLASSES = (
    "balanced_softmax", "ccvr", "feddr_plus", "fedetf", "fedgela", "fedlc", "fedrs", "fedvls", "fedrcl", "fedntd",
    "afl", "fed3r", "fedcgs", "gh_ofl", "fedpac", "fedproto", "fedrod", "backdoor", "label_flip",
    "fedmr", "fedproc", "feduv",
)  # fmt: skip
KEY = 9  # of five clients one takes no step in three rounds, one is in a later round only, one loses its upload
UNRELIABLE = Participation(0.6, dropout=0.2, stragglers=0.5, upload_loss=0.5)


def start(network, algorithm):
    return engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(KEY))


def run(federation, network, algorithm, client_map, state, num_rounds=3):
    """State after, and record of, rounds with cohorts of three of the five clients."""
    rounds = engine.RoundSpec(network, engine.Layout(client_map, cohort_size=3, max_rounds=3))
    data = engine.Assignment(federation.ownership, jax.tree.map(jnp.asarray, UNRELIABLE))
    advance = engine.run_rounds(rounds, algorithm, state, data, federation.train, num_rounds)
    return advance.state, jax.device_get(advance.record)


def values(state):
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def test_methods_are_found():
    """By the names of their files, without the modules that they share and their contract."""
    files = {path.stem for path in Path(fedjax_collapse.methods.__file__).parent.rglob("[a-z]*.py")}
    assert METHODS.keys() == files - {"base"}
    assert all(issubclass(method, Method) for method in METHODS.values())


def test_every_method_is_a_public_name():
    """Type checkers see no class that is only found by its file: it has a line in ``methods/__init__.py``."""
    for method in METHODS.values():
        assert getattr(fedjax_collapse, method.__name__) is method


@pytest.mark.parametrize("name", METHODS)
def test_wrong_options_are_named(name):
    """What an option allows is on the page of methods, which ``test_docs_methods.py`` compares with the code."""
    kind = METHODS[name]
    for option, hint in hints(kind).items():
        wrong = [value for value in WRONG if problem(value, hint)]
        assert wrong
        for value in wrong:
            check(f"^{kind.__name__}: {option} ", FedAvg(methods={"it": kind(**{option: value})}).check)


@pytest.mark.parametrize("hook", exclusives())
def test_methods_with_one_exclusive_hook_do_not_go_together(hook):
    owners = [kind() for kind in METHODS.values() if kind().has(hook)]
    assert owners
    for other in owners:
        with one_line(f"^methods a and b: each ({'|'.join(exclusives().values())})"):
            FedAvg(methods={"a": owners[0], "b": other}).check()


def test_methods_that_need_classes():
    regression = Model(nn.MLP(4, hidden=(6,)), (8, 8, 2), task=REGRESSION)
    for name in NEEDING_CLASSES:
        check(r"no classes|(a|the) task of classification", FedAvg(methods={"it": METHODS[name]()}).check, regression)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: "-".join(algorithm.methods))
def test_contract(float64, federation, algorithm):
    """With partial cohorts, of whom some drop out, take half of their steps, or lose their upload.

    Numbers are traced, rounds are finite, a client outside the cohort keeps its state, but for what the server makes
    for it, one whose upload is lost does not, if the method has any, and a run continues with the same bits from
    nothing but its state. That layouts agree is in ``tests/engine/test_devices.py``, for all methods.
    """
    methods, network = algorithm.methods, network_of(algorithm)
    for name, method in methods.items():
        assert method.enabled() and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(method)), name
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    before = jax.device_get(start(network, algorithm).clients)
    dispatched = [name for name, method in methods.items() if method.has("dispatch")]
    takes_mean = any(getattr(method, "newcomers", "") == "mean" for method in methods.values())  # in place of its head

    def kept(clients, ids):
        memory = {name: own for name, own in clients.memory.items() if name not in dispatched}
        private = {} if takes_mean else clients.private
        return jax.tree.map(lambda leaf: np.asarray(leaf)[ids], (private, memory))

    chunked = functools.partial(run, federation, network, algorithm, engine.Chunked(2))
    state, record = chunked(start(network, algorithm))
    state, arrived = values(state), record.metrics["arrived"]
    for path, leaf in masks.by_path((state.server, state.clients)).items():
        assert np.isfinite(leaf).all(), path
    for name, metric in record.metrics.items():
        assert (np.isfinite(metric) == (record.steps > 0)).all(), name

    absent = np.flatnonzero((record.steps == 0).all(axis=0))
    assert len(absent)
    assert_same_bits(kept(before, absent), kept(state.clients, absent))
    lost = np.flatnonzero((arrived == 0).any(axis=0) & ~(arrived == 1).any(axis=0))
    assert len(lost)
    for name in before.memory:
        own = [(of.memory[name], of.private if name in dispatched else ()) for of in (before, state.clients)]
        pairs = [*zip(*map(jax.tree.leaves, own), strict=True)]
        assert not pairs or any((a[lost] != b[lost]).any() for a, b in pairs), name

    after_one, _ = chunked(start(network, algorithm), num_rounds=1)
    outside = np.flatnonzero(record.steps[0] == 0)
    assert len(outside) >= 2 and (record.steps[1:, outside] > 0).any()
    assert_same_bits(kept(before, outside), kept(after_one.clients, outside))
    restored = jax.tree.map(jnp.array, jax.device_get(after_one._replace(key=None)))._replace(key=after_one.key)
    resumed, _ = chunked(restored, num_rounds=2)
    assert_same_bits(values(resumed), state)


def silent(name):
    """FedAvg with the method at strengths of 0."""
    changes = dict.fromkeys(METHODS[name].strengths, 0.0)
    if name == "fedproc":
        changes = {"ramp_rounds": 1.0}  # plain cross-entropy from the second round on, as in the first
    return FedAvg(TRAINING, {name: METHODS[name](**changes)})


@pytest.mark.parametrize(
    "name", [name for name, kind in METHODS.items() if kind.strengths or kind.enabled is not Method.enabled]
)
def test_a_method_that_does_nothing_is_absent(name):
    assert silent(name).enabled() == FedAvg(TRAINING)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.strengths])
def test_a_method_with_one_strength_is_there(name):
    for kept in METHODS[name].strengths:
        others = dict.fromkeys(METHODS[name].strengths, 0.0) | {kept: 0.5}
        assert METHODS[name](**others).enabled()


@pytest.mark.slow
@cases("fedprox", "fedproc")
def test_a_run_is_that_of_the_enabled_algorithm_bit_for_bit(name, federation):
    both = FedAvg(TRAINING), silent(name)
    results = [simulate(federation, network_of(a), a, rounds=2, key=jax.random.key(0)) for a in both]
    assert_same_bits(results[0].variables, results[1].variables)
    assert results[0].metrics == results[1].metrics
