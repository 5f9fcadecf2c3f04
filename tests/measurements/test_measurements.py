"""The library's own measurements: of a run, of a config by name, in the report."""

import dataclasses
import json
from pathlib import Path

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, cases, check, one_line
from small_studies import start, write_config

from fedjax_collapse import Backdoor, Domains, FedAvg, Federation, LocalTraining, Model, measurements, nn, simulate
from fedjax_collapse.analysis import confusion, neural_collapse, rank, similarity, unevenness
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.spectrum import effective_rank
from fedjax_collapse.core.records import Batch, Outputs
from fedjax_collapse.data.partition.heterogeneity import heterogeneity
from fedjax_collapse.nn.task import REGRESSION
from fedjax_collapse.results import load, plot
from fedjax_collapse.results.metrics import panels
from fedjax_collapse.results.tables import final_table
from fedjax_collapse.run.divergence import Divergence
from fedjax_collapse.schema.names import functions

TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05)
SPECIAL = ("domain_accuracy", "adapters", "average_precision")  # of domains, of adapters, of several labels
ALL = {name: of for name, of in functions(measurements).items() if name not in SPECIAL}


def run(federation, model, algorithm=FedAvg(TRAINING), **options):  # noqa: B008
    given = dict(rounds=2, key=jax.random.key(0), participation=0.6, watch="all", measurements=ALL) | options
    return simulate(federation, model, algorithm, **given)


def kept(seen):
    """A measurement that stores its views on the host, as the next round overwrites arrays on the device."""

    def keep(view):
        server = dataclasses.replace(view.server, variables=jax.device_get(view.server.variables))
        seen.append(dataclasses.replace(view, server=server, received=jax.device_get(view.received)))
        return 0.0

    return keep


def of_clients(row, name):
    """Mean, least and largest of the clients' numbers in a row."""
    return [row[f"{name}_{kind}"] for kind in ("mean", "min", "max")]


def spread(numbers):
    return pytest.approx([np.mean(numbers), min(numbers), max(numbers)])


@pytest.fixture(scope="module")
def views(federation, model):
    """Returns the views and the result of a run with all measurements."""
    seen = []
    return seen, run(federation, model, measurements={**ALL, "keep": kept(seen)})


def test_all_of_them_are_logged_of_the_server_and_as_range_of_the_clients(views, federation):
    (_, view), result = views
    row = result.metrics[-1]
    names = {name.split("/")[1] for name in row if name.startswith("measured/")}
    assert names == {*ALL, "keep"} - {"class_means", "confusion", "features", "layers"}  # which have arrays alone
    assert all(np.isfinite(value) or "alpha_req" in name for name, value in row.items())
    labels = np.asarray(federation.test.labels)
    moments = [class_moments(m.features, labels, 4) for m in (view.server, *view.local.values())]
    of_server, *of_local = [neural_collapse.variability(each) for each in moments]
    assert row["measured/neural_collapse/nc1"] == pytest.approx(of_server)
    assert of_clients(row, "measured/neural_collapse/local_nc1") == spread(of_local)
    assert row["measured/feature_ranks/rankme"] == rank.rankme(moments[0].singular_values)
    alike = [similarity.linear_cka(m.features, view.server.features) for m in view.local.values()]
    assert of_clients(row, "measured/cka/local_cka") == spread(alike)
    models = list(view.local.values())
    pairs = [(first.features, second.features) for i, first in enumerate(models) for second in models[:i]]
    for name, of in (("cka", similarity.linear_cka), ("debiased_cka", similarity.debiased_cka)):
        assert of_clients(row, f"measured/client_cka/local_{name}") == spread([of(*pair) for pair in pairs])
    assert len(pairs) == 3 and -4 < row["measured/sphere/uniformity"] < 0 < row["measured/sphere/class_alignment"] < 4
    assert 0 <= row["measured/neural_collapse/nc4"] <= 1 <= row["measured/lidar/lidar"]


