"""The rows of the tables in docs/data.md, each tried as a user does, on few small images laid out as documented."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from small_data import catalogue_builder, save_image

from experiments.configs import base
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.data.reading.images import standard_sets
from fedjax_collapse.data.sources import normalisations

DOCUMENT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
DATA = re.findall(r"^\| ((?:FD|MR|UV) [^|]*) \| `dict\((.*?)\)`[^|]*\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
PARTITIONS = sorted(set(re.findall(r"`dict\((name=[^`]*)\)`", DOCUMENT)))
BUILDERS = {
    "cifar10": ("Cifar10", (32, 32, 3)),
    "cifar100": ("Cifar100", (32, 32, 3)),
    "fashion_mnist": ("FashionMNIST", (28, 28, 1)),
    "svhn": ("SvhnCropped", (32, 32, 3)),
    "stl10": ("Stl10", (96, 96, 3)),
    "domainnet": ("Domainnet", (20, 30, 3)),
}
PACS = ("art_painting", "cartoon", "photo", "sketch")
READ = {  # classes, domains, test images (of each domain) and size, from what is laid out below
    **dict.fromkeys(("FD CIFAR-10", "FD CIFAR-100", "MR SVHN", "MR CIFAR-10", "MR CIFAR-100"), (10, 0, 20, 32)),
    **dict.fromkeys(("UV CIFAR-100", "UV CIFAR-10 (its grid search)"), (10, 0, 20, 32)),
    "MR Fashion-MNIST": (10, 0, 20, 28),
    "UV STL-10": (10, 0, 20, 96),
    **dict.fromkeys(("FD Tiny-ImageNet", "UV Tiny-ImageNet"), (3, 0, 6, 64)),
    "FD Office-Caltech10": (2, 4, 4, 256),
    "FD DomainNet": (10, 6, 20, 256),
    "MR ISIC2019": (4, 6, 1, 224),
    "UV PACS": (2, 4, 80, 96),
    "UV HAM10000": (2, 4, 2, 96),
    "UV Office-Home": (2, 4, 14, 96),
}
RNG = np.random.default_rng(0)


def save_images(folder, count, suffix="jpg", name="{}"):
    for number in range(count):
        save_image(folder / f"{name.format(number)}.{suffix}", RNG.integers(0, 256, (64, 64, 3), np.uint8))


def tiny_imagenet(root):
    lines = []
    for label, name in enumerate(("n01443537", "n01629819", "n01641577")):
        save_images(root / "train" / name / "images", 4, "JPEG", name + "_{}")
        (root / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
        save_images(root / "val" / "images", 2, "JPEG", f"val_{label}{{}}")
        lines += [f"val_{label}{number}.JPEG\t{name}\t0\t32\t44\t62\n" for number in range(2)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("n01443537\nn01629819\nn01641577\n")
    save_images(root / "test" / "images", 2, "JPEG", "test_{}")


def office_caltech(root):
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for name in ("backpack", "bike"):
            save_images(root / domain / "train" / name, 3)
            save_images(root / domain / "test" / name, 2)


def by_domain(root, domains, per_class):
    for domain in domains:
        for name in ("first", "second"):
            save_images(root / domain / name, per_class)


def isic2019(root):
    """Four classes in each of six centres, every fourth image for the test."""
    save_images(root, 24, name="ISIC_{}")
    rows = [f"ISIC_{row},{row % 4},{row // 4},{'test' if row % 4 == row // 4 % 4 else 'train'}," for row in range(24)]
    Path("train_test_split").write_text("\n".join(["image,target,center,fold,fold2", *rows]))


FOLDERS = {
    "tiny-imagenet-200": tiny_imagenet,
    "office": office_caltech,
    "PACS": lambda root: by_domain(root, PACS, 42),
    "HAM10000": lambda root: by_domain(root, ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"), 5),
    "OfficeHome": lambda root: by_domain(root, ("Art", "Clipart", "Product", "Real World"), 9),
    "ISIC_2019_Training_Input_preprocessed": isic2019,
}


def prepare(name, classes, data_dir):
    """What TFDS would have prepared, of two images of each of ten classes, in every config."""
    name, _, configs = name.partition("/")
    class_name, shape = BUILDERS[name]
    tfds_name = standard_sets.DATA_SETS[name].tfds if name in standard_sets.DATA_SETS else name
    catalogue = tfds.builder(tfds_name, data_dir=data_dir / "none")
    names = catalogue.info.features["label"].names
    labels = np.array([names.index(each) for each in classes or names[:10]] * 2)
    parts = {part: (RNG.integers(0, 256, (len(labels), *shape), np.uint8), labels) for part in ("train", "test")}
    configs = configs.split(",") if configs else [None]
    builder, _ = catalogue_builder(class_name, catalogue, dict.fromkeys(configs, parts) if configs[0] else parts)
    for config in configs:
        builder(config=config, data_dir=data_dir, file_format="array_record").download_and_prepare()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("name", "spec", "preset"), DATA, ids=[row[0] for row in DATA])
def test_every_data_set_of_the_table_is_read(name, spec, preset, tmp_path):
    spec = eval(f"dict({spec})")
    kind, _, argument = spec["source"].partition(":")
    if kind == "tfds":
        prepare(argument, spec.get("classes"), tmp_path)
        spec["data_dir"] = str(tmp_path)
    elif not argument:
        prepare(kind, None, tmp_path / "data")
    else:
        FOLDERS[argument](Path(argument))
    source = build.data_source(spec)
    normalisation = spec.get("normalisation", "imagenet" if kind == "isic2019" else "unit")
    assert (source.mean, source.std) == normalisations.NORMALISATIONS[normalisation]
    num_classes, num_domains, num_tests, size = READ[name]
    assert len(source.domain_names) == num_domains and source.images.shape[1] == source.images.shape[2] == size
    assert len(np.unique(source.labels)) == len(np.unique(source.test_labels)) == num_classes
    if num_domains:
        assert np.bincount(source.test_domains).tolist() == [num_tests] * num_domains
    else:
        assert len(source.test_images) == num_tests
    build.augmentation(preset)


def test_the_table_is_whole():
    assert {name for name, _, _ in DATA} == set(READ) and len(PARTITIONS) == 7


@pytest.mark.parametrize("spec", PARTITIONS)
def test_every_partition_of_the_tables_is_drawn(spec):
    """Of 400 examples of ten classes in four domains, which any of them can divide."""
    images, labels, domains = RNG.integers(0, 256, (400, 2, 2), np.uint8), np.arange(400) % 10, np.arange(400) // 100
    arrays = dict(images=images, labels=labels, test_images=images, test_labels=labels)
    np.savez("data.npz", **arrays, domains=domains, test_domains=domains, domain_names=np.array(PACS))
    config = base.get_config()
    config.clients, config.data = 4, dict(source="npz:data.npz")
    config.partition = eval(f"dict({spec})", {"A": 0.5, "M": 3})
    sizes = np.array(build.federations(plain(config), [0])[0].ownership.sizes)
    assert len(sizes) == 4 and 0 < sizes.min() <= sizes.sum() <= 400
