"""Sources on small data made here: real readers, the same pixels back, one line for what is wrong, a whole cache."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import registered

from fedjax_collapse import UserError, partition, sources
from fedjax_collapse.data.reading.cache import cache_folder, cached

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def draw(count, shape, seed=0):
    """Images and labels of four classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), np.uint8), rng.permutation(np.arange(count) % len(NAMES))


def save_image(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.squeeze()).save(file)


def save_classes(root, images, labels):
    """A folder per class."""
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        save_image(root / NAMES[label] / f"{row:03d}.png", image)


def assert_same_examples(images, labels, expected_images, expected_labels):
    """The same pairs in any order."""
    pairs, expected = (
        sorted((image.tobytes(), int(label)) for image, label in zip(*both, strict=True))
        for both in ((images, labels), (expected_images, expected_labels))
    )
    assert images.shape == expected_images.shape and images.dtype == np.uint8 and pairs == expected


# TensorFlow Datasets: builders of the catalogue's names that write what they are told to, without TensorFlow


def catalogue_builder(class_name, catalogue, parts):
    """A builder like the catalogue's, by name, version and features, of its own few images; and its class names."""
    configs = [config.name for config in catalogue.BUILDER_CONFIGS]
    features = dict(catalogue.info.features)
    names = features["label"].names
    if names[0] == "0":  # the catalogue takes them from the download
        names = [f"class {label}" for label in range(len(names))]
        features["label"] = tfds.features.ClassLabel(names=names)

    def info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def generate(self, images, labels):
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            example = {"id": str(row), "image": Image.fromarray(image.squeeze()), "label": int(label)}
            yield (
                row,
                {name: value for name, value in (example | {"coarse_label": row % 2}).items() if name in features},
            )

    def split(self, manager):
        own = parts[self.builder_config.name] if configs else parts
        return {name: self._generate_examples(*data) for name, data in own.items()}

    methods = {"_info": info, "_split_generators": split, "_generate_examples": generate}
    methods |= {"VERSION": catalogue.VERSION, "BUILDER_CONFIGS": catalogue.BUILDER_CONFIGS}
    with registered.skip_registration():
        return type(class_name, (tfds.core.GeneratorBasedBuilder,), methods), tuple(names)


@pytest.mark.parametrize(
    ("name", "class_name", "shape", "file_format", "normalisation"),
    [
        ("cifar10", "Cifar10", (32, 32, 3), "array_record", "cifar10"),
        ("cifar100", "Cifar100", (32, 32, 3), "parquet", "cifar100"),
        ("svhn_cropped", "SvhnCropped", (32, 32, 3), "array_record", "svhn"),
        ("fashion_mnist", "FashionMNIST", (28, 28, 1), "parquet", "unit"),
        ("stl10", "Stl10", (96, 96, 3), "array_record", "half"),
    ],
)
def test_tfds_gives_back_what_was_stored(tmp_path, name, class_name, shape, file_format, normalisation):
    parts = {"train": draw(20, shape), "test": draw(8, shape, seed=1)}
    builder, class_names = catalogue_builder(class_name, tfds.builder(name, data_dir=tmp_path / "none"), parts)
    builder(data_dir=tmp_path, file_format=file_format).download_and_prepare()
    source = sources.tfds(name, data_dir=str(tmp_path))
    assert_same_examples(source.images, source.labels, *parts["train"])
    assert_same_examples(source.test_images, source.test_labels, *parts["test"])
    assert source.class_names == class_names and source.domains is None
    assert (source.mean, source.std) == sources.NORMALISATIONS[normalisation]
    if file_format == "array_record":
        assert len(sources.tfds(name, data_dir=str(tmp_path), train_split="train[:50%]").images) == 10
    else:  # of Parquet files, TFDS gives all examples whatever the slice
        with pytest.raises(UserError, match=r"'train\[:50%\]' should have 10 examples, but 20 were read") as error:
            sources.tfds(name, data_dir=str(tmp_path), train_split="train[:50%]")
        assert f"--data_dir={tmp_path} " in str(error.value)
    if name == "cifar100":
        source = sources.tfds(name, data_dir=str(tmp_path), label="coarse_label")
        assert_same_examples(source.images, source.labels, parts["train"][0], np.arange(20) % 2)
        assert len(source.class_names) == 20
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
def test_domainnet_by_domain_class_and_size(tmp_path, file_format):
    """Two configs are two domains; a subset of the classes is relabelled, images of any size become one."""
    parts = {
        domain: {"train": draw(12, (20 + seed, 30, 3), seed), "test": draw(8, (25, 20, 3), seed + 5)}
        for seed, domain in enumerate(("real", "sketch"))
    }
    builder, names = catalogue_builder("Domainnet", tfds.builder("domainnet", data_dir=tmp_path / "none"), parts)
    for config in ("real", "sketch"):
        builder(config=config, data_dir=tmp_path, file_format=file_format).download_and_prepare()
    data_dir = str(tmp_path)
    assert len(names) == 345
    source = sources.tfds("domainnet/real,sketch", data_dir=data_dir, classes=(names[3], names[1]), image_size=16)
    assert source.class_names == (names[3], names[1]) and source.domain_names == ("real", "sketch")
    assert source.images.shape == (12, 16, 16, 3) and np.bincount(source.labels).tolist() == [6, 6]
    assert source.domains.tolist() == [0] * 6 + [1] * 6 and source.test_domains.tolist() == [0] * 4 + [1] * 4
    expected = [
        np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.BILINEAR))
        for image, label in zip(*parts["sketch"]["train"], strict=True)
        if label == 1
    ]
    second = source.images[(source.domains == 1) & (source.labels == 1)]
    assert sorted(image.tobytes() for image in second) == sorted(image.tobytes() for image in expected)
    with pytest.raises(UserError, match=r"pixels, but .* has .* set data.image_size to resize all"):
        sources.tfds("domainnet/real,sketch", data_dir=data_dir)


