"""Sources of tables with a row for each example: numbers, texts, or names of images; with natural clients or without.

Args:
    path: the file or folder.
    validation: how a validation part next to a test part is used.
    test_fraction: fraction of each client's or each class's examples that becomes the test part, if there is none.
    seed: seed of the random split into training and test.
    classes: names of the classes to keep, in their new order; none selects all.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size, which all images must share.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    scale: the level that becomes white, where grey levels have more than 8 bits; ``max`` is the largest one of the
        training part. None rejects such images.
    normalisation: mean and standard deviation of the network's input, by name; a default ``''`` is the papers' of the
        data set, or ``unit``.
    vocabulary: the file of words, most frequent first: lines of a word and its count, or JSON; ``''`` counts the words
        of the training part, if possible.
    vocabulary_size: the number of words.
    length: tokens, words or characters of a sequence; 0 is the published number.
"""

import functools
import os
from collections.abc import Callable, Iterator
from csv import DictReader
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.images.encoded import Decoding, Encoded, Listing, decode_listing, divide
from fedjax_collapse.data.reading.images.folders import SUFFIXES
from fedjax_collapse.data.reading.listings import file_below, files_below, reading
from fedjax_collapse.data.reading.natural_clients import check_client, hold_out, number_clients
from fedjax_collapse.data.reading.parts import VALIDATION
from fedjax_collapse.data.reading.tables import choose_column, find_tables, read_table
from fedjax_collapse.data.reading.tables.tabular import check_class, check_columns, class_order, number_classes
from fedjax_collapse.data.source import Channels, Scale, Share, Size, Source, from_files, read_once
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import ClientExamples, Stream
from fedjax_collapse.schema.options import Count, Natural, Seed, checked

_TEXTS = {"text": ("text", "x", "tokens"), "label": ("label", "sentiment", "y")}  # usual names of columns
_LABELS = ("label", "class", "target", "y")  # next to numbers


class Rows(NamedTuple):
    """The examples of a part. Fields but ``inputs`` hold Python objects, and are empty if unknown."""

    inputs: np.ndarray  # [rows, columns] float32, or [rows] texts
    labels: np.ndarray  # [rows] texts or integers, before they are numbered
    clients: np.ndarray  # [rows]
    places: np.ndarray  # [rows] for messages

    def take(self, mask: np.ndarray) -> "Rows":
        return Rows(*(each[mask] if len(each) else each for each in self))


@checked
def csv(
    path: str | Path,
    image_folder: str | Path = "",
    test_file: str | Path = "",
    image_column: str = "image_id",
    label_column: str = "class",
    client_column: str = "user_id",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    scale: Scale = None,
    normalisation: Normalisation = "unit",
) -> Source:
    """Images in files, with their classes and natural clients in a csv file: Google Landmarks, iNaturalist.

    An image is named by its path below ``image_folder``, or by its file's name, with or without suffix.

    Args:
        image_folder: the folder with the images, also in subfolders; ``''`` is the folder of the csv file.
        test_file: the file of the test part, with clients or without; ``''`` holds out a ``test_fraction``.
        image_column: the column with the names of images.
        label_column: the column with the classes, integers or names.
        client_column: the column with the natural clients.

    Raises:
        UserError: if a file is missing or unreadable, or a line not as expected; the message names it.
    """
    file, test = Path(path).absolute(), test_file and Path(test_file).absolute()
    folder = Path(image_folder).absolute() if image_folder else file.parent
    columns = {"image": image_column, "label": label_column, "client": client_column}
    decoding, divided = Decoding(image_size, channels, scale=scale), (columns, test_fraction, seed)
    options = dict(test=test, divided=divided, classes=classes, decoding=decoding, normalisation=normalisation)

    def read():
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: there is no such folder; set data.image_folder to the folder of the images")
        find = _finder(folder)
        parts = [_named_images(own, columns, find, own is file) for own in filter(None, (file, test))]
        names, class_of = number_classes(path, [label for _, _, label, _ in parts[0]])
        parts = [
            [Encoded(image, str(image), class_of(where, label), client=client) for where, image, label, client in part]
            for part in parts
        ]
        train, held_out = parts if test else divide(file, parts[0], test_fraction, seed)
        return decode_listing(Listing(train, held_out, names), classes, decoding)

    return read_once("csv", options, [place for place in (file, test, folder) if place], read)


