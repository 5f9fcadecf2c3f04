"""What is evaluated: the server's model, by domain, personal models, and which of them the headline is."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits

from experiments.reporting.study import summarize_run
from experiments.summaries import summarize
from fedjax_collapse import (
    FedAvg,
    Federation,
    FedMR,
    LocalTraining,
    Model,
    Recalibrate,
    UserError,
    engine,
    local,
    masks,
    nn,
    simulate,
)
from fedjax_collapse import server as server_rules
from fedjax_collapse.data import Domains
from fedjax_collapse.evaluation import evaluate, personal_scores
from fedjax_collapse.measurement import Stopwatch
from fedjax_collapse.records import Client, Outputs

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)


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
    server, clients, _, _ = engine.init(algorithm, model, model.init(jax.random.key(0)), 5, jax.random.key(1))
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
    arguments = (model, server.variables, clients, domains.test, domains.own_tests())
    np.testing.assert_allclose(personal_scores(*arguments), expected, rtol=1e-6)
    assert np.abs(np.subtract(expected, of_server)).max() > 0.1


def test_the_headline_of_personal_models(domains):
    _, result = run(domains, FedAvg(TRAINING, private="batch_norm"), rounds=1)
    row = result.metrics[-1]
    assert result.headline == "personal models on their own test sets, unweighted mean over clients"
    assert row["accuracy"] == row["personal_accuracy"] >= row["lowest_personal_accuracy"]


def test_what_is_private_is_not_uploaded(federation):
    algorithm = FedAvg(TRAINING, private="batch_norm")
    model = Model(nn.SmallCNN(4, channels=(6,)), federation.input_shape)
    server, state = server_rules.init(algorithm, model, model.init(jax.random.key(0)))
    rows, size = federation.ownership.rows[0], federation.ownership.sizes[0]
    client = Client(0, rows, size, 1.0, state, jax.random.key(1), 5, 22.0)

    @jax.jit
    def run_client(examples, server, client):
        return local.run(local.LocalContext(algorithm, model, examples, server, 0, client))

    upload, after, _ = run_client(federation.train, server, client)
    assert_same_bits(upload.mean.params["BatchNorm_0"], server.variables.params["BatchNorm_0"])
    assert_same_bits(upload.mean.batch_stats, server.variables.batch_stats)
    assert all(np.any(new != old) for new, old in zip(*map(jax.tree.leaves, (after, state)), strict=True))


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
    expected, total = 0.0, 0
    conv = result.variables.params["Conv_0"]["kernel"]
    for client in cohort:
        rows = np.asarray(federation.ownership.rows[client])[: int(federation.ownership.sizes[client])]
        for first in range(0, len(rows), 8):
            images = (np.asarray(federation.train.inputs)[rows[first : first + 8]].astype(np.float32) - 100) / 64
            outputs = jax.lax.conv_general_dilated(
                images, conv, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            flat = np.asarray(outputs).reshape(-1, 6)
            expected += len(images) * np.stack([flat.mean(0), flat.var(0, ddof=1)])
            total += len(images)
    stats = result.variables.batch_stats["BatchNorm_0"]
    np.testing.assert_allclose(np.stack([stats["mean"], stats["var"]]), expected / total, rtol=2e-5, atol=1e-6)
    assert np.abs(stats["var"] - plain.variables.batch_stats["BatchNorm_0"]["var"]).max() > 0.01


class LogitsOnly(nn.MLP):
    """A network that does not say what its features are."""

    def __call__(self, images, mask, train):
        return Outputs(None, super().__call__(images, mask, train).logits)


@pytest.mark.parametrize(
    ("algorithm", "network", "message"),
    [
        (FedAvg(methods={"fedmr": FedMR()}), LogitsOnly(4), "network LogitsOnly: it returns no features"),
        (FedAvg(methods={"it": Recalibrate()}), nn.MLP(4), "recalibrate: network MLP has no BatchNorm"),
        (FedAvg(private="batch_norm"), nn.MLP(4), "part batch_norm: the network has no BatchNorm"),
        (FedAvg(methods={"it": Recalibrate()}, private="batch_norm"), nn.SmallCNN(4), "there is nothing to measure"),
    ],
)
def test_policies_that_do_not_fit(federation, algorithm, network, message):
    with pytest.raises(UserError, match=message):
        run(federation, algorithm, network=network)


def test_last_best_and_mean_of_the_last_ten(tmp_path):
    rows = [
        {"round": r + 1, "accuracy": a, "effective_rank": 2.0} for r, a in enumerate([0.9, 0.1] + [0.5] * 9 + [0.7])
    ]
    summary = summarize_run(rows)
    assert (summary["accuracy"], summary["best_accuracy"]) == (0.7, 0.9)
    assert summary["last10_accuracy"] == pytest.approx(0.52)
    for seed, accuracy in enumerate((0.6, 0.8)):
        folder = tmp_path / "arm" / f"seed{seed}"
        folder.mkdir(parents=True)
        run_summary = {"headline": "server model", "accuracy": accuracy, "R": None}
        (folder / "summary.json").write_text(json.dumps(run_summary))
    accuracy = summarize(tmp_path, ("arm",), (0, 1))["arm"]["accuracy"]
    assert accuracy == {"mean": pytest.approx(0.7), "std": pytest.approx(0.02**0.5), "n": 2, "of": "server model"}
    assert summarize(tmp_path, ("arm",), (0, 1))["arm"]["R"] == {"mean": None, "std": None, "n": 0}


@pytest.mark.slow
def test_compiling_the_personal_evaluation_counts_as_compiling(federation):
    """Of a network that nothing has compiled yet: evaluating it takes a fraction of its compilation."""
    seen = []

    def note(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration") and "personal_scores" in fun_name:
            seen.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        algorithm = FedAvg(TRAINING, private="batch_norm")
        _, result = run(federation, algorithm, rounds=1, network=nn.SmallCNN(4, channels=(5, 3)))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert len(seen) == 1
    assert result.timing[0]["compile"] > seen[0]
    assert "personal_scores" in Stopwatch._OUTERMOST
