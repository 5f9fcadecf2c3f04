"""TensorFlow Datasets without TensorFlow: test builders with the catalogue's names write given data."""

import functools
import shutil
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import cases, check
from PIL import Image
from small_data import assert_fields, assert_parts, assert_same, catalogue_builder, draw, encode
from tensorflow_datasets.core.download import downloader

from fedjax_collapse import UserError, sources
from fedjax_collapse.data.sources import normalisations

pytestmark = pytest.mark.usefixtures("own_cache")


@cases("array_record", "parquet")
def test_tfds_gives_back_what_was_stored(file_format, tmp_path):
    train, test = draw(20, (32, 32, 3)), draw(8, (32, 32, 3), seed=1)
    catalogue = tfds.builder("cifar100", data_dir=tmp_path / "none")
    builder, class_names = catalogue_builder("Cifar100", catalogue, dict(train=train, test=test))
    builder(data_dir=tmp_path, file_format=file_format).download_and_prepare()
    modules, read = set(sys.modules), functools.partial(sources.tfds, "cifar100", data_dir=str(tmp_path))
    both, source = read(coarse="coarse_label"), read(label="coarse_label")
    assert_parts(both, train, test)
    mean, std = normalisations.NORMALISATIONS["cifar100"]
    assert_fields(both, class_names=class_names, domains=None, mean=mean, std=std)
    for labels in (both.coarse_labels, source.labels):
        assert_same(source.images, labels, train[0], np.arange(20) % 2)
    assert len(source.class_names) == 20
    if file_format == "array_record":
        assert len(read(train_split="train[:50%]").images) == 10
    else:  # of Parquet files, TFDS gives all examples whatever the slice
        message = rf"{tmp_path}/cifar100/.*'train\[:50%\]' should have 10 examples, but 20 were read"
        check(message, read, train_split="train[:50%]")
    check(r"cifar100.*: no feature 'coarser', it has ", read, coarse="coarser")
    assert "tensorflow" not in set(sys.modules) - modules


def test_domainnet_by_domain_class_and_size(tmp_path):
    """Two configs are two domains; a subset of the classes is relabelled, images of any size become one."""
    parts = {
        domain: {"train": draw(12, (20 + seed, 30, 3), seed), "test": draw(8, (25, 20, 3), seed + 5)}
        for seed, domain in enumerate(("real", "sketch"))
    }
    builder, names = catalogue_builder("Domainnet", tfds.builder("domainnet", data_dir=tmp_path / "none"), parts)
    for config in ("real", "sketch"):
        builder(config=config, data_dir=tmp_path, file_format="array_record").download_and_prepare()
    assert len(names) == 345
    read = functools.partial(sources.tfds, "domainnet/real,sketch", data_dir=str(tmp_path))
    source = read(classes=(names[3], names[1]), image_size=16)
    assert_fields(source, class_names=(names[3], names[1]), domain_names=("real", "sketch"))
    assert_fields(source, domains=[0] * 6 + [1] * 6, test_domains=[0] * 4 + [1] * 4)
    assert source.images.shape == (12, 16, 16, 3) and np.bincount(source.labels).tolist() == [6, 6]
    expected = [
        np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.BILINEAR))
        for image, label in zip(*parts["sketch"]["train"], strict=True)
        if label == 1
    ]
    second = source.images[(source.domains == 1) & (source.labels == 1)]
    assert sorted(image.tobytes() for image in second) == sorted(image.tobytes() for image in expected)
    check(r"pixels, but .* has .* set data.image_size to resize all", read)


@pytest.fixture
def prepared(tmp_path):
    """A function that prepares cifar10 of the given images."""

    def prepare(train, test, file_format="array_record"):
        catalogue = tfds.builder("cifar10", data_dir=tmp_path / "none")
        builder, _ = catalogue_builder("Cifar10", catalogue, {"train": train, "test": test})
        builder(data_dir=tmp_path, file_format=file_format).download_and_prepare()
        return tmp_path / "cifar10" / "3.0.2"

    return prepare


