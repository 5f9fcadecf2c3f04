"""Clients that are tested on a part of their own examples: the division, the scores, their aggregates, fine-tuning."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits, cases, check, run_at_once
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import fedjax_collapse as fc
from fedjax_collapse import Ditto, FedALA, FedAvg, Federation, Model, OwnSplit, Participation, nn
from fedjax_collapse.analysis.spectrum import covariance_spectrum, effective_rank
from fedjax_collapse.data.sources import Source
from fedjax_collapse.measurements import personal_models
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.own_tests import ClientScores, Finetuning, auc

TRAINING = fc.LocalTraining(epochs=1, batch_size=8, learning_rate=0.1)
SIZES = [10, 40, 5, 20, 30, 25, 15, 50, 20, 10, 5, 20]
ACCURACIES = np.array([0.9, 0.5, 1, 0.75, 0.6, 0.8, 0.95, 0.4, 0.85, 0.7, 1, 0.3])


def federation(split=OwnSplit(), sizes=(40, 4, 61, 35)):  # noqa: B008
    rng, rows = np.random.default_rng(0), np.random.default_rng(1).permutation(140)
    labels = rng.integers(0, 3, 140)
    images = (rng.integers(0, 60, (140, 4, 4, 1)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    parts = images[:120], labels[:120], images[120:], labels[120:]
    source = Source(*parts, mean=90.0, std=60.0, class_names=("a", "b", "c"))
    return Federation.from_split(source, np.split(rows, np.cumsum(sizes)[:-1]), split)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), test=st.sampled_from([0.1, 0.25, 0.5]),
    validation=st.sampled_from([0, 0.2]), stratified=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
@example(sizes=[100], test=0.25, validation=0.29, stratified=False, seed=0)  # 0.29 * 100 is below 29
@settings(max_examples=60, deadline=None)
def test_rows_are_divided_by_the_shares(sizes, test, validation, stratified, seed):
    partition = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    labels = np.random.default_rng(seed).integers(0, 3, sum(sizes))
    split = OwnSplit(test, validation, stratified, seed)
    if min(int((1 - test - validation) * n + 1e-9) for n in sizes) == 0:
        check("none is left to train on", split.divide, partition, labels)
        return
    divided = split.divide(partition, labels)
    for client, own in enumerate(partition):
        parts = [rows[client] for rows in divided]
        assert sorted(np.concatenate(parts)) == own.tolist()
        assert len(parts[0]) == int((1 - test - validation) * len(own) + 1e-9)
        assert len(parts[1]) == int(validation * len(own) + 1e-9)
        of_one = OwnSplit(test, validation, stratified, seed).divide(partition[: client + 1], labels)
        assert all(np.array_equal(a[client], b[client]) for a, b in zip(divided, of_one, strict=True))


def test_a_stratified_division_keeps_the_shares_of_classes():
    labels = np.repeat([0, 1, 2], [40, 16, 1])
    divided = OwnSplit(stratified=True).divide([np.arange(57)], labels)
    assert np.bincount(labels[divided.train[0]]).tolist() == [29, 12, 1]
    plain = OwnSplit().divide([np.arange(57)], labels)
    assert np.bincount(labels[plain.train[0]], minlength=3).tolist() != [29, 12, 1]


def test_aggregates_over_clients():
    """Twelve clients, and one that has no rows, which counts nowhere."""
    size = np.array([*SIZES, 0])
    loss = np.arange(13.0)
    found = ClientScores(size, np.append(ACCURACIES, np.nan) * size, np.append(loss[:12], np.nan), loss * np.nan)
    summary = found.summary("accuracy")
    expected = dict(weighted=0.625, mean=0.729167, std=0.224961, decile=0.4, worst_decile=0.35, min=0.3)
    assert {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()} == {
        name.removeprefix("accuracy/"): value for name, value in summary.items() if name.startswith("accuracy/")
    }
    assert summary["loss"] == pytest.approx(np.average(loss[:12], weights=size[:12]))
    assert "auc" not in summary
    broken = found._replace(score=np.where(np.arange(13) == 2, np.nan, found.score)).summary("accuracy")
    assert np.isnan([broken[f"accuracy/{name}"] for name in expected]).all() and np.isfinite(broken["loss"])


def test_area_under_the_curve(float64):
    logits = np.array([[2, 0.5, 0.1], [0.2, 0.3, 1], [1.5, 0.1, 1.2], [0.3, 0.2, 0.1], [9, 9, 9]])
    labels, mask = np.array([0, 2, 2, 1, 0]), np.arange(5) < 4
    area = jax.jit(auc)
    assert float(area(logits, labels, mask)) == pytest.approx(0.90625)
    rng = np.random.default_rng(0)
    logits, labels = rng.integers(0, 3, (50, 4)).astype(float), rng.integers(0, 4, 50)  # many ties
    expected = roc_auc_score(np.eye(4)[labels], np.asarray(jax.nn.softmax(jnp.asarray(logits))), average="micro")
    assert float(area(logits, labels, np.ones(50, bool))) == pytest.approx(expected)


def run(data, algorithm=FedAvg(TRAINING), rounds=2, **options):  # noqa: B008
    model = Model(nn.MLP(3, hidden=(6,)), data.input_shape)
    return model, run_at_once(data, model, algorithm, rounds, **options)


@cases(
    (lambda: federation(OwnSplit(0.0)), "own tests: test 0, validation 0; expected test above 0, the sum below 1"),
    (lambda: federation(OwnSplit(1.5)), r"own tests: test 1.5 is outside \[0, 1\]"),
    (lambda: federation(OwnSplit(0.8)), "own tests: client 1 has 4 examples, of which none is left to train on"),
    (lambda: federation().with_tests([[0]]), "rows for 1 clients, expected 4, not all empty"),
    (lambda: federation().with_tests([[0], [36], [], []]), "row 36 or 0 is outside the 36 test examples"),
    (lambda: run(federation(), finetuning=Finetuning(part="neck")), "neck"),
    (lambda: run(federation(), finetuning=Finetuning(learning_rate=-1.0)), "learning_rate -1 is not positive"),
    (lambda: run(federation()._replace(tests=None), finetuning=Finetuning()), "the clients have no test rows of"),
)
def test_wrong_own_tests_and_finetuning_are_named(make, message):
    check(message, make)


def test_received_models_are_scored_on_own_rows():
    data = federation(OwnSplit(0.25, 0.2))
    model, result = run(data)
    evaluation = evaluate(model, result.variables, data.test)
    rows, sizes = map(np.asarray, data.tests)
    assert sorted(np.concatenate([own[:size] for own, size in zip(rows, sizes, strict=True)])) == list(range(37))
    correct = [np.sum(evaluation.scores[own[:size]]) for own, size in zip(rows, sizes, strict=True)]
    found, row = result.own_tests, result.metrics[-1]
    assert found["round"].tolist() == [1, 2]
    assert found["received/score"][-1].tolist() == correct and found["received/size"][-1].tolist() == sizes.tolist()
    losses = -np.asarray(jax.nn.log_softmax(evaluation.logits))[np.arange(37), np.asarray(data.test.labels)]
    expected = [losses[own[:size]].mean() for own, size in zip(rows, sizes, strict=True)]
    np.testing.assert_allclose(found["received/loss"][-1], expected, rtol=1e-5)
    assert row["accuracy"] == row["own_accuracy"] == row["own/received/accuracy/weighted"] == row["server_accuracy"]
    assert result.headline.startswith("models that clients receive, each on its client's own test rows, weighted")
    kept, of_validation = map(np.asarray, data.validation)
    trained, train_sizes = map(np.asarray, data.ownership)
    for client in range(4):
        assert not set(kept[client, : of_validation[client]]) & set(trained[client, : train_sizes[client]])
    assert found["validation/size"][-1].tolist() == of_validation.tolist()


def test_fine_tuning_is_local_training_that_is_thrown_away():
    """A full batch and one epoch: a step of gradient descent on the head, from the model that was received."""
    data, whole, client = federation(), FedAvg(TRAINING.replace(batch_size=64)), 2
    _, plain = run(data, whole)
    model, result = run(data, whole, finetuning=Finetuning(epochs=1, part="head", learning_rate=0.3))
    np.testing.assert_equal(plain.clients, result.clients)
    assert all(result.metrics[-1][name] == value for name, value in plain.metrics[-1].items())

    def loss(params, examples, own):
        logits = evaluate(model, result.variables._replace(params=params), examples).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, examples.labels)[own].mean()

    own, tests = (np.asarray(rows)[client, : sizes[client]] for rows, sizes in (data.ownership, data.tests))
    params = dict(result.variables.params)
    gradient = jax.jit(jax.grad(loss))(params, data.train, own)["Dense_1"]
    params["Dense_1"] = jax.tree.map(lambda w, g: w - 0.3 * g, params["Dense_1"], gradient)
    expected = pytest.approx(float(jax.jit(loss)(params, data.test, tests)), rel=1e-4)
    assert result.own_tests["finetuned/loss"][-1, client] == expected


def test_the_models_of_ditto_and_of_the_server_are_scored_in_every_stage():
    """The own model does not change with what is received; the server's is that of federated averaging, the mean of the
    models that the last cohort's clients keep."""
    tested = federation()
    options = dict(finetuning=Finetuning(), watch="all", participation=Participation(0.5))
    algorithm = FedAvg(TRAINING, {"ditto": Ditto(0.5)}, keep_trained=True)
    model, ditto = run(tested, algorithm, measurements={"p": personal_models}, **options)
    _, plain = run(tested, FedAvg(TRAINING, keep_trained=True), **options)
    kept, weights = plain.state.clients.memory["trained"][0], plain.clients["steps"][-1] > 0
    weights = weights * np.asarray(tested.ownership.sizes) / (weights @ tested.ownership.sizes)
    assert_close(jax.tree.map(lambda leaf: np.tensordot(weights, leaf, 1), kept), plain.variables, 1e-6)
    for stage in ("received", "finetuned", "trained"):
        for name in ("size", "score", "loss", "auc"):
            both = ditto.own_tests[f"global_{stage}/{name}"], plain.own_tests[f"{stage}/{name}"]
            np.testing.assert_allclose(*both, rtol=1e-5)
    received, trained = (ditto.own_tests[f"{stage}/loss"] for stage in ("received", "trained"))
    has_trained = np.isfinite(trained)
    assert has_trained[0].sum() == 2  # a cohort; the others are left out
    np.testing.assert_array_equal(received[has_trained], trained[has_trained])
    assert np.abs(received - ditto.own_tests["global_received/loss"]).max() > 1e-3
    cohort = np.flatnonzero(ditto.clients["steps"][-1])
    used = [ditto.personal(client) for client in cohort]
    assert_same_bits(used[0], jax.tree.map(lambda leaf: leaf[cohort[0]], ditto.state.clients.memory["ditto"]))
    ranks = [effective_rank(covariance_spectrum(np.asarray(evaluate(model, v, tested.test).features))) for v in used]
    assert ditto.metrics[-1]["measured/p/effective_rank_mean"] == pytest.approx(np.mean(ranks), rel=1e-5)


def test_the_model_that_a_mixture_is_made_of_is_scored_too():
    """FedALA's clients have not trained the server's model, so there is no score of that."""
    tested = federation()
    model, result = run(tested, FedAvg(TRAINING, {"fedala": FedALA()}, keep_trained=True))
    stages = {name.partition("/")[0] for name in result.own_tests}
    assert stages == {"round", "received", "trained", "global_received"}
    outputs = evaluate(model, result.variables, tested.test).logits
    for client in range(4):
        rows = np.asarray(tested.tests.rows[client])[: int(tested.tests.sizes[client])]
        correct = (np.argmax(outputs, 1) == np.asarray(tested.test.labels))[rows].sum()
        assert result.own_tests["global_received/score"][-1, client] == correct
