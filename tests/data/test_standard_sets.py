"""The data sets that most papers use: the right images and labels from the files of all who prepare them."""

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import small_studies
from conftest import cases, check
from small_data import assert_parts
from small_studies import write_config
from standard_data import CLASSES, SHAPES, draw, python2_pickle, save_hugging_face, save_tfds, save_torchvision

from fedjax_collapse import UserError, sources
from fedjax_collapse.data.reading.images import torchvision_files
from fedjax_collapse.data.sources import normalisations

SAVE = {"tfds": save_tfds, "torchvision": save_torchvision, "parquet": save_hugging_face}


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch, own_cache):
    """A home and a current folder without data."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def assert_read(source, name, parts, names):
    normalisation = normalisations.DEFAULTS.get(name, "unit")
    assert_parts(source, *parts)
    assert len(source.class_names) == CLASSES[name] and names in (None, source.class_names)
    assert (source.mean, source.std) == normalisations.NORMALISATIONS[normalisation]
    if name == "cifar100":  # each fine class is of one coarse class
        assert len({*zip(source.labels.tolist(), source.coarse_labels.tolist(), strict=True)}) >= 100
        assert len(source.test_coarse_labels) == len(parts[1][1])


@pytest.mark.parametrize("way", SAVE)
@pytest.mark.parametrize("name", SHAPES)
def test_every_data_set_in_the_files_of_every_way(name, way):
    parts = draw(name)
    names = SAVE[way](name, Path("data"), parts)
    assert_read(getattr(sources, name)(), name, parts, names)
    assert_read(getattr(sources, name)("data"), name, parts, names)
    if way == "torchvision":
        assert_read(sources.torchvision(name), name, parts, names)
        own = torchvision_files.folder_of(name, Path("data"))
        assert_read(sources.torchvision(name, own), name, parts, names)
    else:
        check("it is not in ., data, .*/home/data", sources.torchvision, name)


def test_files_may_be_pickled_again(tmp_path):
    """CIFAR's, as Python 3 writes them for Python 2."""
    parts = draw("cifar10")
    save_torchvision("cifar10", tmp_path, parts)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    images, labels = parts[1]
    content = {b"data": images.transpose(0, 3, 1, 2).reshape(len(images), -1), b"labels": labels.tolist()}
    file.write_bytes(pickle.dumps(content, protocol=2))
    assert_read(sources.cifar10(tmp_path), "cifar10", parts, None)


def test_places_come_in_order_and_a_line_says_which_is_read(tmp_path, monkeypatch):
    """The current folder, data, ~/data and TFDS's own; in each TFDS, torchvision and Hugging Face."""
    stored = {}
    for seed, (way, place) in enumerate(
        (way, root)
        for root in (".", "data", "../home/data", "../home/tensorflow_datasets")
        for way in (("tfds",) if "tensorflow" in root else SAVE)
    ):
        stored[place, way] = draw("fashion_mnist", seed)
        SAVE[way]("fashion_mnist", Path(place), stored[place, way])
    (tmp_path / "home" / "data").rename(tmp_path / "home" / "moved")
    (tmp_path / "home" / "data").symlink_to(tmp_path / "home" / "moved")
    removed = []
    for (place, way), parts in stored.items():
        is_last = len(removed) + 1 == len(stored)
        line = pytest.warns(UserWarning, match=rf"^fashion_mnist is read from .* \({way}\), not from .* \(")
        with contextlib.nullcontext() if is_last else line:
            assert_read(sources.fashion_mnist(), "fashion_mnist", parts, None)
        folder = Path(place) / ("FashionMNIST" if way == "torchvision" else "fashion_mnist")
        inside = folder / "3.0.1" if way == "tfds" else folder / "train-00000-of-00001.parquet"
        removed.append((inside if way != "torchvision" else folder).rename(tmp_path / f"removed{len(removed)}"))
        for file in folder.glob("*.parquet") if way == "parquet" else ():
            file.unlink()
    check("fashion_mnist: it is not in ., data, .*home/data, .*home/tensorflow_datasets; get it", sources.fashion_mnist)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "elsewhere"))
    save_tfds("fashion_mnist", tmp_path / "elsewhere", parts)
    assert_read(sources.fashion_mnist(), "fashion_mnist", parts, None)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_missing_is_got_in_three_ways(name):
    with pytest.raises(UserError) as error:
        getattr(sources, name)()
    message = str(error.value)
    for part in ("torchvision.datasets.", "hf download ", "tfds.builder(", "data.folder"):
        assert part in message
    assert "\n" not in message
    check("nowhere; get it", getattr(sources, name), "nowhere")


