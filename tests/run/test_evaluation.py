"""What is evaluated: the server's model, by domain, personal models, and which of them the headline is."""

import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TWO_EPOCHS as TRAINING
from conftest import assert_close, check
from flax import struct
from small_studies import rows_of
from test_divergence import Wrong

import fedjax_collapse as fc
from experiments.study.summaries import summarize
from fedjax_collapse import FedAvg, Federation, Model, Recalibrate, measurements, nn, simulate
from fedjax_collapse.analysis.confusion import confusion_matrix
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import ClientState, Ownership, Server
from fedjax_collapse.data import Domains
from fedjax_collapse.results.summaries import summarize_run
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.own_tests import by_stage


@pytest.fixture(scope="module")
def domains(federation) -> Federation:
    """The same examples; the first client's are photos, the third's both, the others' sketches."""
    rows, sizes = (np.asarray(array) for array in federation.ownership)
    train = np.ones(110, int)
    train[rows[0, : sizes[0]]] = 0
    train[rows[2, : sizes[2] // 2]] = 0
    test = np.arange(30) % 3 == 0
    return federation._replace(domains=Domains(("sketch", "photo"), 1 - train, test.astype(int)))


def run(federation, algorithm, rounds=2, network=None):
    model = Model(network or nn.SmallCNN(4, channels=(6,)), federation.input_shape)
    return model, simulate(federation, model, algorithm, rounds=rounds, key=jax.random.key(0), participation=0.6)


def test_domains_count_alike(domains):
    """30 test examples, 20 and 10 of the domains: the mean over domains is not that over examples."""
    model, result = run(domains, FedAvg(TRAINING))
    row = result.metrics[-1]
    is_correct = np.asarray(evaluate(model, result.variables, domains.test).scores)
    by_domain = [is_correct[domains.domains.test == i].mean() for i in (0, 1)]
    assert [row["domain_accuracy/sketch"], row["domain_accuracy/photo"]] == by_domain
    assert row["accuracy"] == row["domain_accuracy"] == np.mean(by_domain)
    assert row["server_accuracy"] == is_correct.mean()
    assert result.headline == "server model, unweighted mean over the domains' test sets"


def test_personal_models_are_evaluated_on_their_own_test_sets(domains):
    """FedBN: the server's params with each client's own BatchNorm, here random, so that they answer differently."""
    algorithm = FedAvg(TRAINING, private="batch_norm")
    model = Model(nn.SmallCNN(4, channels=(6,)), domains.input_shape)
    server, clients, *_ = fc.engine.init(algorithm, model, model.init(jax.random.key(0)), 5, jax.random.key(1))
    rng = np.random.default_rng(0)
    private = {
        name: jnp.asarray(rng.normal(0, 3, leaf.shape) ** 2 - 4 * ("var" not in name), leaf.dtype)
        for name, leaf in clients.private.items()
    }
    clients = clients._replace(private=private)
    own_domains, expected, of_server = [{1}, {0}, {0, 1}, {0}, {0}], [], []
    for client, own in enumerate(own_domains):
        is_own = np.isin(domains.domains.test, list(own))
        own_state = jax.tree.map(lambda leaf, i=client: leaf[i], clients)
        personal = masks.replace(server.variables, own_state.private)
        for variables, accuracies in ((personal, expected), (server.variables, of_server)):
            accuracies.append(np.asarray(evaluate(model, variables, domains.test).scores)[is_own].mean())
    arguments = (algorithm, model, server, clients, domains, domains.own_tests())
    own = by_stage(*arguments, finetuning=None, key=jax.random.key(0), round=0)["received"]
    np.testing.assert_allclose(own.score / own.size, expected, rtol=1e-6)
    assert np.abs(np.subtract(expected, of_server)).max() > 0.1


def test_own_test_sets_have_the_clients_class_shares():
    labels = np.repeat([0, 1, 2], [60, 30, 30])
    images = np.zeros((120, 2, 2, 1), np.uint8)
    parts = [np.arange(0, 40), np.r_[40:60, 60:70], np.r_[70:90, 90:120]]
    tests = np.repeat([0, 1, 2], [20, 12, 9])
    federation = Federation.from_arrays(images, labels, parts, images[:41], tests)
    own = federation.own_tests()
    counts = [np.bincount(tests[rows[:size]], minlength=3).tolist() for rows, size in zip(*own, strict=True)]
    assert counts == [[20, 0, 0], [20, 10, 0], [0, 6, 9]]


def test_recalibrated_statistics_are_the_cohorts(federation):
    """Against an explicit pass: each layer's mean and unbiased variance of every batch, weighted by rows."""
    algorithm = FedAvg(TRAINING, {"recalibrate": Recalibrate()})
    _, result = run(federation, algorithm, rounds=1)
    plain = run(federation, FedAvg(TRAINING), rounds=1)[1]
    assert_close(result.variables.params, plain.variables.params, 1e-6)
    steps = plain.clients["steps"][0]
    cohort = np.flatnonzero(steps)
    expected, total, layout = 0.0, 0, ("NHWC", "HWIO", "NHWC")
    conv = result.variables.params["Conv_0"]["kernel"]
    for client in cohort:
        rows = np.asarray(federation.ownership.rows[client])[: int(federation.ownership.sizes[client])]
        for first in range(0, len(rows), 8):
            images = (np.asarray(federation.train.inputs)[rows[first : first + 8]].astype(np.float32) - 100) / 64
            outputs = jax.lax.conv_general_dilated(images, conv, (1, 1), "SAME", dimension_numbers=layout)
            flat = np.asarray(outputs).reshape(-1, 6)
            expected += len(images) * np.stack([flat.mean(0), flat.var(0, ddof=1)])
            total += len(images)
    stats = result.variables.batch_stats["BatchNorm_0"]
    np.testing.assert_allclose(np.stack([stats["mean"], stats["var"]]), expected / total, rtol=2e-5, atol=1e-6)
    assert np.abs(stats["var"] - plain.variables.batch_stats["BatchNorm_0"]["var"]).max() > 0.01


class Broken(nn.MLP):
    """An example's outputs are what ``broken`` makes of them, where the image says so."""

    broken: Callable | None = None

    def __call__(self, images, mask, train):
        outputs = super().__call__(images, mask, train)
        first = (jnp.arange(len(images)) == 7)[:, None]
        return jax.tree.map(lambda kept, new: jnp.where(first, new, kept), outputs, self.broken(outputs))


@pytest.mark.parametrize("place", [jnp.asarray, np.asarray])
@pytest.mark.parametrize(
    ("broken", "is_scored"),
    [
        (lambda o: o, True),
        (lambda o: o._replace(logits=o.logits.at[:, 0].set(-jnp.inf)), True),  # a class that is ruled out
        (lambda o: o._replace(logits=o.logits.at[:, 1].set(jnp.nan)), False),
        (lambda o: o._replace(features=o.features.at[:, 0].set(jnp.nan)), False),
    ],
)
def test_one_example_without_finite_outputs_leaves_no_score(domains, place, broken, is_scored):
    model = Model(Broken(4, hidden=(3,), broken=broken), domains.input_shape)
    variables = model.init(jax.random.key(0))
    test = domains.test._replace(inputs=place(domains.test.inputs))
    found = evaluate(model, variables, test)
    own = Ownership(jnp.array([[7, 0], [8, 0], [0, 0]]), jnp.array([1, 2, 0]))
    three = domains.with_partition(domains.owned_rows()[:3])
    arguments = (FedAvg(TRAINING), model, Server(variables, {}, ()), ClientState({}, {}), three, own)
    personal = by_stage(*arguments, finetuning=None, key=jax.random.key(0), round=0)["received"].score
    scores = np.array([found.score, *found.domain_scores(domains.domains).values()])
    assert np.isfinite(scores).all() == np.isfinite(scores).any() == is_scored
    matrix = confusion_matrix(np.asarray(domains.test.labels), np.asarray(found.logits))
    assert np.isfinite(matrix).all() == np.isfinite(matrix).any() == np.isfinite(np.max(found.logits, axis=1)).all()
    assert np.isfinite(personal).tolist() == [True, True, False]  # a batch of them has no row 7


@struct.dataclass
class Unheard(fc.Participation):
    """The uploads of the last client never arrive."""

    def arrivals(self, key, cohort, num_clients, seconds=None):
        return cohort < 4


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_nothing_is_scored_once_the_model_is_not_finite(domains, tmp_path):
    """In rows, arrays, file and summary, of the server's and of local models, whichever way they are scored."""
    scoring = ("class_accuracy", "prediction_bias", "confusion", "linear_probe", "domain_accuracy", "neural_collapse")
    measured = {name: getattr(measurements, name) for name in scoring}
    algorithm = FedAvg(TRAINING.replace(logged_epochs=1), {"wrong": Wrong(client=4)})
    result = simulate(
        domains, Model(nn.MLP(4, hidden=(3,)), domains.input_shape), algorithm, rounds=2, key=jax.random.key(0),
        measurements=measured, watch="all", on_nan="continue", folder=tmp_path, stop_at_accuracy=0.01,
    )  # fmt: skip
    rows = rows_of(tmp_path)
    for row in (*result.metrics, *rows):
        scores = {name: row[name] for name in row if "accuracy" in name or "nc4" in name or "prediction_bias" in name}
        is_null = {name: value is None or np.isnan(value) for name, value in scores.items()}
        assert len(scores) > 30 and {name for name in scores if not is_null[name]} <= {"local_accuracy"}
        assert not is_null["local_accuracy"] or row["round"] == 2  # of the first client, after the first round
    assert np.isnan(result.measurements["confusion/matrix"]).all()
    is_lost = np.isnan(result.clients["task_loss"])
    for name in ("accuracy", "epoch/1/accuracy"):
        np.testing.assert_array_equal(np.isnan(result.clients[name]), is_lost)
    assert is_lost.tolist() == [[False] * 4 + [True], [True] * 5]
    summary = summarize_run(rows)
    assert all(np.isnan(summary[name]) for name in ("accuracy", "best_accuracy", "last10_accuracy"))


def test_a_client_that_diverged_is_not_left_out_of_the_mean(domains, tmp_path):
    """Its model is its own; the server's, which it sends nothing to, is fine."""
    algorithm = FedAvg(TRAINING, {"wrong": Wrong(client=4)}, private="batch_norm")
    model = Model(nn.SmallCNN(4, channels=(6,)), domains.input_shape)
    options = dict(key=jax.random.key(0), on_nan="continue", participation=Unheard())
    measured = {"domains": measurements.domain_accuracy}
    result = simulate(domains, model, algorithm, rounds=1, measurements=measured, **options)
    row = result.metrics[0]
    lost = [row[name] for name in ("accuracy", "personal_accuracy", "lowest_personal_accuracy")]
    assert np.isnan([*lost, row["measured/domains/sketch"], row["measured/domains/mean"]]).all()
    assert np.isfinite(row["measured/domains/photo"])


def test_recalibration_needs_statistics_at_the_server(federation):
    for private, network, message in (
        ("none", nn.MLP(4), "recalibrate: network MLP has no BatchNorm"),
        ("batch_norm", nn.SmallCNN(4), "there is nothing to measure"),
    ):
        check(message, run, federation, FedAvg(methods={"it": Recalibrate()}, private=private), network=network)


def test_last_best_and_mean_of_the_last_ten(tmp_path):
    accuracies = enumerate([0.9, 0.1] + [0.5] * 9 + [0.7], 1)
    rows = [{"round": round, "accuracy": accuracy, "effective_rank": 2.0} for round, accuracy in accuracies]
    summary = summarize_run(rows)
    assert (summary["accuracy"], summary["best_accuracy"]) == (0.7, 0.9)
    assert summary["last10_accuracy"] == pytest.approx(0.52)
    assert np.isnan(summarize_run(rows[-9:])["last10_accuracy"])
    summary = summarize_run([*rows, {"round": 13, "accuracy": None}])  # of a model that is not finite
    assert summary["best_accuracy"] == 0.9 and np.isnan([summary["accuracy"], summary["last10_accuracy"]]).all()
    for seed, accuracy in enumerate((0.6, 0.8)):
        folder = tmp_path / "arm" / f"seed{seed}"
        folder.mkdir(parents=True)
        run_summary = {"headline": "server model", "accuracy": accuracy, "R": None}
        (folder / "summary.json").write_text(json.dumps(run_summary))
    accuracy = summarize(tmp_path, ("arm",), (0, 1))["arm"]["accuracy"]
    assert accuracy == {"mean": pytest.approx(0.7), "std": pytest.approx(0.02**0.5), "n": 2, "of": "server model"}
    assert [*summarize(tmp_path, ("arm",), (0, 1))["arm"]["R"].values()] == pytest.approx(
        [np.nan, np.nan, 0], nan_ok=True
    )
