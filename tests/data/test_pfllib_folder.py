"""PFLlib's folder of clients: written from a partition and read again, foreign pickles, and wrong files in one line."""

import io
import pickle

import numpy as np
import pytest
from conftest import assert_same_bits, cases, check
from small_data import assert_fields, draw, header, save_npz
from small_studies import BASE, error_of, write_config

from experiments.commands import show_partition
from experiments.commands.convert import open_stream
from experiments.configs import base
from fedjax_collapse import Federation, sources
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.data.ownership import rows_of
from fedjax_collapse.data.reading.stored_arrays import read_pickled

pytestmark = pytest.mark.usefixtures("own_cache")


def save(root, client, images=None, labels=None, part="train"):
    """A file as PFLlib's generators write it."""
    images = np.zeros((3, 2, 4, 5), np.float32) if images is None else images
    labels = np.arange(len(images)) if labels is None else labels
    (root / part).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(root / part / f"{client}.npz", data={"x": images, "y": labels})


def folder(root, clients=3):
    for part in ("train", "test"):
        for client in range(clients):
            save(root, client, part=part)
    return root


def given(root):
    """The options of a config that takes the clients and their tests from a folder."""
    return dict(data=dict(source=f"pfllib:{root}")) | {key: dict(name="given") for key in ("partition", "own_tests")}


def test_images_are_read_channels_last(tmp_path):
    rng = np.random.default_rng(0)
    for client, count in enumerate((4, 2)):
        for part, more in (("train", 3), ("test", 0)):
            images = rng.normal(size=(count + more, 2, 4, 5)).astype(np.float32)
            save(tmp_path, client, images, np.full(count + more, client + 1), part)
    source = sources.pfllib(tmp_path)  # the last ones are client 1's of the test
    assert source.images.shape == (12, 4, 5, 2) and source.images.dtype == np.float32
    np.testing.assert_array_equal(source.test_images[-2:], images.transpose(0, 2, 3, 1))
    owners = [0] * 7 + [1] * 5, [0] * 4 + [1] * 2
    assert_fields(source, owners=owners[0], test_owners=owners[1], class_names=("0", "1", "2"), mean=0.0, std=1.0)
    assert_fields(source.pooled(), owners=[*owners[0], *owners[1]])


def test_texts_are_ids_of_tokens(tmp_path):
    """As integers (Shakespeare), or as pairs of a list and its length (AG News); what is beyond it is padding."""
    ids = np.random.default_rng(0).integers(1, 90, (4, 5))
    for client, lengths in enumerate(([5, 5, 5, 5], [2, 5, 3, 1])):
        pairs = np.array(list(zip(ids.tolist(), lengths, strict=True)), dtype=object)
        save(tmp_path / "pairs", client, pairs, np.arange(4) % 2)
        save(tmp_path / "pairs", client, pairs[:2], np.arange(2), "test")
        save(tmp_path / "ids", client, ids, np.arange(4) % 2)
        save(tmp_path / "ids", client, ids[:2], np.arange(2), "test")
    source, plain_ids = sources.pfllib(tmp_path / "pairs"), sources.pfllib(tmp_path / "ids")
    assert source.images.dtype == np.int32 and source.mean is None and plain_ids.mean is None
    np.testing.assert_array_equal(source.images[:4], ids)
    assert source.images[4].tolist() == [*ids[0, :2], 0, 0, 0] and source.images[7].tolist() == [ids[3, 0], 0, 0, 0, 0]
    np.testing.assert_array_equal(plain_ids.images, [*ids, *ids])
    federation = Federation.from_source(source, [np.arange(4), np.arange(4, 8)])
    assert federation.input_dtype == "int32" and federation.num_classes == 2
    ragged = np.empty((2, 2), object)
    ragged[:] = [[[1, 2], 2], [[1], 1]]
    save(tmp_path / "pairs", 1, ragged, np.arange(2))
    message = r"train/1.npz: x is object\[2, 2\] .* or pairs of a list of ids and its length"
    check(message, sources.pfllib, tmp_path / "pairs")


def test_a_folder_is_read_client_by_client(tmp_path):
    """Clients without training examples are left out, and keep their tests."""
    root = folder(tmp_path)
    save(root, 1, np.zeros((0, 2, 4, 5), np.float32), np.zeros(0, int))
    stream = open_stream(f"pfllib:{root}", {})
    assert [each.client for each in stream.train(0)] == [0, 2] and [each.client for each in stream.train(1)] == [2]
    assert [each.client for each in stream.test()] == [0, 1, 2]
    assert sources.pfllib(root).test_owners.tolist() == [0] * 3 + [2] * 3 + [1] * 3


def normalised(examples, ownership):
    """Labels, and images as the network sees them, of each client."""
    inputs, labels, mean, std = map(np.asarray, (examples.inputs, examples.labels, examples.mean, examples.std))
    return [(labels[own], (np.float32(inputs[own]) - mean) / std) for own in rows_of(ownership)]


def test_what_the_command_writes_is_read_as_the_same_federation(tmp_path, capsys, said):
    """Images as the network sees them, the rows of every client in order, and its own tests, for one seed."""
    images, labels = draw(200, (8, 8, 3))
    np.savez(tmp_path / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels)
    data = dict(source=f"npz:{tmp_path / 'data.npz'}", normalisation="half")
    options = [f"--config.data.{key}={value}" for key, value in data.items()]
    options += ["--config.clients=4", "--config.own_tests.name=split", f"--pfllib={tmp_path / 'out'}"]
    options.append(write_config(tmp_path, of=BASE))
    assert f"wrote {tmp_path / 'out'}" in said(show_partition, *options)
    config = plain(base.get_config()) | dict(clients=4, data=data, own_tests=dict(name="split"))
    written = build.federations(config, [0])[0]
    federations = build.federations(config | given(tmp_path / "out"), [0, 1])
    read = federations[0]
    assert federations[1].hashes() == read.hashes()
    assert read.class_names == written.class_names
    assert_same_bits(normalised(written.train, written.ownership), normalised(read.train, read.ownership))
    assert_same_bits(normalised(written.test, written.tests), normalised(read.test, read.tests))
    assert show_partition.main(options) == 2
    error_of(capsys, "has npz files, perhaps of another partition")


