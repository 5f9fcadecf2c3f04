"""The linear probe, saved features, and average precision, alone and in a run; measurements in some of the rounds."""

import jax
import numpy as np
import pytest
from conftest import assert_close, one_line, run_at_once
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score

from fedjax_collapse import MULTI_LABEL, FedAvg, FedDecorr, Federation, LocalTraining, Model, measurements, nn
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.ranking import average_precisions
from fedjax_collapse.losses import summed_binary_cross_entropy
from fedjax_collapse.measurements import probe
from fedjax_collapse.run.evaluation import evaluate

TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05)
CHOSEN = {"probe": measurements.linear_probe, "f": measurements.features}


def separable(rng, num_features=6, per_class=30, noise=0.1):
    labels = np.repeat(np.arange(3), per_class)
    centres = rng.normal(size=(3, num_features))
    return centres[labels] + noise * rng.normal(size=(len(labels), num_features)), labels


def fitted(features, labels, classes=3, **options):
    return probe.fit_ridge(class_moments(features, labels, classes), **options)


def test_it_is_the_ridge_regression_of_one_hot_labels():
    rng = np.random.default_rng(0)
    features, labels = separable(rng, noise=1.0)
    labels[:20] = 2  # classes of different sizes
    strength = 0.07
    alpha = len(labels) * strength * np.trace(np.cov(features.T, bias=True)) / features.shape[1]
    reference = Ridge(alpha=alpha, solver="cholesky").fit(features, np.eye(4)[labels])
    head = fitted(features, labels, classes=4, strength=strength)
    np.testing.assert_allclose(head.weight, reference.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(head.bias, reference.intercept_, rtol=1e-9, atol=1e-12)
    elsewhere = probe.fit_ridge(class_moments(features, labels, 4, shift=np.ones(6)), strength)
    np.testing.assert_allclose(elsewhere.weight, head.weight, rtol=1e-9, atol=1e-12)
    expected = np.mean(reference.predict(features).argmax(axis=1) == labels)
    assert 0.4 < expected < 1 and probe.accuracy(head, features, labels) == expected


def test_probe_of_degenerate_features():
    labels = np.array([0, 1, 1, 2])
    constant = np.full((4, 3), 7.3)
    assert probe.accuracy(fitted(constant, labels), constant, labels) == 0.5  # the most frequent class
    broken = np.where(np.arange(12).reshape(4, 3) == 5, np.nan, 1.0)
    assert np.isnan(fitted(broken, labels).weight).all()
    assert np.isnan(probe.accuracy(fitted(broken, labels), constant, labels))
    assert np.isnan(fitted(constant[:0], labels[:0]).bias).all()
    assert np.isnan(probe.accuracy(fitted(constant, labels), constant[:0], labels[:0]))


@pytest.fixture(scope="module")
def seen(federation, model):
    """A run of five rounds, of which the last evaluation and every second is measured, and what it is measured of."""
    views = []

    def keep(view):
        variables = [jax.device_get(m.variables) for m in (view.server, *view.local.values())]
        views.append((view, variables))
        return 0.0

    options = dict(participation=0.6, watch="all", measure_every=2, measurements=CHOSEN | {"keep": keep})
    return views, run_at_once(federation, model, FedAvg(TRAINING), 5, **options)


def test_every_k_rounds_and_after_the_last(seen):
    views, result = seen
    measured = [any(name.startswith("measured/") for name in row) for row in result.metrics]
    assert measured == [False, True, False, True, True] and [view.round for view, _ in views] == [2, 4, 5]
    assert result.measurements["round"].tolist() == [2, 4, 5]
    assert all("accuracy" in row for row in result.metrics)


def test_the_probe_of_a_run(seen, federation, model):
    """Fitted to examples that clients own, compared with the accuracy of the head."""
    views, result = seen
    (view, (server, *local)), row = views[-1], result.metrics[-1]
    rows = np.unique(np.concatenate(federation.owned_rows()))
    labels = np.asarray(federation.train.labels)[rows]
    of_clients = []
    for variables, measured in zip((server, *local), (view.server, *view.local.values()), strict=True):
        features = np.asarray(evaluate(model, variables, federation.train).features)[rows]
        of_clients.append(probe.accuracy(fitted(features, labels, 4), measured.features, view.labels))
    assert row["measured/probe/accuracy"] == of_clients[0]
    assert row["measured/probe/local_accuracy_mean"] == pytest.approx(np.mean(of_clients[1:]))
    assert row["measured/probe/head_accuracy"] == row["server_accuracy"]
    assert row["measured/probe/gap"] == of_clients[0] - row["server_accuracy"]


def test_features_of_a_run(seen):
    views, result = seen
    (view, _), arrays = views[-1], result.measurements
    np.testing.assert_array_equal(arrays["f/features"][-1], view.server.features)
    np.testing.assert_array_equal(arrays["f/labels"][-1], view.labels)
    assert arrays["f/clients"][-1].tolist() == list(view.local) and arrays["f/local_features"].shape == (3, 3, 30, 6)
    np.testing.assert_array_equal(arrays["f/local_features"][-1], [m.features for m in view.local.values()])


def test_of_many_examples_some_are_taken_always_the_same(seen, monkeypatch):
    (view, _) = seen[0][-1]
    monkeypatch.setattr(measurements, "FEATURES_SAVED", 7)
    first, second = measurements.features(view), measurements.features(view)
    assert first["features"].shape == (7, 6) and first["local_features"].shape == (3, 7, 6)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    rows = [int(np.flatnonzero((view.server.features == row).all(axis=1))[0]) for row in first["features"]]
    assert rows == sorted(set(rows)) and first["labels"].tolist() == view.labels[rows].tolist()
    monkeypatch.setattr(probe, "MOST", 20)
    few = measurements.linear_probe(view)
    assert few == measurements.linear_probe(view) and 0 < few["accuracy"] <= 1


def test_a_run_goes_on_between_two_measurements(federation, model, tmp_path):
    """To the rows and arrays of one that was not stopped."""
    options = dict(measure_every=3, measurements=CHOSEN, checkpoint_every=1, evaluate_every=2)
    whole = run_at_once(federation, model, FedAvg(TRAINING), 5, **options)
    stops = iter([False, True])
    folder = tmp_path / "run"
    run_at_once(federation, model, FedAvg(TRAINING), 5, folder=folder, should_stop=lambda: next(stops), **options)
    again = run_at_once(federation, model, FedAvg(TRAINING), 5, folder=folder, **options)
    assert again.metrics == whole.metrics and again.measurements["round"].tolist() == [4, 5]
    assert all(np.array_equal(again.measurements[name], whole.measurements[name], equal_nan=True)
               for name in whole.measurements)  # fmt: skip
    with one_line("measure_every is 3 there, absent here"):
        run_at_once(federation, model, FedAvg(TRAINING), 6, folder=folder, **(options | {"measure_every": 1}))
    for rounds in (6, 7):
        longer = run_at_once(federation, model, FedAvg(TRAINING), rounds, folder=folder, **options)
    assert longer.measurements["round"].tolist() == [4, 5, 6, 7]  # its end was at 5 once, and at 6


def test_a_measurement_that_is_missing_is_damage(federation, model, tmp_path):
    options = dict(measure_every=2, measurements=CHOSEN, checkpoint_every=2, folder=tmp_path)
    stops = iter([False] * 3 + [True])
    run_at_once(federation, model, FedAvg(TRAINING), 5, should_stop=lambda: next(stops), **options)
    (tmp_path / "measurements" / "000002.npz").unlink()
    with one_line("measurements, entry 1: round 4, expected round 2"):
        run_at_once(federation, model, FedAvg(TRAINING), 5, **options)


def test_average_precision_equals_scikit_learns():
    rng = np.random.default_rng(0)
    logits, labels = np.round(rng.normal(size=(40, 6)), 1), rng.random((40, 6)) < 0.3  # with ties
    labels[:, 2], labels[:, 3], logits[0, 4] = False, True, np.nan
    found = average_precisions(logits, labels)
    expected = [average_precision_score(labels[:, i], logits[:, i]) for i in (0, 1, 3, 5)]
    assert_close(found[[0, 1, 3, 5]], expected, 1e-12)
    assert np.isnan(found[[2, 4]]).all()


@pytest.fixture(scope="module")
def tags():
    """Seven labels, whose share depends on the client, of twelve counts each."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(1.0, (200, 12)).astype(np.float32)
    labels = (counts @ rng.normal(size=(12, 7)) > 1.5).astype(np.uint8)
    parts = np.array_split(np.arange(150), 5)
    names = tuple("abcdefg")
    return Federation.from_inputs(counts[:150], labels[:150], parts, counts[150:], labels[150:], class_names=names)


def test_a_run_of_several_labels(tags):
    """With TFF's loss, which is the sum over a batch; the score is of all labels of the test set together."""
    model = Model(nn.MLP(7, hidden=(8,)), (12,), task=MULTI_LABEL)
    training = LocalTraining(batch_size=10, learning_rate=0.1, task_loss=summed_binary_cross_entropy)
    found = {}
    keep = {"keep": lambda view: found.update(logits=np.asarray(view.server.logits), labels=view.labels) or 0.0}
    measured = {"ap": measurements.average_precision} | keep
    algorithm = FedAvg(training, {"feddecorr": FedDecorr(0.01)})
    result = run_at_once(tags, model, algorithm, rounds=10, evaluate_every=5, measurements=measured)
    first, last = result.metrics
    hits = np.take_along_axis(found["labels"], np.argsort(-found["logits"], 1)[:, :5], 1).sum()
    assert last["recall_at_5"] == last["measured/ap/recall_at_5"] == pytest.approx(hits / found["labels"].sum())
    assert last["measured/ap/macro"] == pytest.approx(average_precision_score(found["labels"], found["logits"]))
    assert last["loss"] < first["loss"] and last["measured/ap/macro"] > 0.6
    assert tags.class_counts().sum(0).tolist() == np.asarray(tags.train.labels).sum(0).tolist()


def test_what_needs_several_labels_is_rejected(federation):
    of_images = Model(nn.MLP(4, hidden=(8,)), federation.input_shape)
    with one_line("average_precision: the examples have no labels of 0 and 1; leave it out"):
        run_at_once(federation, of_images, FedAvg(), measurements={"ap": measurements.average_precision})
