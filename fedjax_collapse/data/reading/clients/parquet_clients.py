"""Parquet files with a column of clients, read client by client, in any order of rows and in bounded memory.

The column of clients is read first, with that of several labels: four bytes are stored per row. Then come batches of
clients, as many as fit in memory by the mean size of a row; each batch reads the row groups that have rows of its
clients. Where rows are grouped by client, each row group is read about once, else once for every batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.clients.natural_clients import Client, check_client, held_out_of_owners
from fedjax_collapse.data.reading.images.encoded import Decoding, decode_all, named_class
from fedjax_collapse.data.reading.images.hugging_face import Columns, choose_columns, class_names_in, examples_of
from fedjax_collapse.data.reading.parts import find_files
from fedjax_collapse.data.reading.tables import checked, read_table, reading_table
from fedjax_collapse.data.reading.tables.tabular import class_order
from fedjax_collapse.data.reading.text import multi_hot
from fedjax_collapse.data.stream import ClientExamples

BATCH_BYTES = 2**29  # of the rows that are in memory, as they are stored


class Index(NamedTuple):
    """Where the rows of clients are: of all files one after another, by row group."""

    groups: list[tuple[Path, int, int]]  # file, row group in it, first row of it among the rows of all files
    columns: Columns
    clients: list[Client]  # in the order in which they first appear
    owners: np.ndarray  # [rows] int32, index into ``clients``
    row_bytes: float
    class_names: tuple[str, ...] | None


def index_of(files: Sequence[Path], columns: Columns) -> Index:
    """Reads clients, and the names of classes or labels where these are texts.

    Raises:
        UserError: a file or a column is missing or cannot be read.
    """
    import pyarrow.parquet

    groups, owners, labels, number = [], [], set(), {}
    names, first, size = None, 0, 0
    for file in files:
        with reading_table(file, "Parquet"):
            facts, schema = pyarrow.parquet.read_metadata(file), pyarrow.parquet.read_schema(file)
        chosen = choose_columns(file, schema.names, columns)
        wanted = [chosen.client, chosen.label]
        table = read_table(file, "Parquet", lambda _, wanted=wanted: wanted)
        names = names or class_names_in(file, schema, chosen.label)
        clients, own_labels = (table[name].to_pylist() for name in wanted)
        for row, client in enumerate(clients):
            check_client(f"{file}: row {row}", client)
            owners.append(number.setdefault(client, len(number)))
        if chosen.several:
            labels.update(map(str, itertools.chain.from_iterable(own_labels)))
        else:
            labels.update(label for label in own_labels if isinstance(label, str))
        for group in range(facts.num_row_groups):
            groups.append((file, group, first))
            first += facts.row_group(group).num_rows
            size += facts.row_group(group).total_byte_size
    if not first:
        raise UserError(f"{files[0]}: it has no rows; expected at least one example, fetch or write it again")
    found = tuple(sorted(labels, key=None if chosen.several else class_order)) if labels else names and tuple(names)
    return Index(groups, chosen, list(number), np.array(owners, np.int32), size / first, found)


def stream_parquet(
    index: Index, chosen: np.ndarray, first: int = 0, *, decoding: Decoding, class_names: Sequence[str]
) -> Iterator[ClientExamples]:
    """Yields the clients in the order of the index, from position ``first`` on.

    Args:
        chosen: [rows] whether a row is read; clients without any are left out.
        class_names: those of labels that are names.

    Raises:
        UserError: an image, label or client is not as expected; the message names the row.
    """
    rows, number = np.flatnonzero(chosen), {name: row for row, name in enumerate(class_names)}
    rows = rows[np.argsort(index.owners[rows], kind="stable")]
    sizes = np.bincount(index.owners[rows], minlength=len(index.clients))
    starts = np.cumsum(sizes) - sizes
    clients = np.flatnonzero(sizes)[first:]
    budget = max(1, int(BATCH_BYTES / max(index.row_bytes, 1)))
    batch_of = (np.cumsum(sizes[clients]) - 1) // budget
    for batch in np.unique(batch_of):
        own = clients[batch_of == batch]
        of_client = [rows[starts[client] : starts[client] + sizes[client]] for client in own]
        examples = _read_rows(index, np.concatenate(of_client))
        for client, wanted in zip(own, of_client, strict=True):
            listed = [examples.pop(row) for row in wanted.tolist()]
            images, labels = decode_all(listed, decoding), [example.label for example in listed]
            if index.columns.several:
                targets = multi_hot(labels, class_names)
            else:
                targets = np.array([label if isinstance(label, int) else named_class(example, number)
                                    for example, label in zip(listed, labels, strict=True)])  # fmt: skip
            yield ClientExamples(index.clients[client], images, targets)


def open_parquet(
    path: str | Path, columns: Columns, validation: str, test_fraction: float, seed: int
) -> tuple[tuple[Index, np.ndarray], tuple[Index, np.ndarray]]:
    """Returns the index and the rows of the training and of the test part; without test files these are held out.

    Raises:
        UserError: as in ``index_of``; if no example would be tested.
    """
    if not columns.client:
        raise UserError(f"{path}: it is read client by client; set data.client_column")
    train_files, test_files = find_files(path, "Parquet", validation)
    index = index_of(train_files, columns)
    if test_files:
        test = index_of(test_files, columns)
        return (index, np.ones(len(index.owners), bool)), (test, np.ones(len(test.owners), bool))
    is_test = held_out_of_owners(index.owners, test_fraction, seed)
    if not is_test.any():
        raise UserError(
            f"{path}: it has no test part, and test_fraction {test_fraction:g} is none of any client's rows"
        )
    return (index, ~is_test), (index, is_test)


def _read_rows(index: Index, rows: np.ndarray) -> dict[int, Any]:
    """Returns the encoded examples of some rows."""
    import pyarrow.parquet

    rows, examples = np.sort(rows), {}
    firsts = np.array([first for _, _, first in index.groups] + [len(index.owners)])
    for number in np.unique(np.searchsorted(firsts, rows, "right") - 1):
        file, group, first = index.groups[number]
        own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, firsts[number + 1])]
        with reading_table(file, "Parquet"), pyarrow.parquet.ParquetFile(file) as table:
            wanted = list(dict.fromkeys(filter(None, index.columns.names())))
            read = checked(file, table.read_row_group(group, wanted)).take(own - first)
        start = next(begin for name, _, begin in index.groups if name == file)
        examples |= zip(own.tolist(), examples_of(file, read, index.columns, own - start), strict=True)
    return examples
