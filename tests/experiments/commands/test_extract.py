"""The command that writes features: the arrays, where they come from, runs on them, and wrong input in one line."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check
from small_studies import BASE, error_of, start, write_config

from experiments.commands import extract as command
from experiments.configs import base
from fedjax_collapse import Batch, load_run, save_weights, sources
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.hashing import digest

DOMAINS = dict(source="glyphs", domains=("clean", "outline"), train_size=20, test_size=10, image_size=8, channels=1)
SHARED = dict(data=DOMAINS, network=dict(name="small_cnn", channels=(4, 8)), clients=2, partition=dict(name="iid"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_file(**changes):
    """Writes a config of these changes and returns the option that names it."""
    return write_config(Path(), *(f"config.{name} = {value!r}" for name, value in changes.items()), of=BASE)


@pytest.fixture(scope="module")
def made():
    """The source, federation and network of ``SHARED``."""
    config = plain(base.get_config()) | SHARED
    federation = build.federations(config, [0])[0]
    return build.data_source(DOMAINS), federation, build.model(config, federation)


def assert_features(found, images, source, model, variables):
    """They are the network's of these images."""
    images = jnp.asarray((images - source.mean) / source.std)
    batch = Batch(images, jnp.zeros(len(images), int), jnp.ones(len(images), bool))
    expected = jax.jit(model.apply, static_argnames="train")(variables, batch, train=False)[0].features
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_features_are_those_of_the_network(made, capsys, monkeypatch):
    """Of all batches and the partial last one, by the initial weights of the run with that seed."""
    monkeypatch.setattr(command, "_BATCH", 16)
    option = config_file(**SHARED, seeds=(0, 3))
    assert command.main([option, "--seed=3", "--out=f.npz"]) == 0
    assert capsys.readouterr().out == "wrote f.npz: 8 features of 40 training and 20 test examples\n"
    source, federation, model = made
    variables = model.init(jax.random.split(jax.random.key(3))[0])
    found = sources.features("f.npz")
    for prefix in ("", "test_"):
        images = (getattr(of, f"{prefix}images") for of in (found, source))
        assert_features(*images, source, model, variables)
        for name in ("labels", "domains"):
            assert np.array_equal(getattr(found, prefix + name), getattr(source, prefix + name))
    assert (found.class_names, found.domain_names) == (source.class_names, source.domain_names)
    provenance = json.loads(str(np.load("f.npz")["provenance"]))
    assert provenance["weights_sha256"] == digest(variables) and provenance["packages"]["jax"] == jax.__version__
    assert provenance["data_sha256"] == federation.hashes()["data"] and provenance["mean"] == [127.5]
    assert provenance["network"]["channels"] == [4, 8] and provenance["data"]["source"] == "glyphs"


def test_weights_of_a_run_and_a_run_on_its_features(made, folder):
    """A run's exported weights give its features; the linear model on them is a run of its own."""
    source, _, model = made
    variables = model.init(jax.random.key(9))
    save_weights("w.safetensors", variables)
    assert command.main([config_file(**SHARED), "--config.network.weights=w.safetensors", "--out=f.npz"]) == 0
    found = sources.features("f.npz")
    assert_features(found.images, source.images, source, model, variables)
    linear = dict(data=dict(source="features:f.npz"), network=dict(name="mlp", hidden=()), clients=2, rounds=1)
    option = config_file(**linear, partition=dict(name="domain"), arms=dict(fedavg={}))
    assert start(option, "--config.own_tests.name=split", f"--workdir={folder / 'study'}") == 0
    run = load_run(folder / "study/fedavg/seed0")
    assert run.federation.input_shape == (8,) and run.federation.ownership.sizes.tolist() == [22, 22]
    layer = run.variables.params["Dense_0"]
    expected = found.images @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    np.testing.assert_allclose(run.predict(found.images), expected, rtol=1e-4, atol=1e-5)


def test_virtual_features_of_a_partition(capsys):
    """Each client's own features are first, in its order, and as many as asked for of each class that it holds."""
    shared = SHARED | dict(clients=3, partition=dict(name="dirichlet", alpha=1.0, min_size=2))
    option = config_file(**shared, seeds=(4,))
    assert command.main([option, "--out=plain.npz"]) == command.main([option, "--virtual=9", "--out=f.npz"]) == 0
    plain_file, found = sources.features("plain.npz"), sources.features("f.npz")
    rows = build.federations(plain(base.get_config()) | shared, [4])[4].owned_rows()
    order, own = np.concatenate(rows), sum(map(len, rows))
    for name in ("images", "labels", "domains"):
        assert np.array_equal(getattr(found, name)[:own], getattr(plain_file, name)[order])
    assert np.array_equal(found.owners[:own], np.repeat(range(3), list(map(len, rows))))
    assert np.array_equal(found.test_images, plain_file.test_images)
    for client, held in enumerate(rows):
        counts = np.bincount(found.labels[found.owners == client], minlength=10)
        held = np.bincount(plain_file.labels[held], minlength=10)
        assert np.array_equal(counts, np.where(held > 0, np.maximum(held, 9), 0))
    assert json.loads(str(np.load("f.npz")["provenance"]))["virtual"] == {"count": 9, "others": 0, "enlarged": "none"}


@cases(
    (["--out=."], "--out=.: it is a folder"),
    (["--out=f.npz", "--virtual=-1"], "--virtual=-1 with own_tests shares: expected a number of examples"),
    (["--out=f.npz", "--workdir=w"], "--workdir is for training; use --out"),
    (["--out=f.npz", "--config.network.weights=w.npz"], "w.npz"),
)
def test_wrong_input_is_one_line(arguments, message, capsys):
    assert command.main([config_file(data=DOMAINS), *arguments]) == 2 and error_of(capsys, message)


def test_features_that_are_not_finite(monkeypatch):
    evaluate = command.evaluate

    def with_nan(*arguments):
        found = evaluate(*arguments)
        return found._replace(features=found.features * np.nan)

    monkeypatch.setattr(command, "evaluate", with_nan)
    config = plain(base.get_config()) | dict(data=DOMAINS)
    check("features of examples 0 to 512 are not finite", command.extract, config, 0)
