"""What users add of their own, each in a file of ``probes/``: short, of public names alone, and right."""

import ast
import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, run_at_once
from probes.collapse_measures import cka, linear_cka, nc1
from probes.head_calibration import NearestMeans
from probes.logit_calibration import calibrated
from probes.optimizers import local_adam, scaffold_fedadam
from probes.regression import federation as regression_federation
from probes.text_classifier import federation as text_federation
from probes.top_k_memory import LargestEntries
from probes.unreliable_clients import UNRELIABLE

import fedjax_collapse
from fedjax_collapse import (
    Batch,
    FedAvg,
    FedDecorr,
    FedNova,
    LocalTraining,
    Model,
    Outputs,
    Scaffold,
    nn,
)

pytestmark = pytest.mark.slow

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)
FILES = sorted((Path(__file__).parents[1] / "probes").glob("[a-z]*.py"))
Z = np.array([[1, 0.5, -0.5], [0.2, -1, 0.8], [0, 0.3, 0.6]])
Y = np.array([0, 2, 0])


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


run = functools.partial(run_at_once, rounds=2)


def view(logits, labels=Y, **fields):
    """A view of a batch with a row of padding."""
    logits = jnp.concatenate([jnp.asarray(logits), jnp.full((1, logits.shape[1]), 7.0)])
    batch = Batch(None, jnp.append(labels, 0), jnp.arange(len(labels) + 1) < len(labels))
    return SimpleNamespace(outputs=Outputs(None, logits), batch=batch, **fields)


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


def one_step(federation, model, algorithm):
    """Params before and after one step of one client on all of its data, and the gradient of its loss."""
    alone = federation.with_partition(federation.owned_rows()[:1])
    variables = model.init(jax.random.key(1))
    training = algorithm.training.replace(batch_size=64, momentum=0.0)
    result = run(alone, model, algorithm.replace(training=training), rounds=1, variables=variables)
    rows = np.sort(federation.owned_rows()[0])
    images = (np.asarray(federation.train.inputs)[rows].astype(float) - 100) / 64
    batch = Batch(jnp.asarray(images), federation.train.labels[rows], jnp.ones(len(rows), bool))

    def loss(params):
        return model.task.loss(model.apply(variables._replace(params=params), batch, train=True)[0], batch)

    return variables.params, result.variables.params, jax.grad(loss)


def test_logit_calibration(float64, federation, network):
    value = calibrated(view(Z, class_counts=jnp.array([6, 1, 2])))
    assert float(value) == pytest.approx(0.8095601294, abs=1e-10)
    value = calibrated(view(Z, class_counts=jnp.array([6, 0, 2])))
    assert float(value) == pytest.approx(0.5438839129, abs=1e-10)
    training = TRAINING.replace(task_loss=calibrated)
    result = run(federation, network, FedAvg(training, {"feddecorr": FedDecorr(0.1, "official")}))
    plain = run(federation, network, FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1, "official")}))
    assert np.isfinite(result.metrics[-1]["loss"]) and result.metrics[-1]["loss"] != plain.metrics[-1]["loss"]


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


def test_fedadam_is_the_server_of_scaffold(float64, federation, network):
    """Adam's first step is the learning rate in the direction of every entry's mean update."""
    start = network.init(jax.random.key(3))
    plain = run(federation, network, FedAvg(TRAINING, {"scaffold": Scaffold()}), rounds=1, variables=start)
    result = run(federation, network, scaffold_fedadam(TRAINING), rounds=1, variables=start)
    for new, mean, old in zip(
        *(jax.tree.leaves(v.params) for v in (result.variables, plain.variables, start)), strict=True
    ):
        moved = np.abs(mean - old) > 1e-5
        np.testing.assert_allclose((new - old)[moved], 0.01 * np.sign(mean - old)[moved], rtol=2e-3)


def test_local_adam(float64, federation, network):
    old, new, gradient = one_step(federation, network, local_adam(0.01))
    for a, b, g in zip(*(jax.tree.leaves(tree) for tree in (old, new, gradient(old))), strict=True):
        moved = np.abs(g) > 1e-5
        np.testing.assert_allclose((b - a)[moved], -0.01 * np.sign(g)[moved], rtol=2e-3)


