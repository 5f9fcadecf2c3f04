"""Texts in tables: Parquet and Arrow files of Hugging Face, csv, tsv and jsonl files; with classes and clients.

Sentiment140 (``text``, ``sentiment``, ``user``) and Shakespeare in LEAF's windows (``x``, ``y``, ``character_id``).
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.clients.natural_clients import check_client, hold_out, number_clients
from fedjax_collapse.data.reading.tables import choose_column, find_tables, read_table
from fedjax_collapse.data.reading.tables.tabular import check_class, class_order

_USUAL = {"text": ("text", "x", "tokens"), "label": ("label", "sentiment", "y")}


class TextColumns(NamedTuple):
    """Names of columns. An empty ``text`` or ``label`` is the first usual one that exists; ``client`` is optional."""

    text: str = ""
    label: str = ""
    client: str = ""


class Reading(NamedTuple):
    """How texts become examples; see the source ``texts``."""

    task: str
    vocabulary: str | Path
    vocabulary_size: int
    length: int
    classes: tuple[str, ...]


def read_texts(
    path: str | Path, columns: TextColumns, reading: Reading, validation: str, test_fraction: float, seed: int
) -> Arrays:
    """Reads the fields of ``Source`` of a csv, tsv or jsonl file, or of the tables in a folder.

    Raises:
        UserError: a file, column, text, label or client is not as expected; the message names it.
    """
    kind, *files = find_tables(Path(path), validation)
    train, test = (_read(file, kind, columns, reading.task) if file else None for file in files)
    if test is None:
        is_test = hold_out(path, train.clients, [0] * len(train.texts), test_fraction, seed)
        train, test = train.take(~is_test), train.take(is_test)
    names = tuple(text.LETTERS) if reading.task == "next_character" else reading.classes
    if reading.task == "classification":
        names = names or tuple(map(str, sorted(set(train.labels), key=class_order)))
        train, test = (_of_classes(path, part, names) for part in (train, test))
    arrays: Arrays = {}
    vocabulary = None if reading.task == "next_character" else text.Vocabulary(_words(reading, train.texts))
    for prefix, part in (("", train), ("test_", test)):
        if reading.task == "next_word":
            pair = text.word_sequences(part.texts, vocabulary, reading.length)
        elif reading.task == "next_character":
            pair = _letters(path, part.texts), _letters(path, part.labels)[:, 0].astype(int)
        else:
            words = list(map(text.words_of, part.texts))
            pair = text.padded_words(words, vocabulary, reading.length), np.array(part.labels)
        arrays[f"{prefix}images"], arrays[f"{prefix}labels"] = pair
    arrays["class_names"] = np.array(vocabulary.names if reading.task == "next_word" else names, str)
    return arrays | (number_clients(train.clients, test.clients) if columns.client else {})


class _Part(NamedTuple):
    """Lists with an entry for each row; without clients or labels these are empty."""

    texts: list[str]
    labels: list
    clients: list

    def take(self, mask: Sequence[bool]) -> "_Part":
        return _Part(*(list(itertools.compress(values, mask)) for values in self))


def _read(files, kind, columns, task):
    parts = [_read_file(file, kind, columns, task) for file in files]
    part = _Part(*(list(itertools.chain.from_iterable(each)) for each in zip(*parts, strict=True)))
    if not part.texts:
        raise UserError(f"{files[0]}: it has no rows; expected at least one text, fetch or write it again")
    return part


def _read_file(file, kind, columns, task):
    table, found = read_table(file, kind), {}
    for key, name in columns._asdict().items():
        found[key] = []
        if (key == "client" and not name) or (key == "label" and task == "next_word"):
            continue
        chosen = choose_column(file, table.column_names, key, name, _USUAL.get(key, ()))
        found[key] = table[chosen].to_pylist()
        if key == "client":
            for row, client in enumerate(found[key]):
                check_client(f"{file}: row {row}", client)
            continue
        expected = str if key == "text" else (str, int)
        for row, value in enumerate(found[key]):
            if not isinstance(value, expected):
                what = "a text" if key == "text" else "a text or an integer"
                raise UserError(f"{file}: row {row} has {value!r:.40} in {chosen!r}, expected {what}; correct it")
            if key == "label" and task == "classification":
                check_class(f"{file}: row {row}", value)
    return _Part(found["text"], found["label"], found["client"])


def _of_classes(path, part, names):
    """Returns the examples of some classes, numbered in this order."""
    number = {name: row for row, name in enumerate(names)}
    taken = part.take([str(label) in number for label in part.labels])
    if not taken.texts:
        raise UserError(f"{path}: a part has no text of the classes {', '.join(names)}; set data.classes")
    return taken._replace(labels=[number[str(label)] for label in taken.labels])


def _words(reading, texts):
    """Returns the words of the vocabulary's file, else the most frequent ones of the training part."""
    if reading.vocabulary:
        return text.read_vocabulary(reading.vocabulary, reading.vocabulary_size)
    split = text.words_of if reading.task == "classification" else str.split
    return text.most_frequent((word for each in texts for word in split(each)), reading.vocabulary_size)


def _letters(path, texts):
    try:
        return text.letters(list(map(str, texts)))
    except ValueError as error:
        raise UserError(f"{path}: {error}; expected windows and the letter after each; correct it") from None
