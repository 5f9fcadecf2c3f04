"""Runs in which every token has a label: a token is an example for losses, class counts and measurements."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits, cases, check, run_at_once
from engine_rounds import run_rounds
from reference.tokens import sentences

import fedjax_collapse as fc
from fedjax_collapse import FedAvg, FedDecorr, Model, engine, measurements, methods, next_word, nn
from fedjax_collapse.analysis.spectrum import covariance_spectrum
from fedjax_collapse.config.loading import LoadedRun
from fedjax_collapse.core.records import Batch
from fedjax_collapse.run.evaluation import evaluate

WORDS, LENGTH = 8, 6
TRAINING = fc.LocalTraining(batch_size=4, learning_rate=0.5, epochs=2)


class ComputesEveryToken(nn.PflTransformer):
    """As a user's network, which is not told what it may leave out."""

    def __call__(self, tokens, mask, train):
        return super().__call__(tokens, mask, train)


@pytest.fixture(scope="module")
def federation():
    return sentences(WORDS, LENGTH, tests=70)


@pytest.fixture(scope="module")
def model():
    network = nn.StackOverflowLSTM(WORDS + 4, embedding=6, hidden=8)
    return Model(network, (LENGTH,), task=next_word(WORDS), input_dtype="int32")


@pytest.fixture(scope="module")
def variables(model):
    return model.init(jax.random.key(0))


def of_targets(federation, model, variables):
    """Features, predictions, labels and log-probabilities of all test tokens with a target, computed at once."""
    inputs, labels = (np.asarray(part) for part in federation.test[:2])
    rows = labels.size
    batch = Batch(jnp.asarray(inputs), jnp.zeros(rows, int), jnp.ones(rows, bool))
    outputs = jax.jit(lambda v: model.apply(v, batch, train=False)[0])(variables)
    is_target = labels.ravel() != 0
    features, logits = (np.asarray(part)[is_target] for part in outputs[:2])
    return features, logits, labels.ravel()[is_target]


def test_evaluation_is_streamed(federation, model, variables):
    """In two batches of 64 sentences; the moments and sums are those of all tokens at once."""
    features, logits, labels = of_targets(federation, model, variables)
    found = evaluate(model, variables, federation.test)
    correct, is_oov, is_end = logits.argmax(1) == labels, labels == WORDS + 1, labels == WORDS + 3
    assert is_oov.any() and is_end.any() and found.features is None and found.logits is None
    assert found.score == pytest.approx(correct[~is_oov & ~is_end].mean())
    assert found.further == {
        "accuracy_no_oov": pytest.approx(correct[~is_oov].mean()),
        "accuracy_with_oov": pytest.approx(correct.mean()),
    }
    losses = -np.asarray(jax.nn.log_softmax(logits))[np.arange(len(labels)), labels]
    assert_close(found.loss, losses.mean(), 1e-5)
    assert found.moments.num_examples == len(labels)
    assert_close(found.moments.spectrum, covariance_spectrum(features), 1e-9)


def test_a_loaded_run_predicts_every_token(federation, model, variables):
    run = LoadedRun(model, federation, FedAvg(), variables, None, {}, None, Path())
    logits = run.predict(federation.test.inputs)
    check("features: every token has a label, expected data with one label per example", run.features)
    assert logits.shape == (70, LENGTH, WORDS + 4)
    _, expected, _ = of_targets(federation, model, variables)
    assert_close(logits[np.asarray(federation.test.labels) != 0], expected, 1e-6)


def test_federated_averaging_and_decorrelation(federation, model):
    """The loss falls, and spectra and ranks of the tokens' features are recorded; decorrelation raises the rank."""
    measured = {"ranks": measurements.feature_ranks, "layers": measurements.layers}
    ranks = {}
    for name, added in (("fedavg", {}), ("feddecorr", {"feddecorr": FedDecorr(0.1)})):
        result = run_at_once(federation, model, FedAvg(TRAINING, added), rounds=8, measurements=measured)
        first, last = result.metrics[0], result.metrics[-1]
        assert last["loss"] < first["loss"] - 0.03 and 0 < last["train/accuracy"] < 1
        assert last["accuracy"] == last["server_accuracy"] != last["server_accuracy_with_oov"]
        assert result.spectra["server"].shape[-1] == 6 and np.isfinite(result.spectra["local"]).all()
        assert_close(result.measurements["layers/effective_rank"][-1][-1], last["effective_rank"], 1e-6)
        ranks[name] = last["effective_rank"]
    assert ranks["feddecorr"] > ranks["fedavg"] + 0.5


