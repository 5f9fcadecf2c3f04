"""``fedjax-collapse convert``: the examples of a source's clients, back from the store."""

import filecmp
import json

import numpy as np
import pytest
from conftest import cases
from natural_data import example, flair, leaf, pfl, question, tff
from small_studies import error_of

from experiments.commands import convert as command
from experiments.commands.show_partition import describe
from fedjax_collapse import Federation, partition, sources
from fedjax_collapse.data import store as stores
from fedjax_collapse.data.sources import hugging_face
from fedjax_collapse.data.store import open_store

pytestmark = pytest.mark.usefixtures("own_cache")


def keys(options):
    return [f"--data.{key}={value}" for key, value in options.items()]


def converted(source, folder, *options, **of_data):
    assert command.main([source, str(folder), *options, *keys(of_data)]) == 0
    return open_store(folder)


def assert_same_clients(store, source):
    """The training rows of each client by its name, and the test rows in any order."""
    assert store.class_names == source.class_names and store.facts["task"] == source.task
    assert store.labels.dtype == (np.int32 if source.labels.ndim == 1 else source.labels.dtype)
    for client, name in enumerate(store.names):
        own, rows = source.owners == source.client_names.index(name), store.offsets[client : client + 2]
        np.testing.assert_array_equal(store.inputs[slice(*rows)], source.images[own])
        np.testing.assert_array_equal(store.labels[slice(*rows)], source.labels[own])
    assert len(store.labels) == len(source.labels)

    def pairs(inputs, labels):
        return sorted((inputs[i].tobytes(), labels[i].tolist()) for i in range(len(labels)))

    assert pairs(*store.test) == pairs(source.test_images, source.test_labels)


@pytest.fixture
def stackoverflow(tmp_path):
    (tmp_path / "words").write_text("how 3\nto 2\ni 1\n")
    rows = [(str(row * 7 % 10), question("how to i " * (row % 8))) for row in range(30)]
    file = tff(tmp_path / "so.sqlite", train=rows, test=rows[:3])
    options = dict(task="next_word", vocabulary=str(tmp_path / "words"), vocabulary_size=3)
    return f"tff:{file}", sources.tff(file, **options), options


def test_clients_of_sqlite(tmp_path, stackoverflow, capsys):
    source, expected, options = stackoverflow
    store = converted(source, tmp_path / "store", **options)
    assert f"wrote {tmp_path / 'store'}: 10 clients, 30 training and 3 test examples" in capsys.readouterr().out
    assert store.names == expected.client_names and store.inputs.dtype == np.int16
    assert_same_clients(store, expected)
    assert json.loads(store.facts["source"])["data"]["vocabulary_size"] == 3
    assert store.facts["mean"] is None
    whole = Federation.from_source(expected, partition.given(np.zeros(30, int), 10, expected.owners))
    facts = describe(whole)
    assert facts["sizes"] == [3] * 10 and facts["repeated"] == 0
    for storage in ("disk", "host"):
        federation = Federation.from_store(tmp_path / "store", storage=storage)
        assert federation.task == "next_word" and federation.train.pad == 0 and federation.num_targets == 20
        np.testing.assert_array_equal(federation.class_counts(), whole.class_counts())


def test_it_continues_where_it_was_interrupted(tmp_path, stackoverflow, monkeypatch, capsys):
    """To the same bytes, and with the same options only."""
    source, expected, options = stackoverflow
    converted(source, tmp_path / "whole", **options)

    def add_and_end(writer, name, *arrays, add=stores.StoreWriter.add):
        if name == "6":
            raise KeyboardInterrupt
        add(writer, name, *arrays)

    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(stores.StoreWriter, "add", add_and_end)
        converted(source, tmp_path / "store", **options)
    assert command.main([source, str(tmp_path / "store"), *keys(options | dict(vocabulary_size=2))]) == 2
    assert "rows of inputs.npy" not in capsys.readouterr().err
    store = converted(source, tmp_path / "store", **options)
    assert "10 clients, 6 of them before, 30 training" in capsys.readouterr().out
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "store").iterdir())
    assert filecmp.cmpfiles(tmp_path / "whole", tmp_path / "store", names, shallow=False)[0] == names
    assert_same_clients(store, expected)


