"""Data sources that are read client by client: each public function has the name and the arguments of a source.

The sources themselves have the defaults and describe the arguments; ``sources.texts`` and others that fit in memory are
not among these. Errors are those of the sources.
"""

import functools
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.clients import hdf5, leaf_json, parquet_clients, pfllib_folder, tff_sqlite
from fedjax_collapse.data.reading.images import encoded, hugging_face
from fedjax_collapse.data.reading.tables import number_tables
from fedjax_collapse.data.stream import Stream


def tff(
    path: str | Path, train_split: str, test_split: str, test_file: str | Path, task: str, label: str, invert: bool,
    max_examples: int, vocabulary: str | Path, vocabulary_size: int, tags: str | Path, tags_size: int, length: int,
    normalisation: str,
) -> Stream:  # fmt: skip
    """The SQLite or HDF5 files of TensorFlow Federated, in the order of clients' names."""
    encoding = _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length)
    is_hdf5 = hdf5.is_hdf5(path)
    if is_hdf5 != bool(test_file):
        raise UserError(f"{path}: a file of HDF5 has one part, of SQLite both; set data.test_file only with the former")
    reading = hdf5 if is_hdf5 else tff_sqlite
    if encoding is None:
        encode = functools.partial(reading.encode_images, label=label, invert=invert)
    elif invert:
        raise UserError(f"data.invert with task {task}: it exchanges black and white; leave it out")
    else:
        encode = functools.partial(reading.encode_texts, encoding=encoding)
    if is_hdf5:
        train = functools.partial(hdf5.stream_hdf5, path, "examples", encode, max_examples)
        test = functools.partial(hdf5.stream_hdf5, test_file, "examples", encode, max_examples)
        count = hdf5.count_clients(path, "examples")
    else:
        wanted = encoding.columns if encoding else ()
        train = functools.partial(tff_sqlite.stream_sqlite, path, train_split, encode, wanted, max_examples)
        test = functools.partial(tff_sqlite.stream_sqlite, path, test_split, encode, wanted, max_examples)
        count = tff_sqlite.count_clients(path, train_split)
    if encoding is None:
        return Stream(str(path), train, test, count, normalisation=normalisation)
    return Stream(str(path), train, test, count, encoding.class_names, encoding.task)


def pfl(
    path: str | Path, train_part: str, test_part: str, fine_grained: bool, max_examples: int, normalisation: str
) -> Stream:  # fmt: skip
    """The HDF5 files of pfl-research."""
    names, are_tokens = hdf5.pfl_facts(path, fine_grained)
    if are_tokens:
        encode = functools.partial(hdf5.encode_tokens, size=len(names))
    else:
        prefix = "fine_grained_" if fine_grained else ""
        encode = functools.partial(hdf5.encode_flair, classes=len(names), prefix=prefix)
    train, test = (
        functools.partial(hdf5.stream_hdf5, path, part, encode, max_examples) for part in (train_part, test_part)
    )
    count = hdf5.count_clients(path, train_part)
    if are_tokens:
        return Stream(str(path), train, test, count, names, "next_word")
    return Stream(str(path), train, test, count, names, "multi_label", normalisation)


def leaf(
    path: str | Path, image_folder: str | Path, image_size: int, channels: int, max_examples: int,
    vocabulary: str | Path, vocabulary_size: int, length: int, normalisation: str,
) -> Stream:  # fmt: skip
    """LEAF's folders, in the order of files; one file is in memory at a time."""
    root = Path(path)
    kind = leaf_json.kind_of(root, vocabulary, vocabulary_size, length, image_folder, image_size, channels)
    parts = (root / part for part in leaf_json.PARTS)
    train, test = (functools.partial(leaf_json.stream_leaf, part, kind, max_examples) for part in parts)
    return Stream(str(path), train, test, None, kind.class_names, kind.task, normalisation if kind.are_images else "")


def parquet(
    path: str | Path, image_column: str, label_column: str, client_column: str, coarse_column: str, task: str,
    validation: str, test_fraction: float, seed: int, classes: tuple[str, ...], image_size: int, channels: int,
    scale: float | str | None, normalisation: str,
) -> Stream:  # fmt: skip
    """Parquet files with a column of clients, in the order in which these first appear."""
    if classes or coarse_column:
        raise UserError("data.classes and data.coarse_column: not read client by client; leave them out")
    if scale == "max":
        raise UserError("data.scale=max: not known client by client; give the number")
    columns = hugging_face.Columns(image_column, label_column, client_column, "", task == "multi_label")
    parts = parquet_clients.open_parquet(path, columns, validation, test_fraction, seed)
    names = parts[0][0].class_names
    options = dict(decoding=encoded.Decoding(image_size, channels, scale=scale), class_names=names or ())
    train, test = (_rows_of(index, chosen, **options) for index, chosen in parts)
    return Stream(str(path), train, test, len(parts[0][0].clients), names, task, normalisation)


def table(
    path: str | Path, label_column: str, client_column: str, feature_columns: tuple[str, ...], test_file: str | Path,
    validation: str, test_fraction: float, seed: int, standardised: bool,
) -> Stream:  # fmt: skip
    """Tables of numbers, in the order of clients' names; all is in memory."""
    columns = number_tables.NumberColumns(label_column, client_column, feature_columns)
    train, test, names = number_tables.read_numbers(Path(path), test_file, columns, validation, test_fraction, seed)
    scale: str | tuple = ""
    if standardised:
        std = train.features.std(0, dtype=float)
        scale = tuple(train.features.mean(0, dtype=float)), tuple(np.where(std > 0, std, 1))
    parts = (functools.partial(number_tables.stream_rows, part) for part in (train, test))
    return Stream(str(path), *parts, len(set(train.clients)), tuple(names), normalisation=scale)


def pfllib(path: str | Path) -> Stream:
    """A folder of PFLlib, in the order of its clients' numbers."""
    train, test = (functools.partial(pfllib_folder.stream_folder, path, part) for part in ("train", "test"))
    names, are_ids = pfllib_folder.facts(path)
    return Stream(str(path), train, test, None, names, normalisation="" if are_ids else (0.0, 1.0))


def _rows_of(index, chosen, **options):
    return lambda first=0: parquet_clients.stream_parquet(index, chosen, first=first, **options)


def _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length):
    """Returns how texts become examples; None for images."""
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
