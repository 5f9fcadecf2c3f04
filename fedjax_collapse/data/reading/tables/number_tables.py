"""Tables of numbers: a row for each example, with its class and perhaps its natural client."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.reading.clients.natural_clients import Client, check_client, hold_out, number_clients
from fedjax_collapse.data.reading.tables import choose_column, find_tables, read_table
from fedjax_collapse.data.reading.tables.tabular import check_class, number_classes
from fedjax_collapse.data.stream import ClientExamples

_LABELS = ("label", "class", "target", "y")


class NumberColumns(NamedTuple):
    """Names of columns. An empty ``label`` is the first usual one that exists; without ``features`` all others are."""

    label: str = ""
    client: str = ""
    features: tuple[str, ...] = ()


class Rows(NamedTuple):
    """The examples of a part."""

    features: np.ndarray  # [rows, columns] float32
    labels: Sequence  # [rows] integers, before they are numbered texts
    clients: list[Client]  # empty if they are not known
    places: list[str]  # for messages


def read_numbers(
    path: Path, test_file: str | Path, columns: NumberColumns, validation: str, test_fraction: float, seed: int
) -> tuple[Rows, Rows, list[str]]:
    """Returns the training and the test part, and the names of the classes.

    Args:
        path: a file, or a folder with parts (``parts.find_files``).
        test_file: the file of the test part, if ``path`` is one.

    Raises:
        UserError: a file, column or value is not as expected; the message names it and its row.
    """
    kind, train_files, test_files = find_tables(path, validation)
    if test_file and test_files:
        raise UserError(f"{path}: it has a test part, {test_files[0].name}; leave out data.test_file")
    test_kind = kind
    if test_file:
        test_kind, test_files, _ = find_tables(Path(test_file), validation)
    chosen, train = _read(train_files, kind, columns)
    test = _read(test_files, test_kind, chosen, needs_client=False)[1] if test_files else None
    if test is None:
        is_test = hold_out(path, train.clients, train.labels, test_fraction, seed)
        train, test = (_take(train, is_test == part) for part in (False, True))
    names, class_of = number_classes(path, train.labels)
    train, test = (each._replace(labels=np.array([*map(class_of, each.places, each.labels)])) for each in (train, test))
    return train, test, names


def stream_rows(rows: Rows, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients in the order of their names, from position ``first`` on; all rows at once if none is known."""
    if not rows.clients:
        yield ClientExamples(None, rows.features, rows.labels)
        return
    for own in rows_by_class(number_clients(rows.clients, None)["owners"])[first:]:
        yield ClientExamples(rows.clients[own[0]], rows.features[own], rows.labels[own])


def _take(read, mask):
    rows = np.flatnonzero(mask)
    return Rows(read.features[rows], *([each[row] for row in rows if each] for each in read[1:]))


def _read(files, kind, columns, needs_client=True):
    """Returns the columns with their names, and what the files of a part hold."""
    parts = []
    for file in files:
        table = read_table(file, kind)
        existing = table.column_names
        label = choose_column(file, existing, "label", columns.label, _LABELS)
        client = columns.client if columns.client in existing else ""
        if columns.client and needs_client:
            client = choose_column(file, existing, "client", columns.client, ())
        others = tuple(name for name in existing if name not in (label, columns.client))
        columns = NumberColumns(label, columns.client, columns.features or others)
        for name in columns.features:
            if name not in existing:
                raise UserError(f"{file}: no column {name!r} among {', '.join(existing)}; set data.feature_columns")
        if not len(table) or not columns.features:
            raise UserError(f"{file}: {len(table)} rows of {len(columns.features)} features, expected at least one")
        places = [f"{file}: row {row}" for row in range(len(table))]
        clients = table[client].to_pylist() if client else []
        for place, each in zip(places, clients, strict=False):
            check_client(place, each)
        features = np.stack([_numbers(file, name, table[name]) for name in columns.features], 1)
        labels = list(map(_label, places, table[label].to_pylist()))
        parts.append(Rows(features, labels, clients, places))
    features, *others = zip(*parts, strict=True)
    return columns, Rows(np.concatenate(features), *(list(itertools.chain.from_iterable(each)) for each in others))


def _numbers(file, name, column):
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
    """Returns the number that a value is; NaN if it is none."""
    try:
        return float(value)
    except (ValueError, TypeError):
        return np.nan


def _label(where, value):
    if not isinstance(value, (str, int)):
        raise UserError(f"{where} has class {value!r:.40}, expected an integer or a name; correct it")
    check_class(where, label := str(int(value) if isinstance(value, bool) else value).strip())
    return label
