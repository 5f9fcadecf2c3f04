"""Stores on disk: what is written is read, an interrupted writer resumes to the same bytes, damage is named."""

import dataclasses
import errno
import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_same_bits, cases, check, one_line
from hypothesis import given
from hypothesis import strategies as st

from experiments.commands import convert as command
from experiments.configs import base
from fedjax_collapse import Federation, UserError
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core import files
from fedjax_collapse.core.records import Damaged
from fedjax_collapse.data import store as stores
from fedjax_collapse.data.store import Store, StoreWriter, open_store

NAMES = ("cat", "dog", "fox")


def clients(sizes, seed=0):
    """Yields name, inputs and labels of ragged clients."""
    rng = np.random.default_rng(seed)
    for number, size in enumerate(sizes):
        yield f"c{number}", rng.integers(0, 256, (size, 2, 2, 1), np.uint8), rng.integers(0, 3, size)


def write(folder, sizes, done=0):
    with StoreWriter(folder, class_names=NAMES, mean=0.0, std=255.0) as store:
        assert store.done == done
        for client in list(clients(sizes))[store.done :]:
            store.add(*client)
        store.add_test(np.zeros((2, 2, 2, 1), np.uint8), np.array([0, 2]))
    return open_store(folder)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "store", (3, 1, 4))
    return tmp_path / "store"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_read(folder):
    store, written = open_store(folder), list(clients((3, 1, 4)))
    assert store.num_clients == 3 and store.names == ("c0", "c1", "c2") and store.sizes.tolist() == [3, 1, 4]
    assert store.class_names == NAMES
    for client, (_, inputs, labels) in enumerate(written):
        found = store.gather(np.array([client]))
        np.testing.assert_array_equal(found[0], inputs)
        np.testing.assert_array_equal(found[1], labels)
        assert found[1].dtype == np.int32
        np.testing.assert_array_equal(store.class_counts[client], np.bincount(labels, minlength=3))
    assert store.test[0].shape == (2, 2, 2, 1) and store.test[1].tolist() == [0, 2]
    store.advise(np.array([2, 0, 3]))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_a_cohort_has_the_rows_of_its_clients(sizes, data):
    offsets, inputs = np.cumsum([0, *sizes]), np.arange(sum(sizes) * 2).reshape(-1, 2)
    labels = -inputs[:, 0]
    parts = zip(*(np.split(array, offsets[1:-1]) for array in (inputs, labels)), strict=True)
    sums = b"".join(stores._checksums(*own) for own in parts)
    ids = np.array(data.draw(st.lists(st.integers(0, len(sizes)), max_size=6)), int)  # the last one is no client
    most = data.draw(st.none() | st.integers(1, 5))
    store = Store(Path(), {}, offsets, inputs, labels, np.frombuffer(sums, np.uint8).reshape(-1, 16), most)
    parts = [np.arange(first, last)[:most] for first, last in zip(store.offsets, store.offsets[1:], strict=False)]
    rows, found = store.rows(ids)
    expected = [(*parts, np.arange(0))[i] for i in ids]
    assert found.tolist() == list(map(len, expected))
    np.testing.assert_array_equal(rows, np.concatenate([np.arange(0), *expected]))
    inputs, labels, _ = store.gather(ids)
    np.testing.assert_array_equal(inputs, store.inputs[rows])
    np.testing.assert_array_equal(labels, store.labels[rows])


