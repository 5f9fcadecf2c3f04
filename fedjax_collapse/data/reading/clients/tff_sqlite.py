"""TensorFlow Federated's data sets: SQLite files with the table ``examples`` of split, client and example."""

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.clients.natural_clients import check_client, fields_of
from fedjax_collapse.data.reading.images.tf_example import Feature, read_example
from fedjax_collapse.data.reading.listings import check_is_file
from fedjax_collapse.data.reading.tables.levels import as_square, to_levels
from fedjax_collapse.data.reading.text import Encoding, Pair
from fedjax_collapse.data.stream import ClientExamples

_HINT = "expected a SQLite file of TFF's, unpacked (unlzma)"
_IMAGES = ("pixels", "image")
_ROWS = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"
# a view, a virtual table or a generated column would be computed while it is read, perhaps for ever
_COMPUTED = (
    "SELECT name, type FROM sqlite_master WHERE lower(name) = 'examples' AND (type <> 'table' OR NOT rootpage) UNION "
    "SELECT name, 'column' FROM pragma_table_xinfo('examples') WHERE hidden"
)
_COUNTS = "SELECT 1 FROM sqlite_master WHERE name = 'client_metadata' AND type = 'table' AND rootpage"
_BY_CLIENT = f"{_ROWS} ORDER BY client_id, rowid"

Encode = Callable[[Sequence[dict[str, Feature]]], Pair]  # of the examples of one client


def read_sqlite(path: str | Path, train_split: str, test_split: str, label: str) -> Arrays:
    """Reads the fields of ``Source`` from examples with ``pixels`` (0 to 1) or ``image`` (0 to 255) and a ``label``.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """
    with _opened(path) as database:
        parts = [_read_split(path, database, split, label) for split in (train_split, test_split)]
    return fields_of(path, *parts)


def stream_sqlite(
    path: str | Path, split: str, encode: Encode, wanted: Collection[str], most: int, first: int = 0
) -> Iterator[ClientExamples]:
    """Yields the clients of a split by name, from position ``first`` on, with at most ``most`` examples (0: all).

    SQLite sorts by client, with an index of the file if it has one, else in temporary files. Of an example, the
    ``wanted`` features are decoded; empty for all.

    Raises:
        UserError: as in ``read_sqlite``.
    """
    with _opened(path) as database:
        clients = itertools.groupby(database.execute(_BY_CLIENT, [split]), itemgetter(1))
        client = None
        for place, (client, rows) in enumerate(clients):
            if place < first:
                continue
            check_client(f"{path}: {split}", str(client))
            try:
                pair = encode([_example(content, wanted) for _, _, content in itertools.islice(rows, most or None)])
            except ValueError as error:
                raise _unreadable(path, split, f"client {client}", error) from None
            yield ClientExamples(str(client), *pair)
        if client is None:
            raise _no_split(path, database, split)


def count_clients(path: str | Path, split: str) -> int | None:
    """Returns the number of clients of a split, if the file states it."""
    with _opened(path) as database:
        if not database.execute(_COUNTS).fetchone():
            return None
        return database.execute("SELECT COUNT(*) FROM client_metadata WHERE split_name = ?", [split]).fetchone()[0]


def encode_images(examples: Sequence[dict[str, Feature]], label: str, invert: bool) -> Pair:
    """Returns images [examples, height, width, channels] in units of 0 to 255, and classes.

    Raises:
        ValueError: if features are missing or not as expected, or if images differ in shape.
    """
    images, labels = zip(*(_image_and_label(example, label) for example in examples), strict=True)
    return 255 - np.stack(images) if invert else np.stack(images), np.array(labels)


def encode_texts(examples: Sequence[dict[str, Feature]], encoding: Encoding) -> Pair:
    """Returns the examples of a task, from features with one text each.

    Raises:
        ValueError: if a feature is missing or not one text.
    """
    return encoding.encode(*([_text(example, name) for example in examples] for name in encoding.columns))


@contextlib.contextmanager
def _opened(path):
    check_is_file(path)
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
            for name, kind in database.execute(_COMPUTED):
                raise UserError(f"{path}: {name} is a {kind} that is computed; {_HINT}, with a table of examples")
            yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {_HINT}") from None


def _example(content, wanted=()):
    if not isinstance(content, bytes):
        raise ValueError(f"it is {type(content).__name__}, expected bytes")
    return read_example(content, wanted)


def _unreadable(path, split, where, error):
    return UserError(f"{path}: {split}, {where} cannot be read ({error}); fetch the file again")


def _no_split(path, database, split):
    known = ", ".join(str(name) for (name,) in database.execute("SELECT DISTINCT split_name FROM examples"))
    return UserError(f"{path}: no split {split!r} among {known or 'none'}; set data.train_split and test_split")


def _text(example, name):
    value = example.get(name)
    if not isinstance(value, list) or len(value) != 1:
        raise ValueError(f"features {', '.join(example) or 'none'}, expected one text {name}")
    return value[0].decode(errors="surrogateescape")


def _read_split(path, database, split, label):
    """Returns clients, images and labels of a split, in the order in which they were written."""
    rows, clients, images, labels = [], [], [], []
    for row, client, content in database.execute(_ROWS, [split]):
        try:
            image, value = _image_and_label(_example(content), label)
            if images and image.shape != images[0].shape:
                raise ValueError(f"an image of {image.shape}, but the first one is {images[0].shape}")
        except ValueError as error:
            raise _unreadable(path, split, f"row {row}", error) from None
        check_client(f"{path}: {split}, row {row}", str(client))
        rows.append(row)
        clients.append(str(client))
        images.append(image)
        labels.append(value)
    if not rows:
        raise _no_split(path, database, split)
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
