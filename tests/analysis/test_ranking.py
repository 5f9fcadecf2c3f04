"""Several labels: average precision against scikit-learn, and a run."""

import numpy as np
import pytest
from conftest import assert_close, one_line, run_at_once
from sklearn.metrics import average_precision_score

from fedjax_collapse import MULTI_LABEL, FedAvg, FedDecorr, Federation, LocalTraining, Model, measurements, methods, nn
from fedjax_collapse.analysis.ranking import average_precisions
from fedjax_collapse.losses import summed_binary_cross_entropy


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


def test_a_run(tags):
    """With TFF's loss, which is the sum over a batch; the score is of all labels of the test set together."""
    model = Model(nn.MLP(7, hidden=(8,)), (12,), task=MULTI_LABEL)
    training = LocalTraining(batch_size=10, learning_rate=0.1, task_loss=summed_binary_cross_entropy)
    found = {}

    def keep(view):
        found.update(logits=np.asarray(view.server.logits), labels=view.labels)
        return 0.0

    measured = {"ap": measurements.average_precision, "keep": keep}
    algorithm = FedAvg(training, {"feddecorr": FedDecorr(0.01)})
    result = run_at_once(tags, model, algorithm, rounds=10, evaluate_every=5, measurements=measured)
    first, last = result.metrics
    hits = np.take_along_axis(found["labels"], np.argsort(-found["logits"], 1)[:, :5], 1).sum()
    assert last["recall_at_5"] == last["measured/ap/recall_at_5"] == pytest.approx(hits / found["labels"].sum())
    assert last["measured/ap/macro"] == pytest.approx(average_precision_score(found["labels"], found["logits"]))
    assert last["loss"] < first["loss"] and last["measured/ap/macro"] > 0.6
    assert tags.class_counts().sum(0).tolist() == np.asarray(tags.train.labels).sum(0).tolist()


def test_what_needs_classes_is_rejected(tags, federation):
    model = Model(nn.MLP(7, hidden=(8,)), (12,), task=MULTI_LABEL)
    with one_line("method fedlc: the model's task has no classes"):
        run_at_once(tags, model, FedAvg(methods={"fedlc": methods.FedLC()}))
    with one_line("measurement neural_collapse: it compares classes, and this task has none"):
        run_at_once(tags, model, FedAvg(), measurements={"nc": measurements.neural_collapse})
    of_images = Model(nn.MLP(4, hidden=(8,)), federation.input_shape)
    with one_line("average_precision: the examples have no labels of 0 and 1; leave it out"):
        run_at_once(federation, of_images, FedAvg(), measurements={"ap": measurements.average_precision})
