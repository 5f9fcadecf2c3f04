"""Image folders: the class, domain and part of each file."""

import os
import re
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.images.encoded import Encoded, Listing
from fedjax_collapse.data.reading.index_file import read_isic2019
from fedjax_collapse.data.reading.listings import file_below, files_below, folders_in, reading
from fedjax_collapse.data.reading.parts import PARTS, choose

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_NOTES = (".txt", ".csv", ".json", ".xml", ".md", ".html")  # Tiny-ImageNet has bounding boxes next to its images
ISIC2019_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ISIC2019_CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
_LIKE_A_PART = re.compile(f"(?:{'|'.join(PARTS)})[^a-z]", re.IGNORECASE)  # such as train_extra


def list_folder(
    path: str | Path, domains: bool, validation: str, test_fraction: float, test_per_class: int, seed: int
) -> Listing:
    """Lists the images below a folder, in one of these layouts:

    * ``train/<class>/*`` next to ``test/<class>/*``, also training, testing, in any capitals. A validation part (valid,
      validation, val, dev, eval) is the test part if there is no other. Otherwise it is not used, with a warning, or
      ``validation`` makes it the ``test`` part or adds it to ``train``;
    * Tiny-ImageNet's, where ``val/val_annotations.txt`` has the classes of ``val/images``;
    * ``<class>/*``, where a random part of each class becomes the test set: ``test_per_class`` images, or a
      ``test_fraction`` if that is 0;
    * if ``domains``, any of these below one folder per domain.

    Class folders may have subfolders; inside a part they may have any name. Hidden files, and notes (``.txt``,
    ``.csv``, ``.json``, ...) next to the images, are ignored.

    Raises:
        UserError: if the folder cannot be listed, if a class folder has no image or a file that is not an image, if
            folders are ambiguously named like parts, if there is only one class, or if training lacks a class of the
            test part.
    """
    root = Path(path)
    if not os.path.isdir(root):  # also False without permission, where pathlib raises
        raise UserError(f"{path}: there is no such folder; give one of class folders, or with train and test")
    roots = folders_in(root) if domains else [root]
    if domains and (not roots or _parts_in(root)):
        raise UserError(
            f"{path}: with domains=True expected a folder for each domain, with class folders or parts in it"
        )
    rng = np.random.default_rng(seed)
    parts = [_parts(each, validation, test_fraction, test_per_class, rng) for each in roots]
    names = sorted({name for train, _ in parts for name, _ in train})
    if len(names) < 2:
        raise UserError(
            f"{path}: one class in all, {names[0]!r}; expected a folder for each class, or with domains=True for each "
            "domain, with class folders in it"
        )
    train, test = (
        [Encoded(file, str(file), name, place) for place, own in enumerate(parts) for name, file in own[part]]
        for part in (0, 1)
    )
    return Listing(train, test, names, [each.name for each in roots] if domains else ())


def list_isic2019(path: str, split_file: str) -> Listing:
    """Lists the images of FLamby's split file, in its order; centres are domains.

    Raises:
        UserError: if it is another file, if a centre is unknown, or if the path of an image is outside of the folder.
    """
    parts = []
    for fold in ("train", "test"):
        parts.append([])
        for name, target, centre in read_isic2019(split_file, fold):
            if not 0 <= centre < len(ISIC2019_CENTRES):
                raise UserError(f"{split_file}: {name} has centre {centre}, expected 0 to 5; fetch the file again")
            file = file_below(Path(path), f"{name}.jpg", split_file)
            parts[-1].append(Encoded(file, str(file), target, centre))
    return Listing(*parts, ISIC2019_CLASSES, ISIC2019_CENTRES)


def _parts(root, validation, test_fraction, test_per_class, rng):
    """Returns (class, file) of all training images, and of all test images."""
    found = _parts_in(root)
    if not found:
        return _divide(_images_of_classes(root), test_fraction, test_per_class, rng)
    held_out = found.get("validation")
    annotations = held_out / "val_annotations.txt" if held_out else root
    if "train" in found and annotations.is_file():
        return _images_of_classes(found["train"]), _read_annotations(annotations)
    if "train" not in found or len(found) < 2:
        there = ", ".join(folder.name for folder in found.values())
        raise UserError(
            f"{root}: has {there}, expected train next to test or val, each with class folders; complete it, or rename "
            "a class of that name"
        )
    parts = {kind: _images_of_classes(found[kind]) for kind in ("train", "test", "validation") if kind in found}
    return choose(root, parts, {kind: folder.name for kind, folder in found.items()}, validation)


def _parts_in(root):
    """Returns the folders of parts in a folder, by train, test and validation; empty if it has none."""
    found, others = {}, []
    for folder in folders_in(root):
        kind = PARTS.get(folder.name.lower())
        if kind:
            found.setdefault(kind, []).append(folder)
        elif _LIKE_A_PART.match(folder.name):
            others.append(folder)
    unclear = [folder for folders in found.values() if len(folders) > 1 for folder in folders]
    if unclear or (others and len(found) + len(others) > 1):
        names = ", ".join(sorted(folder.name for folder in {*unclear, *others}))
        raise UserError(
            f"{root}: ambiguous folders, named like parts: {names}; expected train, test "
            "and val, or some of them; rename, merge or remove these"
        )
    return {kind: folder for kind, (folder,) in found.items()}


def _read_annotations(path):
    """Returns (class, file) of each line: the name of a file below ``images``, and its class."""
    with reading(path, "expected lines of <image> <class> ...", "unpack it again"):
        rows = [line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        pairs = [(name, file) for file, name in rows]
    return [(name, file_below(path.parent / "images", file, str(path))) for name, file in pairs]


def _images_of_classes(root):
    classes = folders_in(root)
    if not classes:
        raise UserError(f"{root}: no class folder in it; expected <class>/<image>, {', '.join(SUFFIXES[:3])}, ...")
    return [(folder.name, file) for folder in classes for file in _images(folder)]


def _images(folder):
    """Returns the images of a class. Other files are errors, so that no image of an unknown format is missed."""
    files = [file for file in files_below(folder) if file.suffix.lower() not in _NOTES]
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise UserError(f"{file}: no image by its name, expected {', '.join(SUFFIXES)}; convert or remove it")
    if not files:
        raise UserError(f"{folder}: no image in this class folder; add some, or remove the folder")
    return files


def _divide(found, test_fraction, test_per_class, rng):
    train, test = [], []
    for name in sorted({name for name, _ in found}):
        files = [pair for pair in found if pair[0] == name]
        held_out = test_per_class or round(test_fraction * len(files))
        if held_out >= len(files):
            raise UserError(
                f"{files[0][1].parent}: {len(files)} images, of which {held_out} should be for the test; lower "
                f"data.test_per_class or data.test_fraction"
            )
        is_test = np.isin(np.arange(len(files)), rng.permutation(len(files))[:held_out])
        for pair, tested in zip(files, is_test, strict=True):
            (test if tested else train).append(pair)
    return train, test
