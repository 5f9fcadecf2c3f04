"""What users add of their own, each in a file of ``probes/``: short, of public names alone, and right."""

import ast
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, run_at_once
from probes.head_calibration import NearestMeans
from probes.top_k_memory import LargestEntries

import fedjax_collapse
from fedjax_collapse import Batch, FedAvg, LocalTraining, Model, Scaffold, nn

pytestmark = pytest.mark.slow

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)
FILES = sorted((Path(__file__).parents[1] / "probes").glob("[a-z]*.py"))


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


run = functools.partial(run_at_once, rounds=2)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_probe_is_short_and_of_public_names(file):
    tree = ast.parse(file.read_text())
    assert len(file.read_text().splitlines()) <= 40
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fedjax_collapse"):
            assert node.module == "fedjax_collapse"
            assert all(hasattr(fedjax_collapse, name.name) for name in node.names)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "_replace"


def test_top_k_with_error_feedback_on_scaffold(float64, federation, network):
    """In a round of one client, what is sent and what it keeps add up to its update; the variates see the whole."""
    alone = federation.with_partition(federation.owned_rows()[:1])
    start = network.init(jax.random.key(3))
    results = {
        name: run(alone, network, FedAvg(TRAINING, {"scaffold": Scaffold()} | methods), rounds=1, variables=start)
        for name, methods in {"whole": {}, "sparse": {"largest": LargestEntries(3)}}.items()
    }
    whole, sparse = (results[name].state for name in ("whole", "sparse"))
    assert_close(sparse.clients.memory["scaffold"], whole.clients.memory["scaffold"], 1e-9)
    moved = jax.tree.map(lambda new, old: np.asarray(new - old), sparse.server.variables.params, start.params)
    assert all(np.count_nonzero(leaf) <= 3 for leaf in jax.tree.leaves(moved))
    kept = jax.tree.map(lambda leaf: leaf[0], sparse.clients.memory["largest"])
    summed = jax.tree.map(lambda sent, kept, old: sent + kept + old, moved, kept, start.params)
    assert_close(summed, whole.server.variables.params, 1e-9)
    several = run(federation, network, FedAvg(TRAINING, {"scaffold": Scaffold(), "largest": LargestEntries(3)}))
    assert np.isfinite(several.metrics[-1]["loss"])


def test_head_calibration_after_each_round(federation, network):
    """The server's head is the nearest-mean classifier of all clients' features, whatever was averaged."""
    result = run(federation, network, FedAvg(TRAINING, {"scaffold": Scaffold(), "means": NearestMeans()}))
    params = result.state.server.variables.params
    rows = np.concatenate(federation.owned_rows())
    images = (np.asarray(federation.train.inputs)[rows].astype(np.float32) - 100) / 64
    batch = Batch(jnp.asarray(images), None, jnp.ones(len(rows), bool))
    features = np.asarray(network.apply(result.state.server.variables, batch, train=False)[0].features)
    labels = np.asarray(federation.train.labels)[rows]
    means = np.stack([features[labels == c].mean(axis=0) for c in range(4)])
    assert_close(params["Dense_1"]["kernel"], means.T, 1e-5)
    assert_close(params["Dense_1"]["bias"], -np.sum(means**2, axis=1) / 2, 1e-5)