def test_absent_or_unknown_tfds_data_are_explained(tmp_path, monkeypatch):
    data_dir = str(tmp_path)
    monkeypatch.setattr("fedjax_collapse.data.reading.tfds_listing.find_spec", lambda name: None)  # no TensorFlow here
    with pytest.raises(
        UserError, match=r"cifar10 is not in .*prepare it once.*tfds build cifar10 --file_format=array_"
    ):
        sources.tfds("cifar10", data_dir=data_dir, download=True)
    with pytest.raises(UserError, match="no data set 'fashion_mnst': did you mean 'fashion_mnist'"):
        sources.tfds("fashion_mnst", data_dir=data_dir)
    for name, message in (("domainnet/reel", "BuilderConfig reel not found"), ("cifar10:9.9.9", "only: 3.0.2")):
        with pytest.raises(UserError, match=f"cannot build '{name}': .*{message}") as error:
            sources.tfds(name, data_dir=data_dir)
        assert "\n" not in str(error.value)
    parts = {"train": draw(8, (32, 32, 3)), "test": draw(4, (32, 32, 3))}
    builder, _ = catalogue_builder("Cifar10", tfds.builder("cifar10", data_dir=tmp_path / "none"), parts)
    builder(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    with pytest.raises(UserError, match="has no split 'valid', it has"):
        sources.tfds("cifar10", data_dir=data_dir, test_split="valid")
    with pytest.raises(UserError, match="no classes in 'fine', it has"):
        sources.tfds("cifar10", data_dir=data_dir, label="fine")
    info = next(tmp_path.rglob("dataset_info.json"))
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"stored as tfrecord, which needs TensorFlow.*--overwrite"):
        sources.tfds("cifar10", data_dir=data_dir)


# folders


def test_folder_with_train_and_test(tmp_path):
    train, test = draw(16, (9, 7, 3)), draw(8, (9, 7, 3), seed=1)
    save_classes(tmp_path / "data" / "train", *train)
    save_classes(tmp_path / "data" / "val", *test)
    source = sources.folder(str(tmp_path / "data"), normalisation="imagenet")
    assert_same_examples(source.images, source.labels, *train)
    assert_same_examples(source.test_images, source.test_labels, *test)
    assert source.class_names == NAMES and source.domains is None
    np.testing.assert_allclose(source.mean, np.array([0.485, 0.456, 0.406]) * 255)
    grey = sources.folder(str(tmp_path / "data"), channels=1)
    np.testing.assert_array_equal(grey.images[0, ..., 0], np.asarray(Image.fromarray(source.images[0]).convert("L")))