@pytest.mark.parametrize("way", SAVE)
def test_the_folder_may_be_the_one_with_the_files(tmp_path, way):
    parts = draw("cifar10")
    SAVE[way]("cifar10", tmp_path / "kept", parts)
    inside = {"tfds": ("cifar10", "cifar10/3.0.2"), "torchvision": ("cifar-10-batches-py",)}
    for folder in (".", *inside.get(way, ("cifar10", "cifar10/plain_text"))):
        assert_read(sources.cifar10(tmp_path / "kept" / folder), "cifar10", parts, None)
    if way == "parquet":
        (tmp_path / "kept" / "cifar10").rename(tmp_path / "renamed")
        assert_read(sources.cifar10(tmp_path / "renamed"), "cifar10", parts, None)


def test_no_data_set_is_taken_for_another(tmp_path):
    """MNIST and Fashion-MNIST have files of the same names; a folder may have the tables of several."""
    save_torchvision("fashion_mnist", tmp_path, draw("fashion_mnist"))
    save_hugging_face("cifar100", tmp_path, draw("cifar100"))
    for folder in (".", "FashionMNIST", "FashionMNIST/raw", "cifar100"):
        check("mnist: it is not in ", sources.mnist, tmp_path / folder)
        check("cifar10: it is not in ", sources.cifar10, tmp_path / folder) if folder != "cifar100" else None
    assert len(sources.fashion_mnist(tmp_path / "FashionMNIST" / "raw").class_names) == 10


def damaged(change):
    return lambda file: file.write_bytes(change(file.read_bytes()))


def as_pipe(file):
    file.unlink()
    os.mkfifo(file)


def cifar10_batch(**content):
    """CIFAR-10's file of a batch is another one."""
    return damaged(lambda old: python2_pickle(content))


CIFAR10, FASHION = "cifar-10-batches-py", "FashionMNIST/raw/train-images-idx3-ubyte"
IMAGES = np.zeros((2, 3072), np.uint8)


@cases(
    ("cifar10", f"{CIFAR10}/data_batch_3", Path.unlink, r"data_batch_3: cannot be read \(No such file"),
    ("cifar10", f"{CIFAR10}/data_batch_3", damaged(lambda old: old[:-99]), "data_batch_3: cannot be read"),
    ("cifar10", f"{CIFAR10}/test_batch", damaged(lambda old: pickle.dumps(print)), "it holds builtins.print, and"),
    ("cifar10", f"{CIFAR10}/test_batch", cifar10_batch(data=IMAGES, labels=[1]), r"uint8\[2, 32, 32, 3\], labels"),
    ("cifar10", f"{CIFAR10}/test_batch", cifar10_batch(labels=[1]), "data of shape"),
    ("cifar10", f"{CIFAR10}/test_batch", cifar10_batch(data=IMAGES[:1], labels=[10]), "label 10 is not among"),
    ("fashion_mnist", FASHION, damaged(lambda old: old[:-1]), "train-images.*cannot reshape"),
    ("fashion_mnist", FASHION, damaged(lambda old: b"<html>"), "it begins with 3c68746d, exp"),
    ("stl10", "stl10_binary/train_X.bin", damaged(lambda old: old[:-1]), "train_X.bin: cannot be read"),
    ("stl10", "stl10_binary/test_y.bin", damaged(lambda old: b"\0" + old[1:]), "test_X.bin, image 0: label -1"),
    ("svhn", "test_32x32.mat", damaged(lambda old: old[:200]), "test_32x32.mat: "),
    ("cifar10", f"{CIFAR10}/data_batch_2", as_pipe, "data_batch_2: it is neither a file nor a folder"),
    ("mnist", "MNIST/raw/t10k-images-idx3-ubyte.gz", as_pipe, "ubyte.gz: it is neither a file nor a folder"),
    ("svhn", "test_32x32.mat", as_pipe, "test_32x32.mat: it is neither a file nor a folder"),
    ("svhn", "train_32x32.mat", damaged(lambda old: b"<html>" * 99), "train_32x32.mat: cannot be read"),
)
def test_a_damaged_file_is_named(name, file, damage, message, tmp_path):
    save_torchvision(name, tmp_path, draw(name))
    damage(tmp_path / file)
    ends = "remove it" if damage is as_pipe else "" if "among" in message or "-1" in message else "fetch it again"
    check(f"{message}.*{ends}", getattr(sources, name), tmp_path)


def test_one_word_in_the_config_and_the_whole_way_to_the_report():
    parts = draw("cifar10")
    save_hugging_face("cifar10", Path("data"), parts)
    few = write_config(Path(), "config.partition.min_size = 1")
    assert small_studies.start(few, "--workdir=run", "--config.data.source=cifar10") == 0
    assert "cifar10" in Path("run/report.html").read_text()
    sizes = np.load(next(Path("run").glob("*/seed0/partition.npz")))["class_counts"]
    assert sizes.sum(0).tolist() == np.bincount(parts[0][1]).tolist()
