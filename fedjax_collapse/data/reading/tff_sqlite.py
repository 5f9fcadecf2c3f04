"""TensorFlow Federated's data sets of images: SQLite files with the table ``examples`` of split, client and example."""

import contextlib
import sqlite3
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.levels import as_square, to_levels
from fedjax_collapse.data.reading.listings import check_is_file
from fedjax_collapse.data.reading.natural_clients import fields_of
from fedjax_collapse.data.reading.tf_example import read_example

_IMAGES = ("pixels", "image")
_ROWS = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"


def read_sqlite(path: str | Path, train_split: str, test_split: str, label: str) -> Arrays:
    """Reads the fields of ``Source`` from examples with ``pixels`` (0 to 1) or ``image`` (0 to 255) and a ``label``.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """
    check_is_file(path)
    hint = "expected a SQLite file of TFF's, unpacked (unlzma)"
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
            parts = [_read_split(path, database, split, label) for split in (train_split, test_split)]
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read ({error}); {hint}") from None
    return fields_of(path, *parts)


def _read_split(path, database, split, label):
    """Returns clients, images and labels of a split, in the order in which they were written."""
    rows, clients, images, labels = [], [], [], []
    for row, client, content in database.execute(_ROWS, [split]):
        try:
            if not isinstance(content, bytes):
                raise ValueError(f"it is {type(content).__name__}, expected bytes")
            image, value = _image_and_label(read_example(content), label)
            if images and image.shape != images[0].shape:
                raise ValueError(f"an image of {image.shape}, but the first one is {images[0].shape}")
        except ValueError as error:
            raise UserError(f"{path}: {split}, row {row} cannot be read ({error}); fetch the file again") from None
        rows.append(row)
        clients.append(str(client))
        images.append(image)
        labels.append(value)
    if not rows:
        known = ", ".join(name for (name,) in database.execute("SELECT DISTINCT split_name FROM examples"))
        raise UserError(f"{path}: no split {split!r} among {known or 'none'}; set data.train_split and test_split")
    order = np.argsort(rows)
    return [clients[i] for i in order], np.stack([images[i] for i in order]), np.array(labels)[order]


def _image_and_label(example, label):
    """Returns the image [height, width, channels] in units of 0 to 255, and the class."""
    pixels = next((example[name] for name in _IMAGES if name in example), None)
    value = example.get(label)
    if not isinstance(pixels, np.ndarray) or not isinstance(value, np.ndarray) or value.dtype != np.int64:
        raise ValueError(f"features {', '.join(example) or 'none'}, expected numbers pixels or image, and {label}")
    if value.shape != (1,) or value[0] < 0:
        raise ValueError(f"{label} is {value.tolist()}, expected one class from 0")
    if pixels.dtype == np.int64:
        if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 255:
            raise ValueError(f"image is {pixels.min()} to {pixels.max()}, expected 0 to 255")
        pixels = pixels.astype(np.uint8)
    else:
        pixels = to_levels(pixels)
    return as_square(pixels[None])[0], int(value[0])