@pytest.mark.parametrize("commit", [1, 10, 2**26])
@pytest.mark.parametrize("is_killed", [False, True])
def test_an_interrupted_writer_resumes_to_the_same_files(tmp_path, folder, monkeypatch, commit, is_killed):
    """A kill loses what was written since the last point of resumption, and an exception nothing."""
    monkeypatch.setattr(stores, "_COMMIT_BYTES", commit)
    told, again = [], tmp_path / "again"
    writer = StoreWriter(again, NAMES, 0.0, 255.0, progress=lambda *numbers: told.append(numbers))
    with pytest.raises(KeyboardInterrupt), writer:
        for client in list(clients((3, 1, 4)))[:2]:
            writer.add(*client)
        for file in writer._files.values():
            file.flush()
        if is_killed:
            monkeypatch.setattr(StoreWriter, "_commit", lambda self: None)
        raise KeyboardInterrupt
    monkeypatch.undo()
    after_second = commit == 1 or not is_killed
    assert told[-1:] == ([(2, 4)] if after_second else [(1, 3)] if commit == 10 else [])
    check("unfinished store; start its conversion again", open_store, again)
    if told:
        check(r"unfinished with std 255\.0, now 1\.0", StoreWriter(again, NAMES, 0.0, 1.0).__enter__)
    write(again, (3, 1, 4), done=told[-1][0] if told else 0)
    assert contents(again) == contents(folder)


def test_text_and_regression(tmp_path):
    with StoreWriter(tmp_path / "s") as store:
        store.add("ä b", np.zeros((2, 5), np.int16), np.ones((2, 5), np.int64))
        store.add("c", np.zeros((1, 5), np.int16), np.ones((1, 5), np.int64))
    found = open_store(tmp_path / "s")
    assert found.names == ("ä b", "c") and found.class_counts is None
    assert found.inputs.dtype == np.int16 and found.labels.dtype == np.int32
    check("no test rows", getattr, found, "test")


IMAGES = np.zeros((2, 2, 2, 1), np.uint8)


@cases(
    ("client 'd': 0 inputs and 0 labels", ("d", IMAGES[:0], np.zeros(0, int))),
    ("client 'd': 2 inputs and 1 labels", ("d", IMAGES, np.zeros(1, int))),
    ("client 'd' data: label 3 has no name among 3 class names", ("d", IMAGES, np.array([0, 3]))),
    (r"rows of inputs.npy are float32\[2, 2, 1\], expected uint8", ("d", IMAGES / 2, np.array([0, 1]))),
    (r"expected uint8\[2, 2, 1\] as before", ("d", IMAGES[:, :1], np.array([0, 1]))),
    ("a name of one line", ("d\ne", IMAGES, np.array([0, 1]))),
    ("client 'c0' was added twice", ("c0", IMAGES, np.array([0, 1]))),
)
def test_wrong_rows_are_named(message, client, tmp_path):
    with one_line(message), StoreWriter(tmp_path / "s", class_names=NAMES) as store:
        store.add(*next(clients((3,))))
        store.add(*client)


def test_a_folder_that_is_in_use(folder, tmp_path):
    check("holds a store already", write, folder, ())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis").write_text("")
    check("holds 'thesis'; expected an empty", write, tmp_path / "other", ())
    check("no client was added", write, tmp_path / "empty", ())
    with StoreWriter(tmp_path / "s", NAMES) as store:
        check("s: another process writes this store; wait for it, or stop it", StoreWriter(tmp_path / "s").__enter__)
        store.add(*next(clients((3,))))


def test_a_study_takes_the_first_clients(folder):
    data = dict(source=f"store:{folder}", examples_per_client=2)
    config = plain(base.get_config()) | dict(data=data, partition=dict(name="natural"), clients=2)
    made = build.federations(config, [0, 1])
    assert made[0] is made[1] and made[0].ownership.sizes.tolist() == [2, 1]
    assert made[0].partition_arrays()["class_counts"].shape == (2, 3)
    check("3 clients, expected 4", build.federations, config | dict(clients=4), [0])
    config |= dict(partition=dict(name="dirichlet"))
    check(r"it has its own clients and no own tests; expected partition\.name=natural", build.federations, config, [0])