def test_tiny_imagenet_as_it_is_unpacked(tmp_path):
    """Training images one folder deeper, validation classes in a file, and unlabelled test images."""
    train, test = draw(12, (8, 8, 3)), draw(8, (8, 8, 3), seed=1)
    for row, (image, label) in enumerate(zip(*train, strict=True)):
        save_image(tmp_path / "data" / "train" / NAMES[label] / "images" / f"{row}.png", image)
    lines = []
    for row, (image, label) in enumerate(zip(*test, strict=True)):
        save_image(tmp_path / "data" / "val" / "images" / f"val_{row}.png", image)
        lines.append(f"val_{row}.png\t{NAMES[label]}\t0\t0\t7\t7\n")
    (tmp_path / "data" / "val" / "val_annotations.txt").write_text("".join(lines))
    save_image(tmp_path / "data" / "test" / "images" / "test_0.png", train[0][0])
    source = sources.folder(str(tmp_path / "data"))
    assert_same_examples(source.images, source.labels, *train)
    assert_same_examples(source.test_images, source.test_labels, *test)


def test_domains_of_classes_without_a_split(tmp_path):
    """PACS' layout: a fixed number of every class and domain is held out, by the seed."""
    for domain, seed in (("art", 0), ("photo", 1)):
        save_classes(tmp_path / "data" / domain, *draw(20, (8, 8, 3), seed))
    source = sources.folder(str(tmp_path / "data"), test_per_class=2)
    assert source.domain_names == ("art", "photo")
    assert source.domains.tolist() == [0] * 12 + [1] * 12 and source.test_domains.tolist() == [0] * 8 + [1] * 8
    assert np.all(np.bincount(source.test_labels[source.test_domains == 1]) == 2)
    images = [draw(20, (8, 8, 3), seed)[0] for seed in (0, 1)]
    every = np.concatenate([source.images, source.test_images])
    assert sorted(image.tobytes() for image in every) == sorted(image.tobytes() for image in np.concatenate(images))
    other = sources.folder(str(tmp_path / "data"), test_per_class=2, seed=1)
    assert not np.array_equal(other.images, source.images)
    fraction = sources.folder(str(tmp_path / "data"), test_fraction=0.4)
    assert len(fraction.test_images) == 16


def test_wrong_folders_are_explained(tmp_path):
    root = tmp_path / "data"

    def expect(message, **options):
        with pytest.raises(UserError, match=message) as error:
            sources.folder(str(root), **options)
        assert "\n" not in str(error.value)

    expect("there is no such folder")
    (root / "train" / "ant").mkdir(parents=True)
    expect("no image in a class folder; expected <class>/<image>")
    save_classes(root / "train", *draw(8, (8, 8, 3)))
    expect("train has no test, val, validation beside it")
    save_classes(root / "test", *draw(8, (8, 8, 3)))
    expect("no class 'eel' among ant, bee, cat, dog", classes=("ant", "eel"))
    expect("2 channels, expected 1, 3", channels=2)
    expect("image_size -8, expected a number of pixels", image_size=-8)
    expect("test_fraction 1 and test_per_class 0", test_fraction=1.0)
    expect("test_per_class -1; expected", test_per_class=-1)
    expect("normalisation 'cifar': expected one of unit", normalisation="cifar")
    expect("normalisation 'cifar10' is for 3 channels, the images have 1", channels=1, normalisation="cifar10")
    save_image(root / "test" / "eel" / "0.png", draw(1, (8, 8, 3))[0][0])
    expect(r"eel/0.png: class 'eel' is not among the 4 classes")
    (root / "test" / "eel" / "0.png").unlink()
    save_image(root / "test" / "bee" / "9.png", draw(1, (8, 12, 3))[0][0])
    expect(r"bee/9.png: 12 x 8 pixels, but .*ant/.* has 8 x 8; set data.image_size")
    assert sources.folder(str(root), image_size=8).images.shape == (8, 8, 8, 3)
    truncated = root / "test" / "bee" / "9.png"
    truncated.write_bytes(truncated.read_bytes()[:-60])
    expect(r"bee/9.png: cannot be read as an image \(", image_size=8)
    for file in (root / "test").rglob("*.png"):
        file.unlink()
    save_image(root / "test" / "bee" / "0.png", draw(1, (8, 8, 3))[0][0])
    expect("the test part has no image of the 2 classes", classes=("ant", "dog"))


