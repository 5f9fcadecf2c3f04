"""TensorFlow Federated's data sets: SQLite files with the table ``examples`` of split, client and example.

Args:
    path: the file or folder.
    max_examples: most examples of a client, the first ones; 0 takes all.
    normalisation: mean and standard deviation of the network's input, by name; a default ``''`` is the papers' of the
        data set, or ``unit``.
    length: tokens, words or characters of a sequence; 0 is the published number.
"""

import contextlib
import functools
import itertools
import sqlite3
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.source import from_files
from fedjax_collapse.data.sources import hdf5
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import ClientExamples, Stream, check_shape, encoded
from fedjax_collapse.schema.options import Count, Natural

TASKS = ("classification", "next_word", "next_character", "multi_label")
_HINT = "expected a SQLite file of TFF's, unpacked (unlzma)"
_NUMBERS = {"float_list": np.float32, "int64_list": np.int64}
_BY_CLIENT = (
    "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid"
)
# a view, a virtual table or a generated column would be computed while it is read, perhaps for ever
_COMPUTED = (
    "SELECT name, type FROM sqlite_master WHERE lower(name) = 'examples' AND (type <> 'table' OR NOT rootpage) UNION "
    "SELECT name, 'column' FROM pragma_table_xinfo('examples') WHERE hidden"
)
_COUNTS = "SELECT 1 FROM sqlite_master WHERE name = 'client_metadata' AND type = 'table' AND rootpage"


@from_files
def tff(
    path: str | Path,
    train_split: str = "train",
    test_split: str = "test",
    test_file: str | Path = "",
    task: Annotated[str, TASKS] = "classification",
    label: str = "label",
    invert: bool = False,
    max_examples: Natural = 0,
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    tags: str | Path = "",
    tags_size: Count = 500,
    length: Natural = 0,
    normalisation: Normalisation = "unit",
) -> Stream:
    """The data of TensorFlow Federated, SQLite or older HDF5 files, with natural clients; without TensorFlow.

    Images (EMNIST, CelebA, CIFAR-100) are classified. Of texts, ``task`` is ``next_word`` (StackOverflow),
    ``multi_label`` (its tags) or ``next_character`` (Shakespeare).

    Args:
        path: the file, unpacked (``unlzma emnist_all.sqlite.lzma``), or the HDF5 file of the training part.
        train_split: the split with the training examples: ``all_train``, ``split_by_examples_train``, ...
        test_split: the split with the test examples, such as ``heldout`` of StackOverflow.
        test_file: the HDF5 file of the test part.
        task: classification of images, or the task of texts.
        label: the feature with the class, such as ``smiling`` of CelebA.
        invert: whether to exchange black and white, as fedjax does: EMNIST is stored with background 1.
        vocabulary: the file ``stackoverflow.word_count``.
        vocabulary_size: the number of words, the first ones.
        tags: the file ``stackoverflow.tag_count``.
        tags_size: the number of tags.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """
    encoding = _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length)
    is_hdf5 = Path(path).suffix.lower() in (".h5", ".hdf5")
    if is_hdf5 != bool(test_file):
        raise UserError(f"{path}: an HDF5 file has one part, an SQLite file both; set data.test_file for HDF5 only")
    if encoding is not None and invert:
        raise UserError(f"data.invert with task {task}: it exchanges black and white; leave it out")
    stream, count_clients = (hdf5.stream, hdf5.count_clients) if is_hdf5 else (_stream, _count_clients)
    encode = functools.partial(hdf5.encode_texts, encoding=encoding)
    if encoding is None:
        encode = functools.partial(hdf5.encode_images, label=label, invert=invert)
    splits = [(path, "examples"), (test_file, "examples")] if is_hdf5 else [(path, train_split), (path, test_split)]
    train, test = (functools.partial(stream, *split, encode, max_examples) for split in splits)
    facts = str(path), train, test, count_clients(*splits[0])
    if encoding is None:
        return Stream(*facts, normalisation=normalisation, by_row=not is_hdf5)
    return Stream(*facts, encoding.class_names, encoding.task)


def _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length):
    """Returns the preprocessing of the texts of a task; None for images."""
    if task == "classification":
        return None
    if task == "next_character":
        return text.next_characters(length or 80)
    if not vocabulary:
        raise UserError(f"data.task {task}: set data.vocabulary to the file of words, such as stackoverflow.word_count")
    words = text.Vocabulary(text.read_vocabulary(vocabulary, vocabulary_size))
    if task == "next_word":
        return text.next_words(words, length or 20)
    if not tags:
        raise UserError("data.task multi_label: set data.tags to the file of tags, stackoverflow.tag_count")
    return text.tags(words, text.read_vocabulary(tags, tags_size, "tags"))


def _stream(path, split, encode, most: int = 0, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients of a split by name, from position ``first`` on, with at most ``most`` examples (0: all).

    SQLite sorts by client, with an index of the file if it has one, else in temporary files.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """

    def read(examples):
        pairs = []
        for row, _, content in itertools.islice(examples, most or None):
            try:
                pairs.append((*encode(_features(content), None), [row]))
                check_shape(pairs[0][0].shape[1:], pairs[-1][0])
            except ValueError as error:
                raise ValueError(f"row {row}: {error}") from None
        inputs, labels, rows = map(np.concatenate, zip(*pairs, strict=True))
        return inputs, labels, rows.tolist()

    with _opened(path) as database:
        yield from encoded(_clients(path, split, database), read, first, "fetch the file again")


def _clients(path, split, database):
    """Yields the place, name and rows of each client."""
    client = None
    for client, examples in itertools.groupby(database.execute(_BY_CLIENT, [split]), itemgetter(1)):
        yield f"{path}: {split}", str(client), examples
    if client is None:
        known = ", ".join(str(name) for (name,) in database.execute("SELECT DISTINCT split_name FROM examples"))
        raise UserError(f"{path}: no split {split!r} among {known or 'none'}; set data.train_split and test_split")


def _count_clients(path, split):
    """Returns the number of clients of a split, if the file states it."""
    with _opened(path) as database:
        if not database.execute(_COUNTS).fetchone():
            return None
        return database.execute("SELECT COUNT(*) FROM client_metadata WHERE split_name = ?", [split]).fetchone()[0]


@contextlib.contextmanager
def _opened(path):
    with (
        reading(path, "cannot be read", _HINT),
        contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database,
    ):
        for name, kind in database.execute(_COMPUTED):
            raise UserError(f"{path}: {name} is a {kind} that is computed; {_HINT}, with a table of examples")
        yield database


def _features(content):
    """Returns the features of a ``tf.train.Example`` by name: bytes, float32 or int64, [1], or [1, n] of n values."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto.tf_example_generated_pb2 import Example

    if not isinstance(content, bytes):
        raise ValueError(f"it is {type(content).__name__}, expected bytes")
    try:
        stored = Example.FromString(content).features.feature
    except DecodeError:
        raise ValueError("it is no tf.train.Example") from None
    lists = {name: (kind, getattr(own, kind).value) for name, own in stored.items() if (kind := own.WhichOneof("kind"))}
    arrays = {name: np.array([*own], _NUMBERS.get(kind, object)) for name, (kind, own) in lists.items()}
    return {name: own if len(own) == 1 else _levels(name, own)[None] for name, own in arrays.items()}


def _levels(name, values):
    """Returns the values of a feature; integers of an image are levels of 0 to 255."""
    if values.dtype != np.int64 or name not in ("pixels", "image"):
        return values
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise ValueError(f"{name} is {values.min()} to {values.max()}, expected 0 to 255")
    return values.astype(np.uint8)
