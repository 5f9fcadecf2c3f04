"""Every regularizer and every algorithm that lies in its folder keeps the contract; a new file is tested by itself."""

import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits

from experiments import build
from fedjax_collapse import FedAvg, LocalTraining, Model, algorithms, engine, nn, regularizers, simulate

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)


def names(package):
    return [m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in ("base", "local_training")]


def make(kind, name):
    """The method with its default hyper-parameters, on FedAvg if it is a regularizer."""
    if kind == "algorithm":
        return build.class_named("algorithm", algorithms, name)(training=TRAINING)
    return FedAvg(TRAINING, {name: build.class_named("regularizer", regularizers, name)()})


METHODS = [("algorithm", name) for name in names(algorithms)] + [("regularizer", name) for name in names(regularizers)]


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(16,)), federation.image_shape)


def run(federation, network, algorithm, client_map, num_rounds=3):
    """State before and after, from a fixed start with cohorts of three of the five clients."""
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    state = engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(1))
    before = jax.device_get(state.clients)
    state, record, _ = engine.run_rounds(
        algorithm, state, federation.train, federation.ownership, num_rounds,
        model=network, client_map=client_map, cohort_size=3, max_rounds=3,
    )  # fmt: skip
    return before, jax.device_get(state._replace(key=jax.random.key_data(state.key))), jax.device_get(record)


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_contract(float64, federation, network, kind, name):
    """Numbers are traced, rounds are finite, layouts agree, and a client outside the cohort keeps its state."""
    algorithm = make(kind, name)
    method = algorithm if kind == "algorithm" else algorithm.regularizers[name]
    method.check()
    assert all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(method))

    before, state, record = run(federation, network, algorithm, engine.Chunked(2))
    for leaf in jax.tree.leaves((state.server, state.clients)):
        assert np.isfinite(leaf).all()
    for values in record.metrics.values():
        assert (np.isfinite(values) == (record.steps > 0)).all()

    absent = np.flatnonzero((record.steps == 0).all(axis=0))
    never = jax.tree.map(lambda leaf: leaf[absent], (before, state.clients))
    assert_same_bits(*never)

    _, vectorized, _ = run(federation, network, algorithm, engine.Vectorized())
    assert_close(state, vectorized, 1e-9)


@pytest.mark.parametrize("name", names(regularizers))
def test_a_silent_regularizer_is_absent_bit_for_bit(federation, network, name):
    regularizer = build.class_named("regularizer", regularizers, name)()
    fields = ("strength", "intra", "inter", "variance", "uniformity", "covariance")
    changes = {field: 0.0 for field in fields if hasattr(regularizer, field)}
    if name == "fedproc":
        changes = {"ramp_rounds": 1.0}  # plain cross-entropy from the second round on, as in the first
    silent = FedAvg(TRAINING, {name: regularizer.replace(**changes)})
    results = [simulate(federation, network, a, rounds=2, key=jax.random.key(0)) for a in (FedAvg(TRAINING), silent)]
    assert_same_bits(results[0].variables, results[1].variables)
    assert results[0].metrics == results[1].metrics