def test_isic2019_in_the_order_of_its_split_file(tmp_path):
    """Centres are domains; the middle square of every image is what is kept; the partition agrees."""
    images, _ = draw(24, (12, 20, 3))
    targets, centers, folds = np.arange(24) % 8, np.arange(24) % 6, np.where(np.arange(24) % 4, "train", "test")
    lines = ["image,target,center,fold"]
    for row in np.random.default_rng(0).permutation(24):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(images[row]).save(tmp_path / "images" / f"ISIC_{row}.jpg", quality=100, subsampling=0)
        lines.append(f"ISIC_{row},{targets[row]},{centers[row]},{folds[row]}")
    split = tmp_path / "train_test_split"
    split.write_text("\n".join(lines))
    source = sources.isic2019(str(tmp_path / "images"), str(split), image_size=12)
    order = [int(line.split(",")[0][5:]) for line in lines[1:] if line.endswith("train")]
    np.testing.assert_array_equal(source.labels, targets[order])
    np.testing.assert_array_equal(source.domains, centers[order])
    assert np.abs(source.images.astype(int) - images[order][:, :, 4:16]).mean() < 3  # of JPEG
    assert len(source.test_images) == 6 and len(source.domain_names) == 6 and source.class_names[0] == "MEL"
    parts = partition.isic2019(source.labels, 6, str(split))
    assert [np.unique(source.domains[part]).tolist() for part in parts] == [[0], [1], [2], [3], [4], [5]]
    (tmp_path / "images" / "ISIC_5.jpg").unlink()
    with pytest.raises(UserError, match=r"ISIC_5.jpg: cannot be read as an image"):
        sources.isic2019(str(tmp_path / "images"), str(split))


# tables


