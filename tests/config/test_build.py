"""From configs to objects."""

import inspect
import re
from pathlib import Path

import jax
import numpy as np
from conftest import check
from PIL import Image

from experiments.configs import base
from experiments.configs import pfllib as pfllib_config
from fedjax_collapse import Model, engine, multi_label, next_word, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_keys, resolve_arm
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import partition, sources
from fedjax_collapse.data.sources import glyph_images as glyphs
from fedjax_collapse.data.sources import normalisations
from fedjax_collapse.schema import names


def test_a_partition_per_seed_or_one_for_all():
    config = base.get_config()
    config.clients, config.partition.alpha = 4, 1.0
    own = build.federations(plain(config), [0, 1])
    assert own[0].hashes()["partition"] != own[1].hashes()["partition"]
    first, second = own.values()
    assert first.ownership.rows.shape == second.ownership.rows.shape  # one compiled program
    assert first.train.inputs is second.train.inputs and first.test.inputs is second.test.inputs
    config.partition.seed = 3
    shared = build.federations(plain(config), [0, 1])
    assert shared[0].hashes() == shared[1].hashes() != own[0].hashes()


def test_what_follows_the_colon_is_the_first_argument(tmp_path, own_cache):
    """And the other keys of data are the source's other arguments."""
    images, labels = np.arange(12 * 192).reshape(12, 8, 8, 3).astype(np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "a:b.npz", images=images, labels=labels, test_images=images[:6], test_labels=labels[:6])
    config = base.get_config()
    config.data = dict(source=f"npz:{tmp_path / 'a:b.npz'}", normalisation="half")
    source = build.data_source(plain(config.data))
    np.testing.assert_array_equal(source.images, images)
    assert (source.mean, source.std) == (127.5, 127.5)
    for part in ("train", "test"):
        for label, name in enumerate(("ant", "bee", "cat")):
            (tmp_path / "classes" / part / name).mkdir(parents=True)
            Image.fromarray(images[label]).save(tmp_path / "classes" / part / name / "0.png")
    config.data = dict(source=f"folder:{tmp_path / 'classes'}", classes=("cat", "ant"), image_size=4)
    source = build.data_source(plain(config.data))
    assert source.class_names == ("cat", "ant") and source.images.shape == (2, 4, 4, 3)
    below = build.data_source(plain(config.data) | dict(source="folder:classes", folder=str(tmp_path)))
    np.testing.assert_array_equal(below.images, source.images)