def test_a_federation_in_memory_has_the_same_rows(folder):
    stored, held = (Federation.from_store(folder, examples_per_client=2, storage=where) for where in ("disk", "host"))
    assert [rows.tolist() for rows in stored.owned_rows()] == [rows.tolist() for rows in held.owned_rows()]
    assert (stored.ownership.sizes == np.asarray(held.ownership.sizes)).all()
    assert not np.shares_memory(held.train.inputs, stored.train.inputs) and held.train.inputs.flags.owndata
    assert_same_bits(tuple(stored.train), tuple(held.train))
    assert_same_bits(tuple(stored.test), tuple(held.test))
    whole = Federation.from_store(folder)
    assert stored.hashes()["data"] == whole.hashes()["data"]
    assert stored.hashes()["partition"] != whole.hashes()["partition"]
    assert Federation.from_store(folder, clients=3).hashes() == whole.hashes()
    _facts(mean=1.0)(folder)
    assert Federation.from_store(folder).hashes()["data"] != whole.hashes()["data"]


def _change(name, edit):
    def damage(folder):
        path = folder / name
        path.write_bytes(edit(path.read_bytes()))

    return damage


def _offsets(edit):
    """Writes other offsets with their checksum."""

    def damage(folder):
        offsets = np.load(folder / "offsets.npy")
        edit(offsets)
        np.save(folder / "offsets.npy", offsets)
        _facts(index=stores._digest(folder, stores._INDEX))(folder)

    return damage


def _facts(file="store.json", **changes):
    """Writes other facts with their hash: values, or functions of those before; None removes one."""

    def damage(folder):
        facts = json.loads((folder / file).read_text())
        for name, value in changes.items():
            facts[name] = value(facts[name]) if callable(value) else value
        facts = {name: value for name, value in facts.items() if value is not None or name not in changes}
        (folder / file).write_text(json.dumps(stores._sealed(facts)))

    return damage


@cases(
        (UserError, "not a store", lambda folder: (folder / "store.json").unlink()),
        (UserError, "version 1, expected 2; convert its source again", _facts(version=1)),
        (Damaged, "store.json: differs", _change("store.json", lambda b: b.replace(b"255.0", b"254.0"))),
        (Damaged, "store.json: no facts of a store .KeyError", _facts(shapes=None, index={})),
        (Damaged, "names.txt: differs from what was written", _change("names.txt", lambda b: b"x" + b[1:])),
        (Damaged, "offsets.npy: differs", _change("offsets.npy", lambda b: b[:-1] + b"\1")),
        (Damaged, "names.txt: is missing", lambda folder: (folder / "names.txt").unlink()),
        (Damaged, "inputs.npy: is cut", _change("inputs.npy", lambda b: b[:-1])),
        (
            Damaged, "inputs.npy: 2 rows, expected 8",
            lambda folder: shutil.copy(folder / "test_inputs.npy", folder / "inputs.npy"),
        ),
        (Damaged, "offsets do not ascend", _offsets(lambda offsets: offsets.__setitem__(1, 5))),
        (Damaged, "offsets do not ascend from 0 to the 8 rows", _offsets(lambda offsets: offsets.__setitem__(3, 7))),
    )  # fmt: skip
def test_damage_is_one_line(kind, message, damage, folder):
    damage(folder)
    with one_line(message) as error:
        open_store(folder)
    assert isinstance(error.value, kind) and str(folder) in str(error.value)


@cases(
    ("inputs.npy", "store: rows of client 'c2' differ from what was written; restore it, or convert"),
    ("labels.npy", "store: rows of client 'c2' differ from what was written"),
    ("test_inputs.npy", "store: its test rows differ from what was written"),
    ("test_labels.npy", "store: its test rows differ from what was written"),
)
def test_examples_are_verified_when_they_are_read(name, message, folder, capsys):
    """The last byte of a file is flipped: of the last client, or of the test."""
    assert command.main(["--check", str(folder)]) == 0
    assert "3 clients, 8 training and 2 test examples, all as they were written" in capsys.readouterr().out
    _change(name, lambda b: b[:-1] + bytes([b[-1] ^ 1]))(folder)
    store = open_store(folder)
    store.gather(np.array([0, 1, 3]))
    with pytest.raises(Damaged, match=message):
        store.test if "test" in name else store.gather(np.array([1, 2]))
    for storage in ("device", "host") if "test" not in name else ("disk",):
        with pytest.raises(Damaged, match=message):
            Federation.from_store(folder, storage=storage)
    assert command.main(["--check", str(folder)]) == 2
    assert message[7:] in capsys.readouterr().err


