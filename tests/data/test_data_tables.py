"""The rows of the tables in docs/data.md, each tried as a user does, on few small images laid out as documented."""

import re
from pathlib import Path

import numpy as np
import pytest
from small_data import save_image

from experiments.configs import base
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.data.sources import normalisations

DOCUMENT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
DATA = re.findall(r"^\| ((?:FD|MR|UV) [^|]*) \| `dict\((.*?)\)`[^|]*\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
PARTITIONS = sorted(set(re.findall(r"`dict\((name=[^`]*)\)`", DOCUMENT)))
PACS = ("art_painting", "cartoon", "photo", "sketch")
READ = {  # classes, domains, test images (of each domain) and size, from what is laid out below
    **dict.fromkeys(("FD Tiny-ImageNet", "UV Tiny-ImageNet"), (3, 0, 6, 64)),
    "FD Office-Caltech10": (2, 4, 4, 256),
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


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("name", "spec"), [row[:2] for row in DATA if row[0] in READ], ids=lambda of: of.split()[0])
def test_every_folder_of_the_table_is_read(name, spec):
    """``test_standard_sets`` and ``test_tfds`` have the others."""
    spec = eval(f"dict({spec})")
    kind, _, argument = spec["source"].partition(":")
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


def test_the_table_is_whole():
    assert len(DATA) == 17 and {name for name, _, _ in DATA} > set(READ) and len(PARTITIONS) == 7
    for _, spec, preset in DATA:
        build.augmentation(preset)
        assert eval(f"dict({spec})").get("normalisation", "unit") in normalisations.NORMALISATIONS


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