def test_the_protocol_of_pfllib(own_cache):
    """The digits as large as MNIST, in [-1, 1], three quarters of at least 40 to train on; all arms can be made."""
    config = pfllib_config.get_config()
    federation, other = build.federations(plain(config), [0, 1]).values()
    assert federation.hashes() == other.hashes()
    train, test = np.asarray(federation.ownership.sizes), np.asarray(federation.tests.sizes)
    np.testing.assert_array_equal(train, 3 * (train + test) // 4)
    assert (train + test).sum() == 1797 and (train + test).min() >= 40 and federation.input_shape == (28, 28, 1)
    images = (np.asarray(federation.train.inputs, float) - federation.train.mean) / federation.train.std
    assert (images.min(), images.max()) == (-1, 1) and np.all(images[:, [0, 1, -2, -1]] == -1)
    np.testing.assert_array_equal(images[:, 2:5, 2:5, 0], np.broadcast_to(images[:, 3:4, 3:4, 0], (len(images), 3, 3)))
    variables = jax.eval_shape(build.model(plain(config), federation).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 582_026
    for data in pfllib_config.DATA_SETS:
        config = pfllib_config.get_config(data)
        assert (config.data.source, config.rounds) == (data, 2000)
        for arm in config.arms:
            training = build.algorithm(resolve_arm(plain(config), arm)).training
            assert (training.batch_size, training.drop_last, training.momentum) == (10, True, 0)


def test_numbers_of_server_optimizers_are_traced():
    config = base.get_config()
    config.server.optimizer = {"name": "sgd", "learning_rate": 1.0, "momentum": 0.5}
    assert sorted(jax.tree.leaves(build.algorithm(plain(config)).server_optimizer)) == [0.5, 1.0]


SMALL = Model(nn.SmallCNN(10), (32, 32, 3))


def test_layouts():
    config = base.get_config()
    layouts = {  # of so many clients, with so many at once on so many devices
        (10, "auto", 0, 0): engine.Sharded(8, engine.Chunked(1)),
        (10, "auto", 3, 0): engine.Sharded(8, engine.Chunked(3)),
        (10, "auto", 0, 3): engine.Sharded(3, engine.Chunked(1)),
        (10, "auto", 0, 1): engine.Chunked(1),
        (1, "auto", 0, 0): engine.Chunked(1),
        (10, "chunked", 4, 0): engine.Chunked(4),
        (10, "vectorized", 0, 0): engine.Vectorized(),
        (10, "loop", 0, 0): engine.Loop(),
    }
    for (config.clients, layout, at_once, devices), expected in layouts.items():
        config.engine.update(layout=layout, clients_at_once=at_once, devices=devices)
        assert build.client_map(plain(config), SMALL) == expected


def test_clients_at_once():
    """One on a CPU; ten on a GPU, or a hundred of what is small and dense; on a TPU ten of what is small."""
    dense = Model(nn.MLP(10), (8, 8, 1))
    deep, large = Model(nn.ResNet20(10), (32, 32, 3)), Model(nn.MLP(10, hidden=(2048, 2048)), (32, 32, 3))
    found = {
        platform: [engine.clients_at_once(Target(platform), model) for model in (dense, SMALL, deep, large)]
        for platform in ("cpu", "gpu", "tpu")
    }
    assert found == {"cpu": [1, 1, 1, 1], "gpu": [100, 10, 10, 10], "tpu": [10, 10, 1, 1]}


DOCUMENT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_every_source_and_partition_is_documented():
    """By its name, as code; ``docs/configs.md``, which is generated, has the options."""
    code = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", DOCUMENT, flags=re.DOTALL)))
    choices = {*names.functions(sources), *names.functions(partition), *normalisations.NORMALISATIONS, *glyphs.STYLES}
    assert choices | {*partition.PATHOLOGICAL} <= set(re.findall(r"\w+", code))


def test_what_is_documented_exists():
    """Every spec of the tables names a source or partition and its options; the example is valid."""
    specs = [eval(spec, {"A": 0.1, "M": 3}) for spec in re.findall(r"`(dict\([^`]*\))`", DOCUMENT)]
    assert len(specs) >= 20
    for spec in specs:
        module, key = (sources, "source") if "source" in spec else (partition, "name")
        name, _, argument = spec.pop(key).partition(":")
        draw = names.found(key, name, names.functions(module))
        given = [argument] if argument else [] if module is sources else [np.arange(3), 3]
        extra = {"domains": np.arange(3)} if name == "domain" else {}
        inspect.signature(draw).bind(*given, **spec, **extra)
        assert spec.get("normalisation", "unit") in normalisations.NORMALISATIONS
    example = {}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[0], example)
    config = example["get_config"]()
    check_keys(plain(config))
    assert config.data.source == "glyphs"


def sentences_source(task: str = "next_word"):
    """Six ids, of which four are not of words; or three labels of an example."""
    labels = np.array([[1, 2, 5, 0], [2, 5, 0, 0], [3, 1, 1, 5]] * 4)
    inputs, names = np.roll(labels, 1, axis=1), tuple("abcdef")
    if task == "multi_label":
        inputs, labels, names = labels.astype(np.float32), np.minimum(labels, 1)[:, :3].astype(np.uint8), tuple("abc")
    owners, both = np.arange(12) % 4, (inputs, labels)
    return sources.Source(*both, *both, 0.0, 1.0, names, owners=owners, client_names=tuple("ABCD"), task=task)


def test_the_task_is_that_of_the_data_source(monkeypatch):
    """So is the type of the inputs; partitions that divide classes are rejected."""
    source = "fedjax_collapse.config.federations.data_source"
    monkeypatch.setattr(source, lambda data: sentences_source(data["task"]))
    config = base.get_config()
    config.clients, config.partition = 4, dict(name="given")
    config.data = dict(source="my:source", task="next_word")
    config.network = dict(name="stackoverflow_lstm", embedding=4, hidden=3)
    federation = build.federations(plain(config), [0])[0]
    model = build.model(plain(config), federation)
    assert model.task == next_word(2) and model.input_dtype == "int32" and federation.num_targets == 4
    assert federation.client_names == tuple("ABCD") and federation.partition_arrays()["class_counts"].sum() == 36
    config.partition.name = "dirichlet"
    message = r"it divides classes, .* several labels for each example \(next_word\)"
    check(message, build.federations, plain(config), [0])
    config.partition.name, config.network, config.data.task = "iid", dict(name="mlp", hidden=()), "multi_label"
    federation = build.federations(plain(config), [0])[0]
    model = build.model(plain(config), federation)
    assert model.task == multi_label(3) and model.input_dtype is float
    assert federation.partition_arrays()["class_counts"].sum() == np.asarray(federation.train.labels).sum()
