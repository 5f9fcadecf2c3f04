"""Finds the data sets that most papers use on disk, in the layouts of TFDS, torchvision and Hugging Face."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.images import tfds_listing, torchvision_files
from fedjax_collapse.data.reading.listings import files_below

PLACES = (".", "data", "~/data")  # and TFDS's own folder
WAYS = ("tfds", "torchvision", "parquet")  # the readers of a data set
_CONFIGS = ("plain_text", "data", "default")  # Hugging Face's names of a single config


class DataSet(NamedTuple):
    """The names of a data set: in TFDS, as a class of torchvision, and on Hugging Face."""

    tfds: str
    torchvision: str
    hugging_face: str
    config: str = ""  # on Hugging Face, if there are several


DATA_SETS = {
    "cifar10": DataSet("cifar10", "CIFAR10", "uoft-cs/cifar10"),
    "cifar100": DataSet("cifar100", "CIFAR100", "uoft-cs/cifar100"),
    "mnist": DataSet("mnist", "MNIST", "ylecun/mnist"),
    "fashion_mnist": DataSet("fashion_mnist", "FashionMNIST", "zalando-datasets/fashion_mnist"),
    "svhn": DataSet("svhn_cropped", "SVHN", "ufldl-stanford/svhn", "cropped_digits"),
    "stl10": DataSet("stl10", "STL10", "tanganke/stl10"),
}


class Found(NamedTuple):
    """A data set on disk: its reader, and the folder to read."""

    way: str  # one of ``WAYS``
    folder: Path


def find(name: str, folder: str | Path = "", ways: Sequence[str] = WAYS, or_none: bool = False) -> Found | None:
    """Returns the place of a data set: in ``folder``, or the first of ``PLACES`` and TFDS's folder that has it.

    In each place, TFDS's layout comes before torchvision's, and this before Hugging Face's. If there are several, a
    warning names the one that is read.

    Raises:
        UserError: the data set is not found, unless ``or_none``; the message has a hint how to get it.
    """
    places: dict[Path, Path] = {}
    for place in (folder,) if folder else (*PLACES, os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")):
        places.setdefault((own := Path(place).expanduser()).resolve(), own)
    found = [each for place in places.values() for each in _in_place(name, place, bool(folder))]
    found = [each for each in found if each.way in ways]
    if not found and or_none:
        return None
    if not found:
        raise UserError(f"{name}: it is not in {', '.join(map(str, places.values()))}; {_how_to_get(name)}")
    if len(found) > 1:
        others = " and ".join(f"{each.folder} ({each.way})" for each in found[1:])
        warnings.warn(f"{name} is read from {found[0].folder} ({found[0].way}), not from {others}", stacklevel=2)
    return found[0]


def _in_place(name, place, is_given):
    """Returns the layouts of a data set in a place. If the place ``is_given``, it may itself hold the files."""
    names = DATA_SETS[name]
    candidates = (place, place.parent, place.parent.parent) if is_given else (place,)
    found = [Found("tfds", root) for root in candidates if _is_within(place, root, names.tfds)][:1]
    if (files := torchvision_files.folder_of(name, place)) is not None:
        found.append(Found("torchvision", files))
    tables = _tables_in(place / name, names.config)
    is_another = {place.absolute().name, place.absolute().parent.name} & (DATA_SETS.keys() - {name})
    if is_given and tables is None and not is_another:
        tables = _tables_in(place, names.config, is_other=place.absolute().name != name)
    return [*found, Found("parquet", tables)] if tables else found


def _is_within(place, root, name):
    """Returns whether TFDS has prepared a data set in ``root / name``, and ``place`` is ``root`` or in that folder."""
    prepared = root / name
    if place != root and place not in (prepared, *(prepared / version for version in _listed(prepared))):
        return False
    return any((prepared / version / "dataset_info.json").is_file() for version in _listed(prepared))


def _tables_in(folder, config, is_other=False):
    """Returns the folder of a config, or the folder, if it has Parquet files; else None.

    In a folder with another name than the data set's, only files directly in it, or in a config's folder, count.
    """
    folder = folder / config if config and config in _listed(folder) else folder
    if is_other:
        names = [name for own in (folder, *(folder / config for config in _CONFIGS)) for name in _listed(own)]
    else:
        names = (file.name for file in files_below(folder)) if os.path.isdir(folder) else ()
    return folder if any(name.endswith(".parquet") for name in names) else None


def _listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:  # also without permission
        return []


def _how_to_get(name):
    names = DATA_SETS[name]
    parts = ("split='train', ", "split='test', ") if name in ("svhn", "stl10") else ("",)
    made = "; ".join(f"torchvision.datasets.{names.torchvision}('data', {part}download=True)" for part in parts)
    return (
        f'get it where there is a network: python -c "import torchvision; {made}"; or hf download {names.hugging_face} '
        f"--repo-type dataset --local-dir data/{name}; or {tfds_listing.command(names.tfds, '')}; or set data.folder "
        "to where it is"
    )