def test_received_is_the_model_that_the_server_had_before_and_dead_features_are_counted(views):
    (first, view), result = views
    before, row = result.metrics
    assert view.round == first.round + 1
    assert row["measured/received/effective_rank"] == before["effective_rank"] != row["effective_rank"]
    assert row["measured/received/dead_features"] == before["dead_features"]
    of_server, *of_local = (np.mean(np.ptp(m.features, axis=0) == 0) for m in (view.server, *view.local.values()))
    assert row["dead_features"] == of_server and of_clients(row, "local_dead_features") == spread(of_local)


def test_what_a_measurement_and_a_result_hold_is_shown_in_one_line(views, federation):
    """Arrays by type and shape; masks and numbers as they are."""
    seen, result = views
    view, counts = seen[-1], federation.class_counts()
    for record, beginning in (
        (view, "MeasurementView(round 2, local models of "),
        (view.server.moments, "Moments(shift=float64["),
        (result.variables, "Variables(params=<5 arrays of 148 numbers>, batch_stats=<2 arrays of "),
        (federation.train, "Examples(inputs=uint8[110, 8, 8, 2], labels=int32[110], mean=float32[2]"),
        (heterogeneity(counts), "Heterogeneity(sizes=int64[5], classes=int64[5], entropy=float64[5], class_entropy=1."),
        (Divergence(1, "line", {"step": np.arange(99)}), "Divergence(round=1, line='line', arrays=<1 array of 99 "),
    ):
        assert repr(record).startswith(beginning) and "\n" not in repr(record) and len(repr(record)) < 450, repr(record)


def test_classes_by_hand(views):
    """Of the server's and of each local model, from their logits, example by example."""
    (_, view), result = views
    row, arrays = result.metrics[-1], result.measurements
    expected = []
    for model in (view.server, *view.local.values()):
        matrix = np.zeros((4, 4))
        for label, logits in zip(view.labels, model.logits, strict=True):
            matrix[label, np.argmax(logits)] += 1
        expected.append(matrix)
    np.testing.assert_array_equal(arrays["confusion/matrix"][-1], expected[0])
    np.testing.assert_array_equal(arrays["confusion/local_matrix"][-1], expected[1:])
    for array, model in zip(
        [arrays["class_means/means"][-1], *arrays["class_means/local_means"][-1]],
        [view.server, *view.local.values()],
        strict=False,
    ):
        for c, mean in enumerate(array):
            rows = model.features[view.labels == c]
            assert_close(mean, rows.mean(axis=0) if len(rows) else np.full_like(mean, np.nan), 1e-5)
    shares = [np.diag(matrix) / matrix.sum(axis=1) for matrix in expected]
    np.testing.assert_array_equal(arrays["class_accuracy/of_class"][-1], shares[0])
    np.testing.assert_array_equal(arrays["class_accuracy/local_of_class"][-1], shares[1:])
    assert row["measured/class_accuracy/balanced"] == pytest.approx(shares[0].mean())
    assert row["measured/class_accuracy/lowest"] == shares[0].min()
    assert row["measured/class_accuracy/local_balanced_max"] == pytest.approx(max(share.mean() for share in shares[1:]))
    assert np.trace(expected[0]) / expected[0].sum() == pytest.approx(row["server_accuracy"])


def test_a_class_without_examples_has_no_accuracy():
    found = confusion.class_accuracy(confusion.confusion_matrix(np.array([0, 0, 2]), np.eye(3)[[0, 1, 2]]))
    np.testing.assert_array_equal(found, [0.5, np.nan, 1])


def test_all_of_them_are_defined_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
    assert [name for name in functions(measurements) if f"| `{name}` |" not in text] == []