@from_files
def texts(
    path: str | Path,
    task: Annotated[str, ("classification", "next_word", "next_character")] = "classification",
    text_column: str = "",
    label_column: str = "",
    client_column: str = "",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    length: Natural = 0,
) -> Arrays:
    """Texts in a csv, tsv or jsonl file, or in a folder of such, Parquet or Arrow files, in the layout of ``parquet``.

    A text is classified (Sentiment140), or its words are predicted (``next_word``), or it is one of LEAF's windows of
    Shakespeare and its class is the next character (``next_character``, 80 classes).

    Args:
        task: the label: a class, each next word, or the next character.
        text_column: the column with the texts; ``''`` finds it.
        label_column: the column with the classes, integers or names; ``''`` finds it.
        client_column: the column with the natural clients, such as ``writer_id``, for the partition ``given``.

    Raises:
        UserError: if a file is missing, unreadable or not as expected; the message names it.
    """
    columns = {"text": text_column, "label": label_column, "client": client_column}
    read = functools.partial(_texts, task)
    train, test = _read_parts(Path(path), "", read, columns, validation, test_fraction, seed)
    length = length or (20 if task == "next_word" else 25)
    if task == "classification":
        classes = classes or tuple(map(str, sorted(set(train.labels), key=class_order)))
        train, test = (_of_classes(path, part, classes) for part in (train, test))
    if task != "next_character":
        words = _words(task, vocabulary, vocabulary_size, train.inputs)
    arrays: Arrays = {"task": np.array("next_word" if task == "next_word" else "classification")}
    for prefix, part in (("", train), ("test_", test)):
        if task == "next_word":
            pair = text.word_sequences(part.inputs, words, length)
        elif task == "next_character":
            pair = _letters(path, part.inputs), _letters(path, part.labels)[:, 0].astype(int)
        else:
            pair = text.padded_words([*map(text.words_of, part.inputs)], words, length), part.labels
        arrays[f"{prefix}images"], arrays[f"{prefix}labels"] = pair
    if task != "classification":
        classes = words.names if task == "next_word" else tuple(text.LETTERS)
    arrays["class_names"] = np.array(classes, str)
    return arrays | (number_clients(train.clients, test.clients) if client_column else {})


@from_files
def table(
    path: str | Path,
    label_column: str = "",
    client_column: str = "",
    feature_columns: tuple[str, ...] = (),
    test_file: str | Path = "",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    standardised: bool = False,
) -> Stream:
    """A table of numbers: a csv, tsv, jsonl, Parquet or Arrow file, or a folder of such in the layout of ``parquet``.

    Each row is an example, each of its numbers a feature. Without a test part, examples of each client, or of each
    class, are held out. The network is ``mlp``, with ``hidden=()`` the linear model.

    Args:
        label_column: the column with the classes, integers or names; ``''`` finds it.
        client_column: the column with the natural clients, such as ``writer_id``, for the partition ``given``.
        feature_columns: the columns with the features; none takes all others.
        test_file: the file of the test part, with clients or without; ``''`` holds out a ``test_fraction``.
        standardised: whether to scale each feature to mean 0 and standard deviation 1 on the training part.

    Raises:
        UserError: if a file is missing, unreadable or not as expected; the message names it and the row.
    """
    columns = {"label": label_column, "client": client_column, "features": feature_columns}
    parts = _read_parts(Path(path), test_file, _numbers, columns, validation, test_fraction, seed)
    names, class_of = number_classes(path, parts[0].labels)
    parts = [each._replace(labels=np.array([*map(class_of, each.places, each.labels)])) for each in parts]
    inputs, scale = parts[0].inputs, ""
    if standardised:
        std = inputs.std(0, dtype=float)
        scale = tuple(inputs.mean(0, dtype=float)), tuple(np.where(std > 0, std, 1))
    streams = (functools.partial(_stream, part) for part in parts)
    return Stream(str(path), *streams, len(set(parts[0].clients)), tuple(names), normalisation=scale)