def test_dropouts_and_stragglers_on_fednova(float64, federation, network):
    """Steps are all or half of them; FedNova's mean is that of those who came back, by hand."""
    start = network.init(jax.random.key(3))
    algorithm = FedAvg(TRAINING.replace(momentum=0.0, epochs=2), {"fednova": FedNova()})
    result = run(
        federation, network, algorithm, rounds=20, variables=start, participation=UNRELIABLE, evaluate_every=20
    )
    steps = result.clients["steps"]
    whole = np.array([2 * n for n in (3, 1, 5, 3, 3)])
    taking_part = steps > 0
    assert ((steps == whole) | (steps == whole // 2) | ~taking_part).all()
    assert (np.isfinite(result.clients["task_loss"]) == taking_part).all()
    assert 1 <= taking_part.sum(axis=1).min() < taking_part.sum(axis=1).max() == 4
    assert (
        0.3 < 1 - taking_part.mean() < 0.6
    )  # one in five is not drawn, and of the others three in ten do not come back
    assert 0.3 < np.mean((steps < whole)[taking_part]) < 0.7

    first = run(federation, network, algorithm, rounds=1, variables=start, participation=UNRELIABLE, watch="all")
    sizes, taken = np.asarray(federation.ownership.sizes), first.clients["steps"][0]
    models = {}

    def keep(view):
        models.update({client: model.variables.params for client, model in view.local.items()})
        return 0

    options = dict(participation=UNRELIABLE, watch="all", measurements={"keep": keep})
    run(federation, network, algorithm, rounds=1, variables=start, **options)
    assert sorted(models) == np.flatnonzero(taken).tolist()
    shares = {client: sizes[client] / sizes[taken > 0].sum() for client in models}
    mean_steps = sum(shares[client] * taken[client] for client in models)

    def expected(old, *locals):
        directions = [(w - old) / taken[client] for client, w in zip(models, locals, strict=True)]
        return old + mean_steps * sum(shares[c] * d for c, d in zip(models, directions, strict=True))

    assert_close(first.variables.params, jax.tree.map(expected, start.params, *models.values()), 1e-9)


def test_streamed_measurements(federation, network):
    """The measures are right, and are logged beside the others; all local models are watched."""
    features = np.array([[1, 0, 2], [2, 1, 1], [4, 1, 0], [0, 3, 1], [1, 2, 2], [2, 5, 3.0]])
    other = np.array([[0, 1, 1, 0], [1, 0, 2, 1], [3, 1, 0, 0], [1, 2, 1, 1], [0, 1, 3, 2], [2, 2, 2, 5.0]])
    labels = np.array([0, 0, 1, 1, 2, 2])
    fake = SimpleNamespace(server=SimpleNamespace(features=features), labels=labels)
    assert nc1(fake) == pytest.approx(0.5255403937, abs=1e-9)
    assert linear_cka(features, other) == pytest.approx(0.8335132462, abs=1e-9)
    result = run(federation, network, FedAvg(TRAINING), watch="all", measurements={"nc1": nc1, "cka": cka})
    for row in result.metrics:
        assert row["measured/nc1"] > 0 and 0 < row["measured/cka/lowest"] <= row["measured/cka/mean"] <= 1
        assert row["R_min"] <= row["R"] <= row["R_max"] and row["R_min"] < row["R_mean"] < row["R_max"]
    assert result.spectra["clients"].shape == (2, 5, 6)
    np.testing.assert_array_equal(result.spectra["clients"][:, 0], result.spectra["local"])


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


def test_text_classifier():
    federation, model = text_federation()
    assert federation.train.inputs.dtype == np.int32
    training = LocalTraining(epochs=2, batch_size=16, learning_rate=1.0)
    methods = {"scaffold": Scaffold(), "feddecorr": FedDecorr(0.01, "official")}
    result = run(federation, model, FedAvg(training, methods), rounds=10, evaluate_every=5)
    assert result.metrics[-1]["accuracy"] > 0.85
    assert_close(model.mask("head").params["head"], {"kernel": True, "bias": True}, 0)


def test_regression():
    federation, model = regression_federation()
    training = LocalTraining(epochs=4, batch_size=16, learning_rate=0.1, momentum=0.9)
    methods = {"feddecorr": FedDecorr(1e-4, "official")}
    result = run(federation, model, FedAvg(training, methods), rounds=15, evaluate_every=5)
    errors = [row["squared_error"] for row in result.metrics]
    assert errors[-1] < 0.02 < np.var(np.asarray(federation.test.labels))
    assert result.metrics[-1]["loss"] == pytest.approx(errors[-1], rel=1e-5)
    assert "accuracy" not in result.metrics[-1] and "train/squared_error" in result.metrics[-1]