def test_domains_and_private_parts(federation, model):
    """Scores of the server's model; with private parts, which are no update, of the personal models of clients with
    only that domain."""
    train = np.zeros(110, int)
    rows = federation.owned_rows()
    for client, domain in enumerate([0, 1, 1, 2, 2]):
        train[rows[client]] = domain
    train[rows[4][0]] = 0  # this client has two
    domains = Domains(("a", "b", "c"), train, np.arange(30) % 3)
    several, seen = federation._replace(domains=domains), []
    measured = {"domains": measurements.domain_accuracy, "keep": kept(seen)}
    row = run(several, model, measurements=measured, rounds=1).metrics[0]
    for i, name in enumerate("abc"):
        assert row[f"measured/domains/{name}"] == row[f"domain_accuracy/{name}"]
        of_local = [np.mean(m.evaluation.scores[domains.test == i]) for m in seen[0].local.values()]
        assert row[f"measured/domains/local_{name}_min"] == pytest.approx(min(of_local))
    assert row["measured/domains/mean"] == row["accuracy"]
    own = FedAvg(TRAINING, private="batch_norm")
    row = run(several, model, own, measurements=measured, rounds=1, participation=1.0).metrics[0]
    scores = seen[-1].personal
    found = [row[f"measured/domains/{name}"] for name in "abc"]
    assert found == pytest.approx([scores[0], np.mean(scores[1:3]), scores[3]])
    paths = {path for update in seen[-1].updates.values() for path in update}
    assert paths == {"Conv_0/kernel", "Dense_0/kernel", "Dense_0/bias"}
    with one_line("measurement domain_accuracy: the data have no domains"):
        run(federation, model, measurements={"x": measurements.domain_accuracy}, rounds=1)


def test_unevenness_of_eigenvalues():
    """V of a batch, also of fewer rows than features; 0 for equal eigenvalues, no warning for a dead network."""
    features, labels = np.sin(np.arange(1, 241.0) ** 2).reshape(40, 6) * [1, 2, 3, 4, 5, 0], np.arange(40) % 3
    for top, expected in ((3, 0.002375672167), (6, 0.03355945903), (50, 0.03355945903)):
        assert unevenness.eigenvalue_variance(features, labels, top) == pytest.approx(expected, rel=1e-8)
    assert unevenness.eigenvalue_variance(1e3 + features, labels) == pytest.approx(expected)
    wide = np.concatenate([features[:5], np.zeros((5, 60))], axis=1)
    assert unevenness.eigenvalue_variance(wide, labels[:5], 66) == pytest.approx(2.524242424, rel=1e-8)
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], float)
    assert unevenness.eigenvalue_variance(signs, np.zeros(4, int)) == pytest.approx(0)
    assert unevenness.eigenvalue_variance(np.ones((40, 6)), labels) == 0
    assert np.isnan(unevenness.eigenvalue_variance(np.full((40, 6), np.nan), labels))
    mean = unevenness.mean_eigenvalue_variance(np.tile(features, (4, 1)), np.tile(labels, 4), 64)
    assert mean == pytest.approx(0.02371066853, rel=1e-8)  # the last 32 are no whole batch


def test_arrays_of_the_head(views):
    (_, view), result = views
    of_server = result.measurements["head_spectrum/singular_values"]
    of_local = result.measurements["head_spectrum/local_singular_values"]
    assert of_server.shape == (2, 4) and of_local.shape == (2, 3, 4)
    kernel = view.server.variables.params["Dense_0"]["kernel"]
    np.testing.assert_allclose(of_server[1], np.linalg.svd(kernel, compute_uv=False), rtol=1e-5)
    assert result.metrics[-1]["measured/head_spectrum/effective_rank"] == effective_rank(of_server[1])