def test_only_the_blocks_that_are_read_are_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_BLOCK_BYTES", 8)  # two rows
    store = write(tmp_path / "store", (3, 1, 5))
    assert len(store._checksums) == 2 + 1 + 3
    with open(tmp_path / "store" / "inputs.npy", "r+b") as file:  # row 3 of the last client
        file.seek(-5, os.SEEK_END)
        file.write(bytes([file.peek()[0] ^ 1]))
    dataclasses.replace(store, most=2).gather(np.array([2, 0]))
    check("client 'c2'", dataclasses.replace(store, most=3).gather, np.array([2, 0]))


_unfinished = functools.partial(_facts, "unfinished.json")


@cases(
    ("unfinished.json: of version 1, expected 2; remove the folder", _unfinished(version=1)),
    ("s: differs from what was", _unfinished(clients=lambda n: n + 1, rows=lambda n: n + 1)),
    ("json: differs from", _change("unfinished.json", lambda b: b.replace(b'"clients": 2', b'"clients": 1'))),
    ("unfinished.json: differs from", _unfinished(bytes=lambda b: b | {"../victim": 3})),
    ("s: differs from what was written", _unfinished(rows="many")),
    ("unfinished.json: no facts of a store .TypeError", _unfinished(shapes={"inputs.npy": 3})),
    ("s: client 'c0' differs from what was written", _change("inputs.npy", lambda b: b[:128] + b"\0" + b[129:])),
    ("s: client 'c1' differs from what was written", _change("labels.npy", lambda b: b[:-1] + b"\1")),
    ("s: differs from what was written", _change("names.txt", lambda b: b.replace(b"c0", b"d0"))),
    ("sizes.part: shorter than what was written", _change("sizes.part", lambda b: b[:-1])),
    ("names.txt: cannot be opened .No such file", lambda folder: (folder / "names.txt").unlink()),
    (
        "labels.npy: it is a link",
        lambda folder: ((folder / "labels.npy").unlink(), (folder / "labels.npy").symlink_to("inputs.npy")),
    ),
)
def test_an_unfinished_store_is_verified_before_it_goes_on(message, damage, tmp_path):
    (tmp_path / "victim").write_text("untouched")
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "s", NAMES) as store:
        for client in clients((3, 2)):
            store.add(*client)
        raise KeyboardInterrupt
    damage(tmp_path / "s")
    check(message, StoreWriter(tmp_path / "s", NAMES).__enter__)
    assert (tmp_path / "victim").read_text() == "untouched"
    shutil.rmtree(tmp_path / "s")  # and nothing holds it
    with StoreWriter(tmp_path / "s", NAMES) as store:
        store.add(*next(clients((3,))))


def test_links_and_pipes_in_the_place_of_files(folder, tmp_path):
    (tmp_path / "victim").write_bytes(b"untouched")
    (tmp_path / "s").mkdir()
    with one_line(r"inputs.npy: it is a link"), StoreWriter(tmp_path / "s", NAMES) as store:
        (tmp_path / "s" / "inputs.npy").symlink_to("../victim")
        store.add(*next(clients((3,))))
    assert (tmp_path / "victim").read_bytes() == b"untouched"
    for name in ("inputs.npy", "names.txt", "test_labels.npy", "checksums.bin"):
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / name).unlink()
        os.mkfifo(tmp_path / name / name)
        with pytest.raises(Damaged, match=name):
            open_store(tmp_path / name).test  # noqa: B018


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: .*/s'"), StoreWriter(tmp_path / "s", NAMES) as store:
        store.add(*next(clients((3,))))
        monkeypatch.setattr(StoreWriter, "_file", full)
        store.add("d", IMAGES, np.array([0, 1]))
    with pytest.raises(OSError, match=r"No space left on device: .*/file.json'"), files.whole(tmp_path / "file.json"):
        full()