def test_unknown_data_sets(tmp_path):
    for name, message in (
        ("fashion_mnst", "no data set 'fashion_mnst': did you mean 'fashion_mnist'"),
        ("domainnet/reel", "cannot build 'domainnet/reel' .*BuilderConfig reel not found.*correct the name"),
        ("cifar10:9.9.9", "cannot build 'cifar10:9.9.9' .*only: 3.0.2"),
        ("", "cannot build ''"),
    ):
        check(message, sources.tfds, name, data_dir=str(tmp_path))


def test_absent_data(tmp_path, monkeypatch):
    without_tensorflow = "fedjax_collapse.data.reading.images.tfds_listing.find_spec"
    monkeypatch.setattr(without_tensorflow, lambda name: None)
    message = f"cifar10 is not in {tmp_path}/cifar10/3.0.2; prepare it once, .*: pip install tensorflow-cpu && python"
    check(message, sources.tfds, "cifar10", data_dir=str(tmp_path), download=True)
    with pytest.raises(UserError) as error:
        sources.tfds("cifar10", data_dir=str(tmp_path))
    prepared = []
    monkeypatch.setattr(
        tfds.core.DatasetBuilder, "download_and_prepare", lambda self, **how: prepared.append((self, how))
    )
    exec(str(error.value).split('"')[1])
    ((builder, how),) = prepared
    assert builder.data_path == tmp_path / "cifar10" / "3.0.2" and how == {"file_format": "array_record"}


def test_splits_labels_and_formats_that_there_are_not(tmp_path, prepared):
    prepared(draw(8, (32, 32, 3)), draw(4, (32, 32, 3)))
    check("has no split 'valid', it has train, test", sources.tfds, "cifar10", str(tmp_path), test_split="valid")
    check("no classes in 'fine', it has id, image, label", sources.tfds, "cifar10", str(tmp_path), label="fine")
    info = next(tmp_path.rglob("dataset_info.json"))
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    message = "3.0.2 is stored as tfrecord, which needs TensorFlow.*remove that folder"
    check(message, sources.tfds, "cifar10", str(tmp_path))
    for content in ("", info.read_text()[:50]):
        info.write_text(content)
        check("cannot build 'cifar10' .*remove its folder and prepare it again", sources.tfds, "cifar10", str(tmp_path))


@cases("array_record", "parquet")
def test_damaged_images_and_labels(file_format, tmp_path, prepared):
    images, labels = draw(8, (32, 32, 3))
    folder = prepared(([encode(image)[:-60] for image in images], labels), (images, labels), file_format)
    check(rf"{folder}, train \d: cannot be read as an image .*replace", sources.tfds, "cifar10", str(tmp_path))
    shutil.rmtree(folder)
    prepared((images, labels), (images, labels - 1), file_format)
    check(rf"{folder}, test \d: label -1 is not among the 10 classes", sources.tfds, "cifar10", str(tmp_path))


@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: whole[:4] + whole[99:]])
def test_damaged_files(tmp_path, prepared, file_format, damage):
    folder = prepared(draw(8, (32, 32, 3)), draw(8, (32, 32, 3)), file_format)
    file = next(folder.glob("*train*"))
    file.write_bytes(damage(file.read_bytes()))
    message = f"{folder}: split 'train' cannot be read .*remove that folder and prepare it again: pip install"
    check(message, sources.tfds, "cifar10", str(tmp_path))


def test_a_download_without_a_network_ends_soon(tmp_path, monkeypatch):
    """TFDS tries again ten times, which takes minutes; here its last exception is raised at once."""
    retries = []

    def download_and_prepare(self, **options):
        retries.append(downloader.MAX_RETRIES)
        raise ConnectionError("Max retries exceeded\nwith url " + 1000 * "kriz ")

    usual = downloader.MAX_RETRIES
    monkeypatch.setattr("fedjax_collapse.data.reading.images.tfds_listing.find_spec", lambda name: True)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download_and_prepare)
    message = r"preparing cifar10 failed \(Max retries exceeded with url kriz .*run again where there is a network"
    check(message, sources.tfds, "cifar10", data_dir=str(tmp_path), download=True)
    assert retries == [3] and downloader.MAX_RETRIES == usual == 10