def flattened(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_updates_are_those_of_the_round(views, federation, model):
    """The received model of the second round is the server's after the first, whose mean update made the third."""
    (first, second), result = views
    assert_close(second.received, first.server.variables, 0.0)
    sizes = np.asarray(federation.ownership.sizes)[list(second.updates)]
    flat = np.stack([flattened(update) for update in second.updates.values()])
    change = jax.tree.map(np.subtract, second.server.variables.params, second.received.params)
    assert_close(np.average(flat, axis=0, weights=sizes), flattened(change), 1e-6)
    row, norms = result.metrics[-1], np.linalg.norm(flat, axis=1)
    assert row["measured/client_drift/local_norm_max"] == pytest.approx(norms.max())
    cosines = (flat @ flat.T / np.outer(norms, norms))[np.triu_indices(3, 1)]
    assert row["measured/client_drift/local_cosine_mean"] == pytest.approx(cosines.mean())
    agreement = np.sum(flat.mean(axis=0) ** 2) / np.mean(norms**2)
    assert row["measured/client_drift/agreement"] == pytest.approx(agreement)


def test_without_a_linear_head(views, monkeypatch):
    (_, view), _ = views
    monkeypatch.setattr(measurements.classifier_weight, "linear_head", lambda model, variables: None)
    found = measurements.neural_collapse(view)
    assert {name for name in found if not name.startswith("local_")} == {"nc1", "nc2_norms", "nc2_angles", "nc4"}
    check("head_spectrum: the head of network SmallCNN is not linear; leave it out", measurements.head_spectrum, view)


def test_a_fixed_head_has_no_params_to_measure(federation):
    model = Model(nn.MLP(4, hidden=(6,), head=nn.heads.Simplex), federation.input_shape)
    (row,) = run(federation, model, measurements={"nc": measurements.neural_collapse}, rounds=1).metrics
    assert np.isfinite(row["measured/nc/nc1"]) and "measured/nc/nc3" not in row


class Unnamed(linen.Module):
    """A network that declares none of its layers as the head."""

    @linen.compact
    def __call__(self, inputs, mask, train):
        features = linen.relu(linen.Dense(6)(inputs.reshape(len(inputs), -1)))
        return Outputs(features, linen.Dense(4)(features))


def test_a_network_has_to_say_which_layer_is_its_head(federation):
    model, measured = Model(Unnamed(), federation.input_shape), {"nc": measurements.neural_collapse}
    check('name the classifier "head"', run, federation, model, measurements=measured, rounds=1)


def test_a_class_without_test_examples(views):
    """It is not a class of the measures, for any classifier."""
    (_, view), _ = views
    labels = np.where(view.labels == 3, 0, view.labels)
    server = dataclasses.replace(view.server, labels=labels)
    found = measurements.neural_collapse(dataclasses.replace(view, server=server, local={}))
    moments = class_moments(server.features, labels, 3)
    assert found["nc1"] == pytest.approx(neural_collapse.variability(moments))
    weight = np.asarray(server.variables.params["Dense_0"]["kernel"], float).T
    assert found["nc3"] == pytest.approx(neural_collapse.self_duality(weight[:3], moments.centred_class_means))
    assert np.isnan(found["local_nc1_mean"])


@cases("device", "host")
def test_received_is_that_of_the_last_round_only(storage, views, federation, model):
    (_, last), _ = views
    seen = []
    keep = {"keep": kept(seen)}
    run(federation, model, measurements=keep, evaluate_every=2, storage=storage)
    assert_close(seen[0].received, last.received, 1e-6)
    assert_close(seen[0].updates, last.updates, 1e-6)


def test_one_watched_client_has_numbers_without_a_range(federation, model):
    """In a round without it they are null."""
    rows = run(federation, model, watch=(1,), rounds=6, measurements=ALL).metrics
    found = [row["measured/neural_collapse/local_nc1"] for row in rows]
    assert len({tuple(row) for row in rows}) == 1 and not any(name.endswith("_mean") for name in rows[0])
    assert [np.isnan(value) for value in found] == [row["watched"] != 1 for row in rows]
    assert 0 < np.isnan(found).sum() < 6


class Net(linen.Module):
    @linen.compact
    def __call__(self, inputs, mask, train):
        features = jnp.tanh(linen.Dense(4)(inputs))
        return Outputs(features, linen.Dense(1, name="head")(features))


def test_a_regression_has_ranks_and_no_classes():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=(20, 1)).astype(np.float32)
    regression = Federation.from_inputs(inputs, targets, np.split(np.arange(20), 4), inputs, targets)
    model = Model(Net(), (3,), task=REGRESSION)
    chosen = {"ranks": measurements.feature_ranks}
    assert run(regression, model, measurements=chosen, rounds=1).metrics[0]["measured/ranks/stable_rank"] >= 1
    with one_line("measurement neural_collapse: it compares classes"):
        run(regression, model, measurements={"nc": measurements.neural_collapse}, rounds=1)


