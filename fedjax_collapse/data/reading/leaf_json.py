"""LEAF's folders: ``train/*.json`` and ``test/*.json``, each with ``users``, ``num_samples`` and ``user_data``.

``user_data[user]`` has ``x``, a list of images as rows of pixels from 0 to 1 (FEMNIST) or of file names (CelebA), and
``y``, a list of classes. Files are read one at a time, as they hold numbers as text.
"""

import json
import os
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.encoded import Encoded, Listing, decode_listing
from fedjax_collapse.data.reading.folders import SUFFIXES
from fedjax_collapse.data.reading.levels import as_square, to_levels
from fedjax_collapse.data.reading.listings import files_below
from fedjax_collapse.data.reading.natural_clients import fields_of
from fedjax_collapse.data.reading.tabular import numbered


def read_leaf(path: str | Path, image_folder: str | Path, image_size: int, channels: int) -> Arrays:
    """Reads the fields of ``Source``. Where ``x`` are file names, images are those in ``image_folder``.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    parts = {part: _read_part(Path(path) / part) for part in ("train", "test")}
    train, test = parts.values()
    if isinstance(train[0][1], list):
        if not image_folder:
            raise UserError(f"{path}: x are names of images; set data.image_folder to the folder that has them")
        names = numbered(path, np.concatenate([labels for _, _, labels in train]))
        listing = Listing(*([*_files(part, Path(image_folder))] for part in (train, test)), names)
        return decode_listing(listing, (), image_size, channels)
    return fields_of(path, *map(_joined, (train, test)))


def _joined(users):
    """Returns clients, images and labels of the examples of all users."""
    clients = [user for user, _, labels in users for _ in labels]
    return clients, *(np.concatenate([user[place] for user in users]) for place in (1, 2))


def _read_part(folder):
    """Returns (user, images or names of images, labels) of all users of a part."""
    files = [file for file in files_below(folder) if file.suffix == ".json"] if os.path.isdir(folder) else []
    users = [user for file in files for user in _read(file)]
    if not users:
        raise UserError(f"{folder}: expected LEAF's *.json with at least one user's examples, next to the other part")
    first = users[0][1]
    for user, images, _ in users:
        if isinstance(images, list) != isinstance(first, list) or np.shape(images)[1:] != np.shape(first)[1:]:
            raise UserError(f"{folder}: user {user} has other images than {users[0][0]}; use the files of one data set")
    return users


def _read(file):
    try:
        content = json.loads(file.read_bytes())
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
        pairs = [(user, size, data[user]["x"], data[user]["y"]) for user, size in zip(users, sizes, strict=True)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise UserError(
            f"{file}: cannot be read ({reason}); expected LEAF's users, num_samples and user_data, write it again"
        ) from None
    for user, size, x, y in pairs:
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == size:
            found = f"{len(x) if isinstance(x, list) else x!r:.30} x for {len(y) if isinstance(y, list) else y!r:.30} y"
            raise UserError(f"{file}: user {user} has {found}, expected {size} of each; write it again")
        if not size:
            continue
        try:
            labels = np.array(y)
            if labels.ndim != 1 or labels.dtype.kind not in "iub" or labels.min() < 0:
                raise ValueError(f"y are {y[0]!r:.30}, ..., expected classes from 0")
            yield str(user), x if _are_files(x) else as_square(to_levels(_rows(x))), labels.astype(int)
        except ValueError as error:
            raise UserError(f"{file}: user {user}: {error}; only data sets of images are read") from None


def _rows(x):
    rows = np.array(x)  # a ValueError if rows differ in length
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise ValueError(f"x are {x[0]!r:.30}, ..., expected rows of pixels or names of images")
    return rows


def _are_files(x):
    return all(isinstance(name, str) and Path(name).suffix.lower() in SUFFIXES for name in x)


def _files(part, folder):
    for user, names, labels in part:
        for name, label in zip(names, labels, strict=True):
            yield Encoded(folder / name, str(folder / name), int(label), client=user)
