"""A common validation set: examples of no client, and the round that is best on them."""

import json

import jax
import numpy as np
import pytest
from conftest import cases, check, one_line
from small_studies import error_of, rows_of, start, write_config

from experiments.commands import extract, show_partition
from experiments.configs import base
from fedjax_collapse import DPFedAvg, FedAvg, Federation, LocalTraining, Model, UserError, nn, partition, simulate
from fedjax_collapse.config import build
from fedjax_collapse.config.cells import merged
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_keys
from fedjax_collapse.data import sources
from fedjax_collapse.data.sources import Source
from fedjax_collapse.results.metrics import OWN_VALIDATION, VALIDATION
from fedjax_collapse.results.summaries import summarize_run
from fedjax_collapse.run.evaluation import evaluate

CLASSES = np.repeat(np.arange(4), (10, 20, 31, 4))


def source_of(labels=CLASSES, **changes):
    """Examples of which each is its own number."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None] * np.ones((2, 2), np.uint8)
    return Source(images, labels, images[:4], labels[:4], 0.0, 1.0, tuple("abcd"))._replace(**changes)


def numbers(images):
    return np.asarray(images).reshape(len(images), -1)[:, 0].astype(int)


def config_of(**changes):
    return merged(plain(base.get_config()), dict(clients=4, partition=dict(alpha=1.0)) | changes)


def rows(name, validation, accuracies):
    """Rows of metrics, evaluated every other round."""
    pairs = enumerate(zip(validation, accuracies, strict=True), start=1)
    return [{"round": 2 * i, "accuracy": accuracy, name: value} for i, (value, accuracy) in pairs]


def test_a_fraction_of_each_class_is_taken_from_the_training_part():
    whole = source_of(owners=np.arange(65) % 5, domains=np.arange(65) % 3)
    source = whole.with_validation(0.1)
    assert np.bincount(source.validation_labels, minlength=4).tolist() == [1, 2, 3, 0]
    held_out, rest = numbers(source.validation_images), numbers(source.images)
    assert sorted([*held_out, *rest]) == list(range(65)) and rest.tolist() == sorted(rest)
    np.testing.assert_array_equal(source.validation_labels, CLASSES[held_out])
    for name in ("labels", "owners", "domains"):
        np.testing.assert_array_equal(getattr(source, name), getattr(whole, name)[rest])
    assert source.test_images is whole.test_images
    others = [numbers(whole.with_validation(0.1, seed).validation_images).tolist() for seed in range(4)]
    assert others[0] == held_out.tolist() and len({*map(tuple, others)}) == 4


def test_examples_without_classes_are_drawn_from_all():
    for labels, names in ((np.linspace(0, 1, 40), ()), (np.eye(4, dtype=int)[np.arange(40) % 4], tuple("abcd"))):
        source = source_of(labels, class_names=names).with_validation(0.25)
        assert len(source.validation_labels) == 10 and len(source.labels) == 30


@cases(
    (CLASSES, 0.0, r"with_validation: fraction 0 is outside"),
    (CLASSES, 0.9, "a fraction 0.9 is all 4 examples of class d; lower it"),
    (np.arange(4), 0.1, "a fraction 0.1 of 4 examples in 4 classes is no example; raise it"),
)
def test_wrong_fractions(labels, fraction, message):
    check(message, source_of(labels).with_validation, fraction)


def test_clients_own_none_of_it_and_seeds_and_arms_have_the_same():
    own = build.federations(config_of(data=dict(validation_fraction=0.1)), [0, 1])
    other = build.federations(config_of(data=dict(validation_fraction=0.1), partition=dict(name="iid")), [0])[0]
    held_out = own[0].common_validation
    assert own[1].common_validation is held_out and own[0].hashes()["partition"] != own[1].hashes()["partition"]
    np.testing.assert_array_equal(held_out.inputs, other.common_validation.inputs)
    whole = sources.digits()
    assert len(held_out.labels) + own[0].ownership.sizes.sum() == len(whole.labels)
    images = {image.tobytes(): label for image, label in zip(whole.images, whole.labels, strict=True)}
    trained = {image.tobytes() for rows in own[0].owned_rows() for image in np.asarray(own[0].train.inputs)[rows]}
    validated = [image.tobytes() for image in np.asarray(held_out.inputs)]
    assert [images[image] for image in validated] == held_out.labels.tolist() and not trained & {*validated}
    tenth = np.bincount(whole.labels) / 10
    assert np.abs(np.bincount(held_out.labels) - tenth).max() <= 0.5


def test_it_is_of_any_source_and_in_the_hashes_of_the_data():
    given = config_of(data=dict(validation_fraction=0.1))
    changed = merged(given, dict(data=dict(source="glyphs", train_size=100, test_size=20)))
    assert changed["data"]["validation_fraction"] == 0.1
    assert len(build.federations(changed, [0])[0].common_validation.labels) == 10
    assert merged(given, dict(data=dict(source="glyphs", validation_fraction=0.0)))["data"]["validation_fraction"] == 0
    without, with_it = (build.federations(of, [0])[0] for of in (config_of(), given))
    assert without.common_validation is None and without.hashes().keys() == {"data", "partition"}
    hashes, held_out = with_it.hashes(), with_it.common_validation
    reordered = held_out._replace(labels=held_out.labels + 1)
    assert {**hashes, "common_validation": ""} != hashes != with_it._replace(common_validation=reordered).hashes()
    assert hashes["data"] != without.hashes()["data"]


def test_natural_clients_lose_their_part():
    whole = source_of(owners=np.arange(65) % 5).with_validation(0.2)
    parts = partition.given(whole.labels, 5, whole.owners)
    federation = Federation.from_source(whole, parts)
    owned = [numbers(federation.train.inputs[rows]) for rows in federation.owned_rows()]
    assert all((own % 5 == client).all() for client, own in enumerate(owned))
    assert federation.common_validation.inputs.shape[1:] == federation.train.inputs.shape[1:] == (2, 2, 1)


@cases(
    (dict(data=dict(validation_fraction=-0.1)), r"data.validation_fraction -0.1 is outside"),
    (dict(data=dict(validation_fraction="all")), "data.validation_fraction 'all'"),
    (dict(data=dict(validation_fraction=0.9), clients=200), "clients: 200 clients"),
    (dict(data=dict(source="store:none", validation_fraction=0.1)), "no examples can be held out of store:none"),
    (dict(partition=dict(name="from_file", path="a")), "partition from_file reads rows of all training examples"),
)
def test_what_does_not_go_together_is_one_line(changes, message):
    config = merged(config_of(data=dict(validation_fraction=0.1)), changes)
    if "store" in config["data"]["source"]:
        config["partition"] = dict(name="given")
    with one_line(message):
        check_keys(config)
        build.federations(config, [0])


@pytest.fixture(scope="module")
def federation():
    source = sources.digits().with_validation(0.1)
    return Federation.from_source(source, partition.dirichlet(source.labels, num_clients=4, alpha=1.0))


@pytest.fixture(scope="module")
def model(federation):
    return Model(nn.MLP(10, hidden=(8,)), federation.input_shape)


def train(federation, model, rounds=4, **options):
    algorithm = FedAvg(LocalTraining(epochs=1))
    return simulate(federation, model, algorithm, rounds=rounds, key=jax.random.key(0), **options)


def test_the_servers_model_is_scored_and_a_stopped_run_continues_with_the_same_bits(federation, model, tmp_path):
    whole, held_out = train(federation, model, folder=tmp_path / "whole"), federation.common_validation
    predicted = np.asarray(evaluate(model, whole.variables, held_out).logits).argmax(axis=1)
    assert whole.metrics[-1]["validation_accuracy"] == pytest.approx(np.mean(predicted == np.asarray(held_out.labels)))
    asked = iter([False, True])
    part = train(federation, model, folder=tmp_path / "parts", should_stop=lambda: next(asked))
    assert part.rounds_done == 2
    train(federation, model, folder=tmp_path / "parts")
    files = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]
    relabelled = federation._replace(common_validation=held_out._replace(labels=held_out.labels[::-1]))
    check("common_validation", train, relabelled, model, rounds=5, folder=tmp_path / "parts")
    unvalidated = train(federation._replace(common_validation=None), model)
    rows = [{**row, "validation_accuracy": 0} for row in (*unvalidated.metrics, *whole.metrics)]
    assert rows[:4] == rows[4:]


def test_models_and_tests_of_each_client_have_rows_of_their_own_instead(federation, model):
    message = r"data.validation_fraction: .* accuracy is of the {}.*; expected 0, and own_tests=dict\(name='split'"
    personal = FedAvg(LocalTraining(epochs=1), private="head")
    check(message.format("personal models"), simulate, federation, model, personal, rounds=1, key=jax.random.key(0))
    check(message.format("models that clients receive"), train, federation.with_tests([np.arange(5)] * 4), model)
    private = FedAvg(LocalTraining(epochs=1), methods={"dp_fedavg": DPFedAvg()})
    with pytest.raises(UserError, match=r"data.validation_fraction: scores on examples that are held out"):
        simulate(federation, model, private, rounds=1, key=jax.random.key(0), name="private")


@pytest.mark.parametrize("name", [VALIDATION.name, OWN_VALIDATION])
def test_the_round_that_is_best_on_validation_rows(name):
    """The first one on ties, whatever its test accuracy; rounds without a finite score are left out."""
    summary = summarize_run(rows(name, [None, 0.2, 0.7, 0.7, 0.6], [0.95, 0.9, 0.5, 0.8, 0.4]))
    assert (summary["validated_accuracy"], summary["validation_round"]) == (0.5, 6)
    assert (summary["best_accuracy"], summary["accuracy"]) == (0.95, 0.4)
    for without in (rows(name, [None], [0.5]), rows("accuracy", [0.5], [0.5])):
        assert not {"validated_accuracy", "validation_round"} & summarize_run(without).keys()


@pytest.mark.slow
def test_a_study_has_the_columns(tmp_path, capsys):
    paper = 'dict(source="X", comparable=True, values=dict(only=12.5), metric="validated_accuracy")'
    config = write_config(tmp_path, "config.rounds = 3", f"config.paper = {paper}")
    workdir = f"--workdir={tmp_path / 'study'}"
    assert start(config, workdir, "--config.data.validation_fraction=0.1") == 0
    shown = capsys.readouterr()
    assert "By validation  Validation round" in shown.out + shown.err
    page = (tmp_path / "study/report.html").read_text()
    assert '>By validation</th><th scope="col">Validation round<' in page and "| paper 12.50" in page
    summary = json.loads((tmp_path / "study/summary.json").read_text())["only"]
    best = max(rows_of(tmp_path / "study/only/seed0"), key=lambda row: row["validation_accuracy"])
    assert summary["validated_accuracy"]["mean"] == best["accuracy"]
    assert summary["validation_round"]["mean"] == best["round"]
    assert start(config, workdir) == 2 and error_of(capsys, "common_validation is ")


def test_files_of_all_training_examples_are_not_made_of_the_rest(tmp_path, capsys):
    with pytest.raises(UserError, match="the file has all training examples; expected 0 here"):
        extract.extract(config_of(data=dict(validation_fraction=0.1)), 0)
    of_a_tenth = ["--config=quickstart", "--config.data.validation_fraction=0.1"]
    assert show_partition.main([*of_a_tenth, f"--out={tmp_path / 'out'}"]) == 2 and not (tmp_path / "out").exists()
    error_of(capsys, "its indices would be of the training examples that")
