"""Damaged and hostile files: names that lead elsewhere, claims beyond a file's size, and what would never end."""

import faulthandler
import functools
import gzip
import io
import json
import os
import pickle
import sqlite3
import struct

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import cases, check
from natural_data import example, leaf, pfl, tff, tff_hdf5
from PIL import Image
from small_data import draw, header, save_arrow, save_classes, save_image, save_npz, save_parquet, save_parts
from standard_data import draw as draw_standard
from standard_data import save_torchvision

from fedjax_collapse import partition, sources
from fedjax_collapse.data.reading import text, untrusted
from fedjax_collapse.data.reading.images import encoded, packages
from fedjax_collapse.data.reading.images.encoded import Decoding, Encoded, decode_all
from fedjax_collapse.data.reading.stored_arrays import read_pickled

DEEP = 100_000


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def files_are_small(monkeypatch):
    """What any file may take in memory is a part of the usual, so that less than that is written."""
    monkeypatch.setattr(untrusted, "_SPARE", untrusted._SPARE // 32)


# names that lead elsewhere


@pytest.fixture
def images(tmp_path):
    """A folder with eight images, one of them a link to a file outside, next to an image outside."""
    for row, image in enumerate(draw(8, (8, 8, 3))[0]):
        save_image(tmp_path / "images" / f"{row}.png", image)
    (tmp_path / "images" / "7.png").rename(tmp_path / "secret.png")
    (tmp_path / "images" / "7.png").symlink_to(tmp_path / "secret.png")
    return tmp_path / "images"


def outside(folder):
    return "../secret.png", f"{folder}/../secret.png", str(folder.parent / "secret.png")


def test_names_in_a_csv_file(tmp_path, images):
    """Whole paths below the folder are accepted, and links in it are followed."""

    def save(name):
        names = [str(images / "0.png"), *(f"{row}.png" for row in range(1, 7)), name]
        rows = [f"{image},{row % 2},u{row % 2}\n" for row, image in enumerate(names)]
        (tmp_path / "all.csv").write_text("image_id,class,user_id\n" + "".join(rows))

    arguments = dict(image_folder=str(images), test_fraction=0.5)
    for name in ("7.png", "../images/7.png", str(images / "7.png")):
        save(name)
        assert len(sources.csv(str(tmp_path / "all.csv"), **arguments).images) == 4
    for name in outside(images):
        save(name)
        message = "all.csv, line 9: '.*secret.png' is not in the folder .*correct"
        check(message, sources.csv, tmp_path / "all.csv", **arguments)
    save("a" * 5000)
    check("there is no image in .* for 'aaa", sources.csv, tmp_path / "all.csv", **arguments)


def test_names_in_json_of_leaf(tmp_path, images):
    names = [f"{row}.png" for row in range(8)]
    data = tmp_path / "data"
    leaf(data / "test" / "a.json", u1=(names[:1], [0]))
    for name in outside(images):
        leaf(data / "train" / "a.json", u1=([*names, name], [row % 2 for row in range(9)]))
        check("user u1: x: '.*secret.png' is not in the folder", sources.leaf, data, image_folder=str(images))
    leaf(data / "train" / "a.json", u1=([str(images / "0.png"), *names[1:]], [row % 2 for row in range(8)]))
    np.testing.assert_array_equal(sources.leaf(str(data), image_folder=str(images)).images, draw(8, (8, 8, 3))[0])
    leaf(data / "train" / "a.json", u1=(names, [row % 2 for row in range(8)]))
    check("x are names of images; set data.image_folder to the folder", sources.leaf, data)
    check("none/0.png: cannot be read as an image", sources.leaf, data, image_folder=str(tmp_path / "none"))


def test_names_in_annotations_and_split_files(tmp_path, images):
    root = tmp_path / "tiny"
    save_classes(root / "train", *draw(8, (8, 8, 3)))
    (root / "val").mkdir()
    images.rename(root / "val" / "images")
    for name in ("../../../secret.png", str(tmp_path / "secret.png")):
        (root / "val" / "val_annotations.txt").write_text(f"0.png ant\n{name} bee\n")
        check("val_annotations.txt: '.*secret.png' is not in the folder", sources.folder, root)
        (tmp_path / "split").write_text(f"image,target,center,fold\n{name[:-4]},0,0,train\n0,0,0,test\n")
        check("split: '.*secret.jpg' is not in the folder", sources.isic2019, root, tmp_path / "split")
    (tmp_path / "split").write_text(f"image,target,center,fold\n{'0' * 200_000},0,0,train\n")
    check("split: cannot be read .*expected FLamby's train_test_", sources.isic2019, root, tmp_path / "split")


@cases(
    (lambda group: group.__setitem__("y", h5py.ExternalLink("other.h5", "/y")), "y is a link, expected"),
    (lambda group: group.__setitem__("y", h5py.SoftLink("/examples")), "y is a link, expected"),
    (lambda group: group.create_dataset("y", (2,), "i8", external=[("/etc/hostname", 0, 16)]), "numbers or texts"),
    (lambda group: group.create_virtual_dataset("y", virtual_layout("other.h5")), "y is not a dataset of numbers"),
    (lambda group: group.create_dataset("y", (10**9,), "i8", chunks=(1000,), compression="gzip"), "bytes declares"),
    (lambda group: group.create_dataset("y", (10**9, 0), "i8"), "bytes declares"),
    (lambda group: group.create_dataset("y", (2,), "i8", chunks=(2**28,), maxshape=(None,)), "y has chunks of"),
    (lambda group: group.create_group("y"), "y is a group"),
)
def test_datasets_of_hdf5_that_are_elsewhere_or_too_large(put, message, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["y"] = [0, 1]
    files = [tmp_path / "train.h5", tmp_path / "test.h5"]
    for file in files:
        tff_hdf5(file, u1={"pixels": np.random.default_rng(0).random((2, 4, 4)).tolist()})
        with h5py.File(file, "a") as stored:
            stored["examples/u1/y"] = [0, 1]
    assert len(sources.tff(str(files[0]), test_file=str(files[1]), label="y").images) == 2
    with h5py.File(files[0], "a") as stored:
        del stored["examples/u1/y"]
        put(stored["examples/u1"])
    options = dict(test_file=str(files[1]), label="y")
    check(f"train.h5: examples: user u1: .*{message}", sources.tff, files[0], **options)
    with h5py.File(files[0], "a") as stored:
        stored.move("examples", "others")
        stored["examples"] = h5py.ExternalLink("test.h5", "/examples")
    check(r"train.h5: cannot be read as HDF5 \(examples is a link, expected", sources.tff, files[0], **options)


def virtual_layout(file):
    layout = h5py.VirtualLayout((2,), "i8")
    layout[:] = h5py.VirtualSource(file, "y", (2,))
    return layout


def test_more_tokens_of_pfl_than_there_can_be(tmp_path):
    file = pfl(tmp_path / "so.h5", train={"u": [[1, 2, 3]]}, val={"u": [[1, 2, 3]]})
    with h5py.File(file, "a") as stored:
        stored["metadata/vocabulary_size"][()] = 10**12
    check("so.h5: no metadata of pfl's .*vocabulary_size 1000000000000, expected at most", sources.pfl, file)


# images


def test_files_that_are_no_known_images_by_their_content(tmp_path):
    """Pillow would start Ghostscript for the first, whatever its name."""
    root = save_parts(tmp_path / "data")
    for kind in ("EPS", "ICO", "PCX"):
        Image.new("RGB", (8, 8)).save(root / "train" / "ant" / "9.png", kind)
        check(r"9.png: cannot .*\(no known image format, expected PNG", sources.folder, root)


def test_every_known_format_is_read(tmp_path):
    for kind in encoded.FORMATS:
        Image.new("RGB", (8, 8), "red").save(buffer := io.BytesIO(), kind)
        assert decode_all([Encoded(buffer.getvalue(), kind, 0)], Decoding()).shape == (1, 8, 8, 3)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of an image of that size
def test_more_pixels_and_images_than_fit(tmp_path):
    Image.new("1", (10_000, 10_000)).save(tmp_path / "large.png")
    message = r"large.png: cannot be read as an image .*more than 89,478,485 pixels"
    check(message, decode_all, [Encoded(tmp_path / "large.png", "large.png", 0)], Decoding())

    class Many(list):
        def __len__(self):
            return 10**10

    Image.new("1", (900, 900)).save(buffer := io.BytesIO(), "PNG")
    example = Encoded(buffer.getvalue(), "first", 0)
    check(
        "first: 900 x 900 pixels, for which there is no memory 10{10} times; set",
        decode_all,
        Many([example]),
        Decoding(),
    )


# archives and pickles


def test_npz_files_that_claim_too_much(tmp_path):
    images, labels = draw(8, (8, 8, 3))
    file = tmp_path / "data.npz"
    good = dict(images=images, labels=labels, test_images=images, test_labels=labels)
    save_npz(file, **good | dict(images=header((10**12, 8, 8, 3), "|u1") + bytes(100)))
    check(r"data.npz: .*images.npy has 228 bytes for uint8\[1000000000000, 8, 8, 3\]\); ", sources.npz, file)
    save_npz(file, **good | dict(images=header((10**5, 8, 8, 1), "|u1") + bytes(2**23)))
    check(r"data.npz: .*a file of [\d,]+ bytes declares [\d,]+ bytes; .*without compression", sources.npz, file)
    save_npz(file, **good | dict(images=np.zeros((10**4, 8, 8, 3), np.uint8)))  # of one colour, but not too much
    check("for 8 labels", sources.npz, file)


def test_compressed_files_that_become_too_large(tmp_path):
    save_torchvision("mnist", tmp_path, draw_standard("mnist"))
    (file,) = tmp_path.rglob("t10k-images-idx3-ubyte.gz")
    (tmp_path / "pixels.gz").write_bytes(gzip.compress(bytes(2**23)))
    file.write_bytes((tmp_path / "pixels.gz").read_bytes())
    check("t10k-images.*bytes declares", sources.torchvision, "mnist", folder=str(tmp_path))
    check("pixels.gz: cannot be read .a file of 8,175 b", packages.read_pixels, tmp_path / "pixels.gz", (2, 2), 2)


def test_pfllib_files_that_claim_too_much(tmp_path):
    def save(client, content, part="train"):
        (tmp_path / part).mkdir(exist_ok=True)
        save_npz(tmp_path / part / f"{client}.npz", data=header((), "|O") + content)

    good = pickle.dumps(np.array({"x": np.ones((3, 2, 4, 4), np.float32), "y": np.arange(3)}, object))
    for client in range(3):
        for part in ("train", "test"):
            save(client, good, part)
    assert len(sources.pfllib(str(tmp_path)).images) == 9
    for content, message in (
        (good + bytes(2**23), "bytes declares"),
        (b"\x80\x04" + b"]" * DEEP + b"a" * (DEEP - 1) + b".", "its values are nested too deeply"),
        (b"\x80\x04]" + b"\x94" + b"h\x00a.", "its values are nested too deeply"),  # a list in itself
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"a.", "expected 1099511627776 bytes"),
    ):
        save(1, content)
        check(rf"train/1.npz: cannot be read \(.*{message}", sources.pfllib, tmp_path)
    pairs = np.empty((1000, 2), object)
    pairs[:, 1], pairs[0, 0] = 1, list(range(10**4))
    pairs[:, 0] = [pairs[0, 0]] * 1000  # one list, a thousand times
    save(1, pickle.dumps(np.array({"x": pairs, "y": np.zeros(1000, int)}, object)))
    check("train/1.npz: cannot be read .it has the same values", sources.pfllib, tmp_path)
    save(1, good)
    (tmp_path / "train" / "2.npz").rename(tmp_path / "train" / "999999999.npz")
    check("it has 999999999.npz, but no 3.npz, in train and test; expected clients 0, 1", sources.pfllib, tmp_path)


def test_values_that_a_pickle_names_again_and_again():
    """Thirty lists, each with the one before twice, are a billion values; a thousand marks are fast to find."""
    content = b"\x80\x04]\x94" + b"".join(b"](h%bh%be\x94" % (bytes([i]), bytes([i])) for i in range(30)) + b"."
    with pytest.raises(ValueError, match="it has the same values over and over"):
        read_pickled(io.BytesIO(content))
    assert read_pickled(io.BytesIO(b"(" * DEEP * 5 + b"t" * 10 + b".")) == ((((((((((),),),),),),),),),)
    with pytest.raises(ValueError, match="it has numbers of the type"):
        made = b"cnumpy\ndtype\n(X\x0a\x00\x00\x009999999f8,tR(K\x03X\x01\x00\x00\x00<tb."
        read_pickled(io.BytesIO(b"\x80\x02" + made))


# tables and databases


def test_tables_that_claim_too_much(tmp_path):
    (tmp_path / "deep.jsonl").write_text('{"text": ' + "[" * DEEP + "]" * DEEP + ', "label": 1}\n')
    check("deep.jsonl: cannot be read as JSONL .it is nested too deeply", sources.texts, tmp_path / "deep.jsonl")
    nothing = pyarrow.table({"image": pyarrow.nulls(10**9), "label": pyarrow.nulls(10**9)})
    for part in ("train", "test"):
        save_arrow(tmp_path / "arrow" / part / "0.arrow", nothing)
    check("0.arrow: cannot be read as Arrow .*bytes declares", sources.arrow, tmp_path / "arrow")
    same = pyarrow.table({"image": [bytes(2**20)] * 8, "label": [0] * 8})
    pyarrow.parquet.write_table(same, tmp_path / "train.parquet", compression="zstd", use_dictionary=False)
    check("train.parquet: cannot be read as Parquet .*bytes declares", sources.parquet, tmp_path / "train.parquet")


@pytest.mark.filterwarnings("ignore:.*there is no test part")
def test_texts_with_many_brackets_are_read(tmp_path):
    lines = [{"text": "[" * 100 + '\\"[', "label": row % 2} for row in range(10)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(sources.texts(str(tmp_path / "texts.jsonl"), test_fraction=0.5).labels) == 5


@cases(
    "CREATE VIEW examples AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT 'train' split_name, i client_id, x'00' serialized_example_proto, i rowid FROM n",
    "CREATE TABLE examples (split_name, client_id, serialized_example_proto AS (zeroblob(1000000000)))",
    "CREATE VIRTUAL TABLE examples USING fts5(split_name, client_id, serialized_example_proto)",
)
def test_databases_that_compute_what_is_read(statement, tmp_path):
    file = tff(tmp_path / "data.sqlite", train=[("u", example(label=[0]))])
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE examples RENAME TO others")
        database.execute(statement)
    database.close()
    for task in ("classification", "next_character"):
        check("data.sqlite: .* is a .* that is computed; expected a SQLite file", sources.tff, file, task=task)


# nesting and texts of half characters


divide = functools.partial(partition.from_file, np.zeros(2, int), 2)
vocabulary = functools.partial(text.read_vocabulary, size=1)


def test_json_that_is_nested_too_deeply(tmp_path):
    deep = "[" * DEEP
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "a.json").write_text(deep)
    check("a.json: cannot be read .it is nested too deeply", sources.leaf, tmp_path / "data")
    (tmp_path / "own.json").write_text(deep)
    check("own.json: .*it is nested too deeply", divide, tmp_path / "own.json")
    (tmp_path / "words.json").write_text('{"vocab": ' + deep)
    check("words.json: .*it is nested too deeply", vocabulary, tmp_path / "words.json")


def test_half_a_character(tmp_path):
    """In names of clients and of words, which are printed and stored."""
    half = "a\ud800"
    rows = [[row / 16 for row in range(16)]] * 2
    for part in ("train", "test"):
        leaf(tmp_path / "data" / part / "a.json", **{half: (rows, [0, 1])})
    check(r"a.json: it has client 'a\\ud800', expected a name", sources.leaf, tmp_path / "data")
    (tmp_path / "own.json").write_text(json.dumps({half: [0], "b": [1]}))
    check(r"own.json: it has client 'a\\ud800'", divide, tmp_path / "own.json")
    (tmp_path / "words.json").write_text(json.dumps({half: 3}))
    check(r"words.json: .*'a\\ud800' has half a character", vocabulary, tmp_path / "words.json")
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "b", "label": 1, "user": half}) + "\n")
    check("texts.jsonl: cannot be read as JSONL", sources.texts, tmp_path / "texts.jsonl", client_column="user")
    broken = pyarrow.array([b"\xff"] * 8).view(pyarrow.string())
    images, labels = draw(8, (8, 8, 3))
    file = tmp_path / "train.parquet"
    save_parquet(file, images, labels, names=(), user=broken)
    check("train.parquet: cannot be read as Parquet .*UTF8", sources.parquet, file, client_column="user")