class Harmful:
    def __reduce__(self):
        return print, ("a pickle ran code",)


def test_no_pickle_runs_code(tmp_path, capsys):
    """Also not where the dict has what is expected; each kind of object that is no array or dict is named."""
    root = folder(tmp_path)
    images = np.zeros((1, 2, 4, 5), np.float32)
    for foreign, name in ((Harmful(), "builtins.print"), (build.model, "fedjax_collapse")):
        data = {"x": images, "y": np.zeros(1, int), "more": foreign}
        np.savez_compressed(root / "train/1.npz", data=data)
        message = rf"train/1.npz: cannot be read \(it holds {name}.*only arrays and dicts are loaded\)"
        check(message, sources.pfllib, root)
    assert "ran code" not in capsys.readouterr().out


@cases(2, 3, 4)
def test_arrays_are_read_as_they_were_pickled(protocol):
    """In any order of memory and of bytes, empty, of one number, the same one twice, and beside other values."""
    rng = np.random.default_rng(0)
    one = rng.normal(size=(3, 2, 4, 5)).astype(np.float32)
    arrays = [one, np.asfortranarray(one), one.astype(">f4"), one[:, :, ::2], one[:0], np.array(7), one > 0, one]
    content = pickle.dumps({"arrays": arrays, "more": (None, True, -(2**40), 0.5, "a" * 300, [], {1: ()})}, protocol)
    found = read_pickled(io.BytesIO(content))
    assert found["more"] == (None, True, -(2**40), 0.5, "a" * 300, [], {1: ()})
    for before, after in zip(arrays, found["arrays"], strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        np.testing.assert_array_equal(after, before)


def test_other_instructions_of_pickles_are_named():
    with pytest.raises(ValueError, match="it has the instruction LIST, and only arrays"):
        read_pickled(io.BytesIO(pickle.dumps([1], 0)))


def test_wrong_folders_are_one_line(tmp_path):
    check("expected a folder of PFLlib, with train/0.npz", sources.pfllib, tmp_path / "none")
    root = folder(tmp_path / "data", clients=4)
    (root / "test/3.npz").unlink()
    check(r"test/3.npz: cannot be read \(No such file or directory\); expected PFLlib's array", sources.pfllib, root)
    (root / "train/3.npz").rename(root / "train/x.npz")
    check("train/x.npz: expected only the files of clients, 0.npz, 1.npz", sources.pfllib, root)
    (root / "train/x.npz").unlink()
    good = np.zeros((3, 2, 4, 5), np.float32)
    for images, labels, message in (
        (good[..., 1:], None, r"test/2.npz: x is float32\(4, 4, 2\), but float32\(4, 5, 2\) in the files before; use"),
        (good[0], None, r"test/2.npz: x is float32\[2, 4, 5\] and y int64\[2\]; expected numbers \[examples, channels"),
        (good, np.ones(3), r"y float64\[3\]; expected numbers .* and as many integers"),
        (good, np.arange(2), r"x is float32\[3, 2, 4, 5\] and y int64\[2\]"),
        (good, [0, 1, 2], "y a list"),
        (good, np.array([0, -1, 2]), "test/2.npz: label -1; expected integers from 0"),
    ):
        save(root, 2, images, labels, "test")
        check(message, sources.pfllib, root)
    np.savez(root / "test/2.npz", data={"x": good})
    check("y missing", sources.pfllib, root)
    np.savez(root / "test/2.npz", data=good)
    check(r"test/2.npz: cannot be read \(it holds an array of float32\[3, 2, 4, 5\]\)", sources.pfllib, root)
    np.savez(root / "test/2.npz", images=good)
    check("test/2.npz: cannot be read .*no item named 'data.npy'", sources.pfllib, root)
    (root / "test/2.npz").write_bytes(b"no zip")
    check(r"test/2.npz: cannot be read \(File is not a zip file\)", sources.pfllib, root)


def test_files_of_earlier_numpy_are_read(tmp_path):
    """Whose pickles name numpy.core."""
    root = folder(tmp_path)
    data = np.array({"x": np.ones((3, 2, 4, 5), np.float32), "y": np.arange(3)}, object)
    content = pickle.dumps(data, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    save_npz(root / "train/0.npz", data=header((), "|O") + content)
    assert sources.pfllib(root).images[:3].min() == 1


def test_wrong_choices_are_one_line(tmp_path):
    config = plain(base.get_config()) | dict(clients=3) | given(folder(tmp_path))
    other, iid = dict(data=dict(source="glyphs", train_size=40, test_size=20)), dict(partition=dict(name="iid"))
    for changes, message in (
        (other, "partition given: data source glyphs has no owners"),
        (dict(clients=2), "clients: 2 clients but 3 in the data; use clients=3"),
        (dict(own_tests=dict(name="given", test=0.1)), "unknown option of own_tests 'test'"),
        (iid, "own_tests given: data source pfllib:.* with partition iid; expected data"),
        (other | iid, "own_tests given: data source glyphs with"),
    ):
        check(message, build.federations, config | changes, [0])