def _named_images(path, columns, find, needs_client):
    """Returns (place, file, class, client) of every line of a csv or tsv file."""
    with (
        reading(path, "cannot be read as csv", "fetch or write it again"),
        open(path, encoding="utf-8-sig", newline="") as file,  # without a byte-order mark
    ):
        reader = DictReader(file, strict=True, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        existing = reader.fieldnames or ()
        lines = [(f"{path}, line {reader.line_num}", line) for line in reader]
    check_columns(path, existing)
    image, label, client = (
        name if key == "client" and not needs_client else choose_column(path, existing, key, name, ())
        for key, name in columns.items()
    )
    if not lines:
        raise UserError(f"{path}: it has no lines below the names of columns; fetch or write it again")
    wanted = [name for name in (image, label, client) if name in existing]
    for where, line in lines:
        if None in line or not all(line[name] for name in wanted):
            raise UserError(f"{where}: expected {len(existing)} values, none of {', '.join(wanted)} empty")
        check_class(where, line[label])
    return [(where, find(line[image], where), line[label], line.get(client)) for where, line in lines]


def _finder(folder):
    """Returns a function ``(name of an image, place of the name) -> file`` for images below a folder.

    The name is a path below the folder, or the name of a file in any subfolder, with or without its suffix.
    """
    named: dict[str, list[Path]] = {}
    for file in files_below(folder):
        if file.suffix.lower() in SUFFIXES:
            for name in {file.name, file.stem, str(file.relative_to(folder).with_suffix(""))}:
                named.setdefault(name, []).append(file)

    def find(name, where):
        if os.path.isfile(exact := file_below(folder, name, where)):
            return exact
        found = named.get(name, [])
        if len(found) != 1:
            reason = f"{found[0]} and {found[1]} both are image" if found else f"there is no image in {folder} for"
            raise UserError(f"{where}: {reason} {name!r}; correct data.image_folder, or the file's name")
        return found[0]

    return find


def _read_parts(path, test_file, read: Callable, columns, validation, test_fraction, seed):
    """Returns the rows of both parts; ``read`` returns the rows of a table."""
    kind, *parts = find_tables(path, validation)
    kinds, found = [kind, kind], []
    if test_file and parts[1]:
        raise UserError(f"{path}: it has a test part, {parts[1][0].name}; leave out data.test_file")
    if test_file:
        kinds[1], parts[1], _ = find_tables(Path(test_file), validation)
    for is_test, (files, kind) in enumerate(zip(parts, kinds, strict=True)):
        tables = [read(file, read_table(file, kind), columns, is_test) for file in files]
        found += [Rows(*map(np.concatenate, zip(*tables, strict=True)))] if tables else []
        if tables and not len(found[-1].inputs):
            raise UserError(f"{files[0]}: it has no rows; expected at least one text, fetch or write it again")
    if len(found) == 2:
        return found
    train = found[0]
    classes = train.labels if read is _numbers else len(train.inputs) * [0]
    is_test = hold_out(path, train.clients.tolist(), classes, test_fraction, seed)
    return train.take(~is_test), train.take(is_test)


def _numbers(file, table, columns, is_test):
    """Returns the rows of a table; the columns that are found are stored in ``columns``, also for later tables."""
    existing = table.column_names
    label = columns["label"] = choose_column(file, existing, "label", columns["label"], _LABELS)
    client = columns["client"] if columns["client"] in existing else ""
    if columns["client"] and not is_test:
        client = choose_column(file, existing, "client", columns["client"], ())
    others = tuple(name for name in existing if name not in (label, columns["client"]))
    features = columns["features"] = columns["features"] or others
    for name in features:
        if name not in existing:
            raise UserError(f"{file}: no column {name!r} among {', '.join(existing)}; set data.feature_columns")
    if not len(table) or not features:
        raise UserError(f"{file}: {len(table)} rows of {len(features)} features, expected at least one")
    places = [f"{file}: row {row}" for row in range(len(table))]
    clients, labels = _clients(file, table, client), [*map(_label, places, table[label].to_pylist())]
    inputs = np.stack([_as_floats(file, name, table[name]) for name in features], 1)
    return Rows(inputs, *(np.array(each, object) for each in (labels, clients, places)))


def _as_floats(file, name, column):
    """Returns a column as float32."""
    import pyarrow
    import pyarrow.compute

    try:
        values = pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowException:
        values = np.array([_number(value) for value in column.to_pylist()])
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float32)
    if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
        raise UserError(
            f"{file}: row {wrong[0]} has {column[int(wrong[0])].as_py()!r:.40} in {name!r}, expected a number of 32 "
            "bits; correct it, or choose data.feature_columns"
        )
    return numbers