def test_labels_and_keys_of_many_digits(tmp_path):
    (tmp_path / "table.csv").write_text(f"label,a\n1,2\n{'9' * 5000},3\n")
    check("table.csv: row 1: label 9{30}, expected a class from 0", sources.table, tmp_path / "table.csv")
    (tmp_path / "own.json").write_text(json.dumps({"9" * 5000: [0], "0": [1]}))
    check("own.json: keys 9999", divide, tmp_path / "own.json")


def test_folders_with_links_to_nothing_and_names_of_bytes(tmp_path):
    root = save_parts(tmp_path / "data")
    link = root / "train" / "ant" / "loop.png"
    link.symlink_to("loop.png")
    check("loop.png: cannot be read as an image .*[Ll]oop|levels of symbolic links", sources.folder, root)
    link.unlink()
    os.mkdir(os.path.join(os.fsencode(root / "train" / "ant"), b"\xff"))
    check(r"train/ant: the name b'\\xff' in it is not UTF-8; rename", sources.folder, root)
    os.rmdir(os.path.join(os.fsencode(root / "train" / "ant"), b"\xff"))
    deep = root / "train" / "ant" / "/".join(["a"] * 120)
    deep.mkdir(parents=True)
    check("a: more than 100 folders, one in another", sources.folder, root)


def test_damaged_heaps_of_hdf5(tmp_path):
    """An object of no size, at which the library waits for ever, and names that are no texts."""
    files = [tff_hdf5(tmp_path / f"{name}.h5", u1={"snippets": ["to be"] * 3}) for name in ("train", "test")]
    options = dict(test_file=str(files[1]), task="next_character")
    content = bytearray(files[0].read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 18], content[heap + 24 : heap + 32] = bytes(2), bytes(8)
    files[0].write_bytes(content)
    faulthandler.dump_traceback_later(60, exit=True)  # it could not be interrupted
    check(r"train.h5: cannot be read as HDF5 \(a heap of texts", sources.tff, files[0], **options)
    faulthandler.cancel_dump_traceback_later()
    with h5py.File(files[0], "w") as stored:
        stored[b"examples/\xff/snippets"] = [b"to be"]
    check("train.h5: examples: it has client .*xff.*expected a name", sources.tff, files[0], **options)
    with h5py.File(files[0], "w") as stored:
        stored["examples/u1/snippets"] = [b"to be" * 100]
    files[0].write_bytes(files[0].read_bytes().replace(b"HEAP", b"PAEH"))
    check("train.h5: ", sources.tff, files[0], **options)