def test_padding_changes_nothing(federation, model, variables):
    """Neither the ids of rows without a target, nor capacity, nor the inputs behind the end, bit for bit."""
    inputs, labels = (np.asarray(part) for part in federation.train[:2])
    rng = np.random.default_rng(3)
    other = np.where(labels == 0, rng.integers(1, WORDS, labels.shape), inputs)
    algorithm = FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1), "fedprox": methods.FedProx(0.1)})
    results = [
        run_at_once(of, model, algorithm, rounds=2, variables=variables)
        for of in (
            federation,
            federation._replace(train=federation.train._replace(inputs=jnp.asarray(other))),
            federation.with_partition(federation.owned_rows(), capacity=17),
            federation._replace(train=jax.tree.map(np.asarray, federation.train)),  # on the host
        )
    ]
    for result in results[1:]:
        assert_same_bits(result.variables, results[0].variables)
    tables = [of.params["Embedding_0"]["table"] for of in (results[0].variables, variables)]
    assert not np.array_equal(*tables)


def test_tokens_that_no_target_needs_are_left_out(federation):
    """The same rounds as without, with dropout, frozen outputs, and sentences with words that are no target."""
    labels = np.array(federation.train.labels)
    labels[::3, 1] = 0
    train = federation.train._replace(labels=jnp.asarray(labels))
    added = {"feddecorr": FedDecorr(0.1), "fedntd": methods.FedNTD(0.5)}
    found = []
    for kind in (nn.PflTransformer, ComputesEveryToken):
        network = kind(WORDS + 4, embedding=8, depth=1, heads=2, mlp_width=12, dropout=0.2)
        model = Model(network, (LENGTH,), task=next_word(WORDS), input_dtype="int32")
        data = federation._replace(train=train)
        found.append(run_rounds(data, model, FedAvg(TRAINING, added), engine.Vectorized()))
    assert_close(found[0].state.server.variables, found[1].state.server.variables, 1e-5)
    assert_close(found[0].record.metrics["accuracy"], found[1].record.metrics["accuracy"], 1e-6)


def test_classes_are_counted_by_token(federation, model):
    """On the host and for methods; padding is no class."""
    counts, labels = federation.class_counts(), np.asarray(federation.train.labels)
    own = [labels[rows] for rows in federation.owned_rows()]
    assert (counts[:, 0] == 0).all() and counts.sum() == (labels != 0).sum()
    assert counts[1].tolist() == [np.sum(own[1] == c) * (c > 0) for c in range(WORDS + 4)]


def test_clients_are_tested_on_their_own_sentences(federation, model):
    """Scores are divided by the number of tokens that count, losses by that of all targets; a client may have none."""
    tests = np.split(np.arange(70), [10, 11, 11, 40])
    algorithm = FedAvg(TRAINING.replace(optimizer=jax.tree_util.Partial(optax.adam), learning_rate=0.05))
    result = run_at_once(federation.with_tests(tests), model, algorithm, rounds=6, evaluate_every=6)
    labels, row = np.asarray(federation.test.labels), result.metrics[-1]
    targets = np.array([np.sum(labels[rows] > 0) for rows in tests])
    oov_or_end = np.array([np.isin(labels[rows], [WORDS + 1, WORDS + 3]).sum() for rows in tests])
    own = {name: values[-1] for name, values in result.own_tests.items()}
    assert own["received/size"].tolist() == (targets - oov_or_end).tolist() and targets[2] == 0
    assert np.isnan(own["received/loss"]).tolist() == [False, False, True, False, False]
    assert row["own_accuracy"] == pytest.approx(row["server_accuracy"]) and row["accuracy"] > 0
    assert np.nansum(own["received/loss"] * targets) / targets.sum() == pytest.approx(row["loss"])
    message = "several labels cannot be divided by class; give tests"
    check(message, run_at_once, federation, model, FedAvg(TRAINING, private="head"))


@cases("neural_collapse", "cka")
def test_measurements_of_examples_are_rejected(name, federation, model):
    measured = {name: getattr(measurements, name)}
    check("leave it out", run_at_once, federation, model, FedAvg(TRAINING), measurements=measured)


def test_a_network_of_classes_is_rejected(federation):
    network = nn.ShakespeareLSTM(WORDS + 4, hidden=4, predicts="last")
    for task in (fc.CLASSIFICATION, next_word(WORDS)):
        model = Model(network, (LENGTH,), task=task, input_dtype="int32")
        check(r"features have shape \[1, 4\], expected \[batch \* 6, d\]", run_at_once, federation, model, FedAvg())
