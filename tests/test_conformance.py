"""Every regularizer and every algorithm that lies in its folder keeps the contract; a new file is tested by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits

from experiments import build
from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn, simulate

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)


def make(kind, name):
    """The method with its default hyper-parameters, on FedAvg if it is a regularizer."""
    if kind == "algorithm":
        return build.class_named("algorithm", name)(training=TRAINING)
    return FedAvg(TRAINING, {name: build.class_named("regularizer", name)()})


METHODS = [(kind, name) for kind in ("algorithm", "regularizer") for name in build.classes(kind)]


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(16,)), federation.image_shape)


def start(network, algorithm):
    return engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(1))


def run(federation, network, algorithm, client_map, state, num_rounds=3):
    """State after, and record of, rounds with cohorts of three of the five clients."""
    state, record, _ = engine.run_rounds(
        algorithm, state, federation.train, federation.ownership, num_rounds,
        model=network, layout=engine.Layout(client_map, cohort_size=3, max_rounds=3),
    )  # fmt: skip
    return state, jax.device_get(record)


def values(state):
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_contract(float64, federation, network, kind, name):
    """Numbers are traced, rounds are finite, a client outside the cohort keeps its state, a run goes on with the same
    bits from nothing but its state, and layouts agree."""
    algorithm = make(kind, name)
    method = algorithm if kind == "algorithm" else algorithm.regularizers[name]
    method.check()
    assert all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(method))
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    before = jax.device_get(start(network, algorithm).clients)

    chunked = functools.partial(run, federation, network, algorithm, engine.Chunked(2))
    state, record = chunked(start(network, algorithm))
    state = values(state)
    for leaf in jax.tree.leaves((state.server, state.clients)):
        assert np.isfinite(leaf).all()
    for metric in record.metrics.values():
        assert (np.isfinite(metric) == (record.steps > 0)).all()

    absent = np.flatnonzero((record.steps == 0).all(axis=0))
    never = jax.tree.map(lambda leaf: leaf[absent], (before, state.clients))
    assert_same_bits(*never)

    after_one, _ = chunked(start(network, algorithm), num_rounds=1)
    restored = jax.tree.map(jnp.array, jax.device_get(after_one._replace(key=None)))._replace(key=after_one.key)
    resumed, _ = chunked(restored, num_rounds=2)
    assert_same_bits(values(resumed), state)

    vectorized, _ = run(federation, network, algorithm, engine.Vectorized(), start(network, algorithm))
    assert_close(state, values(vectorized), 1e-9)


@pytest.mark.parametrize("name", build.classes("regularizer"))
def test_a_silent_regularizer_is_absent_bit_for_bit(federation, network, name):
    regularizer = build.class_named("regularizer", name)()
    fields = ("strength", "intra", "inter", "variance", "uniformity", "covariance")
    changes = {field: 0.0 for field in fields if hasattr(regularizer, field)}
    if name == "fedproc":
        changes = {"ramp_rounds": 1.0}  # plain cross-entropy from the second round on, as in the first
    silent = FedAvg(TRAINING, {name: regularizer.replace(**changes)})
    results = [simulate(federation, network, a, rounds=2, key=jax.random.key(0)) for a in (FedAvg(TRAINING), silent)]
    assert_same_bits(results[0].variables, results[1].variables)
    assert results[0].metrics == results[1].metrics