@cases(1, 10**9)
def test_clients_of_parquet_in_any_order_of_rows(most, tmp_path, monkeypatch):
    """In one batch, and one client a batch, which reads of each row group only its rows."""
    monkeypatch.setattr(hugging_face, "BATCH_BYTES", most)
    flair(tmp_path / "flair", group=2)
    options = dict(client_column="user_id", task="multi_label", normalisation="imagenet")
    store = converted(f"parquet:{tmp_path / 'flair'}", tmp_path / "store", **options)
    assert store.names == ("u3", "u1", "u2") and store.facts["mean"] == pytest.approx([123.675, 116.28, 103.53])
    assert_same_clients(store, sources.parquet(tmp_path / "flair", **options))
    for file in (tmp_path / "flair").glob("test*"):
        file.unlink()
    options |= dict(test_fraction=0.5, seed=3)  # held out of each client, the same examples as in memory
    store = converted(f"parquet:{tmp_path / 'flair'}", tmp_path / "again", **options)
    assert_same_clients(store, sources.parquet(tmp_path / "flair", **options))


def test_other_sources_with_natural_clients(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16))
    for part, users in (("train", {"b": [0, 1], "a": [2, 3]}), ("test", {"a": [4], "c": [5]})):
        data = {user: ((pixels[own] / 255).tolist(), [row % 3 for row in own]) for user, own in users.items()}
        leaf(tmp_path / "femnist" / part / "x.json", **data)
    store = converted(f"leaf:{tmp_path / 'femnist'}", tmp_path / "leaf", "--data.normalisation=half")
    assert_same_clients(store, sources.leaf(tmp_path / "femnist"))
    assert store.names == ("b", "a") and store.facts["mean"] == 127.5 and store.class_names == ("0", "1", "2")
    pairs = [
        (name, example(pixels=image / np.float32(255), label=1)) for name, image in zip("ba", pixels[:2], strict=True)
    ]
    file = tff(tmp_path / "emnist.sqlite", train=pairs * 2, test=pairs)
    store = converted(f"tff:{file}", tmp_path / "tff", "--data.invert=True")
    assert_same_clients(store, sources.tff(file, invert=True))


def test_streams_start_at_any_client(tmp_path, stackoverflow):
    """As a conversion that continues does."""
    flair(tmp_path / "flair")
    rows = [[5, 1, 6, 0]]
    file = pfl(tmp_path / "so.hdf5", train=dict.fromkeys("abc", rows), val={"a": rows})
    for part in ("train", "test"):
        leaf(tmp_path / "leaf" / part / "a.json", **{name: ([[0.5] * 16], [0]) for name in "abc"})
    made = [
        stackoverflow[::2],
        (f"pfl:{file}", {}),
        (f"leaf:{tmp_path / 'leaf'}", {}),
        (f"parquet:{tmp_path / 'flair'}", dict(client_column="user_id", task="multi_label")),
    ]
    source = sources.digits()
    federation = Federation.from_source(source, partition.iid(source.labels, 3), storage="host")
    for stream in (*(command.open_stream(*each) for each in made), command.stream_of(federation)):
        every, later = list(stream.train(0)), list(stream.train(2))
        assert len(every) > 2 and [each.client for each in later] == [each.client for each in every[2:]]
        np.testing.assert_array_equal(later[0].inputs, every[2].inputs)
        assert stream.num_clients in (None, len(every))


def test_sources_in_memory(tmp_path):
    """By a partition, as a config has it, or by the owners of the source."""
    options = "--clients=4", "--partition.name=dirichlet", "--partition.alpha=0.5"
    store = converted("digits", tmp_path / "digits", *options)
    source = sources.digits()
    parts = partition.dirichlet(source.labels, 4, alpha=0.5)
    assert store.names == ("0", "1", "2", "3") and store.sizes.tolist() == list(map(len, parts))
    np.testing.assert_array_equal(store.gather(np.array([2]))[0], source.images[parts[2]])
    np.testing.assert_array_equal(store.test[1], source.test_labels)
    federation = Federation.from_store(tmp_path / "digits")
    np.testing.assert_array_equal(federation.train.mean, [0.0])
    (tmp_path / "tweets.csv").write_text("text,label,user\n" + "\n".join(f"a {i},{i % 2},u{i % 3}" for i in range(12)))
    options = dict(client_column="user", test_fraction=0.25)
    store = converted(f"texts:{tmp_path / 'tweets.csv'}", tmp_path / "texts", **options)
    assert_same_clients(store, sources.texts(tmp_path / "tweets.csv", **options))


@cases(
    (["digits"], "digits: no natural clients; give --clients and --partition.name"),
    (["digits", "--clients=3"], "--clients and --partition.name: expected both"),
    (["tff:none.sqlite"], "none.sqlite: cannot be read"),
    (["tff:none.sqlite", "--data.channels=3"], "data.channels: tff has no such option; expected one of train_sp"),
)
def test_wrong_arguments(arguments, message, tmp_path, capsys):
    source, *options = arguments
    try:
        status = command.main([source, str(tmp_path / "store"), *options])
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and error_of(capsys, message)
    assert not (tmp_path / "store").exists()