def _number(value):
    """Returns the value as a number; NaN if it is none."""
    try:
        return float(value)
    except (ValueError, TypeError):
        return np.nan


def _label(where, value):
    if not isinstance(value, (str, int)):
        raise UserError(f"{where} has class {value!r:.40}, expected an integer or a name; correct it")
    check_class(where, label := str(int(value) if isinstance(value, bool) else value).strip())
    return label


def _clients(file, table, name):
    clients = table[name].to_pylist() if name else []
    for row, client in enumerate(clients):
        check_client(f"{file}: row {row}", client)
    return clients


def _stream(rows, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients in the order of their names, from position ``first`` on; all rows at once without clients."""
    if not len(rows.clients):
        yield ClientExamples(None, rows.inputs, rows.labels)
        return
    for own in rows_by_class(number_clients(rows.clients)["owners"])[first:]:
        yield ClientExamples(rows.clients[own[0]], rows.inputs[own], rows.labels[own])


def _texts(task, file, table, columns, is_test):
    def values(key, kinds, expected):
        chosen = choose_column(file, table.column_names, key, columns[key], _TEXTS[key])
        found = table[chosen].to_pylist()
        for row, value in enumerate(found):
            if not isinstance(value, kinds):
                raise UserError(f"{file}: row {row} has {value!r:.40} in {chosen!r}, expected {expected}; correct it")
            if key == "label" and task == "classification":
                check_class(f"{file}: row {row}", value)
        return found

    inputs = values("text", str, "a text")
    labels = [] if task == "next_word" else values("label", (str, int), "a text or an integer")
    client = columns["client"] and choose_column(file, table.column_names, "client", columns["client"], ())
    return Rows(*(np.array(each, object) for each in (inputs, labels, _clients(file, table, client), [])))


def _of_classes(path, part, names):
    """Returns the examples of some classes, numbered in this order."""
    number = {name: row for row, name in enumerate(names)}
    taken = part.take(np.array([str(label) in number for label in part.labels]))
    if not len(taken.inputs):
        raise UserError(f"{path}: a part has no text of the classes {', '.join(names)}; set data.classes")
    return taken._replace(labels=np.array([number[str(label)] for label in taken.labels]))


def _words(task, file, size, texts):
    """Returns the vocabulary of a file, else of the most frequent words of the training part."""
    if file:
        return text.Vocabulary(text.read_vocabulary(file, size))
    split = text.words_of if task == "classification" else str.split
    return text.Vocabulary(text.most_frequent((word for each in texts for word in split(each)), size))


def _letters(path, texts):
    try:
        return text.letters(list(map(str, texts)))
    except ValueError as error:
        raise UserError(f"{path}: {error}; expected windows and the letter after each; correct it") from None