def save_parquet(file, images, labels, names=NAMES):
    """Hugging Face's layout, with its metadata if there are names."""
    import io

    def encode(image):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    table = pyarrow.table({"image": list(map(encode, images)), "label": labels.tolist()})
    if names:
        features = {"label": {"names": list(names), "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file)


def test_parquet_in_several_files(tmp_path):
    train, test = draw(16, (8, 8, 3)), draw(8, (8, 8, 3), seed=1)
    for file, rows in enumerate((slice(0, 10), slice(10, 16))):
        save_parquet(tmp_path / "data" / f"train-0000{file}-of-00002.parquet", train[0][rows], train[1][rows])
    save_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", *test)
    source = sources.parquet(str(tmp_path / "data"))
    np.testing.assert_array_equal(source.images, train[0])
    np.testing.assert_array_equal(source.labels, train[1])
    np.testing.assert_array_equal(source.test_images, test[0])
    assert source.class_names == NAMES


def test_wrong_parquet_files_are_explained(tmp_path):
    root = tmp_path / "data"
    images, labels = draw(8, (8, 8, 3))
    with pytest.raises(UserError, match=r"no train\*.parquet in it"):
        sources.parquet(str(root))
    save_parquet(root / "train.parquet", images, labels, names=())
    with pytest.raises(UserError, match=r"no test\*.parquet in it"):
        sources.parquet(str(root))
    save_parquet(root / "validation.parquet", images, labels, names=())
    assert sources.parquet(str(root)).class_names == ("0", "1", "2", "3")
    with pytest.raises(UserError, match="no column 'fine' among image, label"):
        sources.parquet(str(root), label_column="fine")
    save_parquet(root / "train.parquet", images, labels, names=NAMES[:3])
    with pytest.raises(UserError, match=r"train.parquet, row \d: label 3 is not among the 3 classes"):
        sources.parquet(str(root))
    save_parquet(root / "train.parquet", images, labels - 1)  # as where a data set hides its labels
    with pytest.raises(UserError, match=r"train.parquet, row \d: label -1 is not among the 4 classes"):
        sources.parquet(str(root))
    (root / "train.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match=r"train.parquet: cannot be read as Parquet"):
        sources.parquet(str(root))


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz_of_three_conventions(tmp_path, names):
    images, labels = draw(12, (8, 8))
    path = tmp_path / "data.npz"
    np.savez(path, **dict(zip(names, (images, labels[:, None], images[:4], labels[:4]), strict=True)))
    source = sources.npz(str(path), normalisation="half")
    np.testing.assert_array_equal(source.images, images[..., None])
    np.testing.assert_array_equal(source.labels, labels)
    assert source.class_names == ("0", "1", "2", "3") and source.test_images.shape == (4, 8, 8, 1)


def test_wrong_npz_files_are_explained(tmp_path):
    images, labels = draw(12, (8, 8, 3))
    path = tmp_path / "data.npz"
    with pytest.raises(UserError, match=r"cannot be read as npz \(FileNotFoundError\)"):
        sources.npz(str(path))
    path.write_bytes(b"PK and then nothing")
    with pytest.raises(UserError, match="cannot be read as npz"):
        sources.npz(str(path))
    np.savez(path, images=images, labels=labels)
    with pytest.raises(UserError, match="holds images, labels; expected images, labels, test_images, test_labels"):
        sources.npz(str(path))
    whole = dict(images=images, labels=labels, test_images=images, test_labels=labels)
    for wrong in (
        *(dict(images=wrong) for wrong in (images / 255, images[:5], images[..., 0, 0])),
        dict(test_labels=labels / 2),
        dict(labels=labels.astype(str)),
    ):
        np.savez(path, **whole | wrong)
        with pytest.raises(UserError, match="expected uint8"):
            sources.npz(str(path))
    np.savez(path, **whole | dict(test_images=images[:, :6]))
    with pytest.raises(UserError, match=r"training images are \(8, 8, 3\), test images \(6, 8, 3\)"):
        sources.npz(str(path))
    np.savez(path, **whole, domains=labels, domain_names=NAMES)
    with pytest.raises(UserError, match="holds domains, domain_names; expected all of domains, test_domains"):
        sources.npz(str(path))


# the cache


def test_the_cache_is_read_again_until_the_data_change(tmp_path, monkeypatch):
    images, labels = draw(8, (8, 8, 3))
    for part in ("train", "test"):
        save_classes(tmp_path / "data" / part, images, labels)
    first = sources.folder(str(tmp_path / "data"))
    with monkeypatch.context() as patch:
        patch.setattr("fedjax_collapse.data.reading.encoded._decode", None)
        again = sources.folder(str(tmp_path / "data"))
    np.testing.assert_array_equal(first.images, again.images)
    assert again.class_names == NAMES and again.images.dtype == np.uint8
    changed = next((tmp_path / "data" / "train").rglob("*.png"))
    save_image(changed, 255 - images[0])
    assert not np.array_equal(sources.folder(str(tmp_path / "data")).images, first.images)


def swap_array(entry):
    """A whole file, but not of the arrays that its hash is of."""
    with np.load(entry) as stored:
        arrays = dict(stored)
    np.savez(entry, **arrays | {"labels": arrays["labels"][::-1]})


@pytest.mark.parametrize(
    "damage",
    [
        swap_array,
        lambda entry: entry.write_bytes(entry.read_bytes()[:-500]),
        lambda entry: entry.write_bytes(b""),
    ],
)
def test_a_damaged_entry_is_made_again(damage):
    arrays = {"images": np.arange(5000, dtype=np.uint16).view(np.uint8), "labels": np.arange(3)}
    cached("some", {"key": 1}, lambda: arrays)
    (entry,) = cache_folder("data").iterdir()
    damage(entry)
    made = []
    again = cached("some", {"key": 1}, lambda: made.append(1) or arrays)
    assert made and all(np.array_equal(again[name], arrays[name]) for name in arrays)
    cached("some", {"key": 1}, lambda: pytest.fail("the entry is whole"))


def test_a_killed_writer_leaves_no_half_entry():
    """The process is killed while it writes; the next one finds no entry and makes its own."""
    script = """
import os, signal
import numpy as np
from fedjax_collapse.data.reading import cache

def die(file, **arrays):
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

cache.np.savez = die
cache.cached("some", {"key": 1}, lambda: {"labels": np.arange(3)})
"""
    root = Path(__file__).parents[1]
    killed = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(root)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = cache_folder("data").iterdir()
    assert left.suffix == ".tmp"
    np.testing.assert_array_equal(cached("some", {"key": 1}, lambda: {"labels": np.arange(4)})["labels"], np.arange(4))
    os.utime(left, (0, 0))
    cached("some", {"key": 2}, lambda: {"labels": np.arange(4)})
    assert not left.exists() and len(list(cache_folder("data").iterdir())) == 2


def test_without_room_for_a_cache_the_data_are_still_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached"):
        assert cached("some", {}, lambda: {"labels": np.arange(4)})["labels"].tolist() == [0, 1, 2, 3]