@pytest.fixture
def start_with(tmp_path):
    """Starts a study with measurements of all clients; returns the exit status."""

    def start_study(measured):
        config = write_config(tmp_path, f"config.watch, config.measurements = 'all', {measured}")
        return start(config, f"--workdir={tmp_path / 'study'}")

    return start_study


@pytest.mark.slow
def test_a_config_names_them_and_the_report_shows_them(start_with, tmp_path):
    assert start_with(dict(ranks="feature_ranks", head="head_spectrum", client_drift="client_drift")) == 0
    rows = (tmp_path / "study" / "only" / "seed0" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["measured/ranks/local_nesum_mean"] >= 1
    study = load(tmp_path / "study")
    figure = plot.measurements(study)
    titles = [axes.get_title(loc="left").rstrip("…") for axes in figure.axes]
    assert titles[:2] == ["ranks/stable_rank", "ranks/rankme"] and len(titles) == len(set(titles))
    assert [len(axes.lines) for axes in figure.axes[:2]] == [2, 2]  # of the server's model, and the mean of local ones
    headings = final_table(study).rows[0][-1 - len(titles) : -1]
    assert "client_drift/local_cosine_mean" in headings and "_min" not in str(headings)
    assert all(map(str.startswith, headings, titles))
    page = (tmp_path / "study" / "report.html").read_text()
    assert "head/centred_effective_rank" in page
    with np.load(tmp_path / "study" / "only" / "seed0" / "measurements.npz") as arrays:
        assert arrays["head/local_singular_values"].shape == (2, 4, 6)


def test_a_name_that_is_none(start_with, capsys):
    assert start_with({"x": "neural_colapse"}) == 2
    error = capsys.readouterr().err
    assert (
        "unknown measurements.x 'neural_colapse': did you mean 'neural_collapse'?" in error and error.count("\n") == 1
    )


def test_what_is_shown_together():
    names = ["m/x", "m/local_x_mean", "m/local_x_min", "m/local_x_max", "m/y", "m/local_y", "m/local_z", "m/t_min", "x"]
    assert panels(names) == {
        "m/x": ["m/x", "m/local_x_mean"],
        "m/y": ["m/y", "m/local_y"],
        "m/local_z": ["m/local_z"],
        "m/t_min": ["m/t_min"],
        "x": ["x"],
    }


def test_success_of_a_backdoor(federation, model):
    """Counted one test image after the other, from the logits of patched ones."""
    seen = []
    algorithm = FedAvg(TRAINING, {"backdoor": Backdoor(share=0.4, target=2, size=3)})
    given = {"b": measurements.backdoor, "keep": kept(seen)}
    row = run(federation, model, algorithm, rounds=4, participation=1.0, measurements=given).metrics[-1]
    images, labels = np.array(federation.test.inputs), np.asarray(federation.test.labels)
    patched = images.copy()
    for channel in range(2):
        patched[:, 5:, 5:, channel] = images[..., channel].max()
    for name, inputs in (("success", patched), ("without", images)):
        inputs = (inputs.astype(np.float32) - 100) / 64
        batch = Batch(inputs, labels, np.ones(len(labels), bool))
        logits = np.asarray(model.apply(seen[-1].server.variables, batch, train=False)[0].logits)
        expected = np.mean([row_of.argmax() == 2 for row_of, label in zip(logits, labels, strict=True) if label != 2])
        assert row[f"measured/b/{name}"] == pytest.approx(expected)
    assert row["measured/b/success"] != row["measured/b/without"]
