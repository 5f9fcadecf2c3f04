"""Sources of tables in Hugging Face's layout with encoded images: Parquet files, and Arrow files of ``save_to_disk``.

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
    image_column: the column with the images; ``''`` finds it.
    label_column: the column with the classes, integers or names; ``''`` finds it.
    client_column: the column with the natural clients, such as ``writer_id``, for the partition ``given``.
    coarse_column: the column with the classes above the classes, such as ``coarse_label``, for ``pachinko``.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.images import encoded
from fedjax_collapse.data.reading.natural_clients import Client, check_client, held_out_of_owners
from fedjax_collapse.data.reading.parts import VALIDATION, find_files
from fedjax_collapse.data.reading.tables import checked, choose_column, read_table, reading_table
from fedjax_collapse.data.reading.tables.tabular import check_class, class_order, numbered
from fedjax_collapse.data.reading.text import multi_hot
from fedjax_collapse.data.reading.untrusted import parse_json
from fedjax_collapse.data.source import Channels, Scale, Share, Size, Source, from_files
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import ClientExamples, Stream
from fedjax_collapse.schema.options import Seed

BATCH_BYTES = 2**29  # of the rows that are in memory, as they are stored
_USUAL = {"image": ("image", "img"), "label": ("label", "labels", "fine_label", "character")}


def _tables(kind: str, what: str) -> Callable[..., Source]:
    """Returns the source of a folder of files of a kind, in Hugging Face's layout."""

    def read(
        path: str | Path,
        image_column: str = "",
        label_column: str = "",
        client_column: str = "",
        coarse_column: str = "",
        task: Annotated[str, ("classification", "multi_label")] = "classification",
        validation: Annotated[str, VALIDATION] = "unused",
        test_fraction: Share = 0.2,
        seed: Seed = 0,
        classes: tuple[str, ...] = (),
        image_size: Size = 0,
        channels: Channels = 3,
        scale: Scale = None,
        normalisation: Normalisation = "unit",
    ) -> Arrays:
        columns = dict(image=image_column, label=label_column, client=client_column, coarse=coarse_column)
        listing = _listing(path, kind, columns, task == "multi_label", validation, test_fraction, seed)
        arrays = encoded.decode_listing(listing, classes, encoded.Decoding(image_size, channels, scale=scale))
        return arrays | {"task": np.array(task)}

    read.__name__ = read.__qualname__ = kind.lower()
    read.__doc__ = f"""A folder of {kind} files in Hugging Face's layout{what}

    Without test files, part of the examples of each client, or of each class, is held out.

    Args:
        task: ``multi_label`` where an example has a list of labels by name (FLAIR).

    Raises:
        UserError: if a file is missing or unreadable; the message names it.
    """
    return from_files(read)


parquet = _tables("Parquet", ": ``train*.parquet`` and ``test*.parquet``.")
arrow = _tables("Arrow", ", as ``save_to_disk`` writes it: ``train/*.arrow``, ``test/...``.")


def parquet_clients(
    path, image_column, label_column, client_column, coarse_column, task, validation, test_fraction, seed, classes,
    image_size, channels, scale, normalisation,
):  # fmt: skip
    """Returns the stream of Parquet files with a column of clients, in the order of their first rows.

    First the columns of clients and of several labels are read, four bytes per row. Then clients are read in batches
    that fit in memory by the mean size of a row; each batch reads the row groups with rows of its clients. If rows are
    grouped by client, each row group is read about once, else once for every batch.
    """
    if classes or coarse_column:
        raise UserError("data.classes and data.coarse_column: clients are read one by one; leave them out")
    if scale == "max":
        raise UserError("data.scale=max needs all images, but clients are read one by one; give the number")
    if not client_column:
        raise UserError(f"{path}: it is read client by client; set data.client_column")
    columns, several = dict(image=image_column, label=label_column, client=client_column), task == "multi_label"
    parts = [_index_of(files, columns, several) for files in find_files(path, "Parquet", validation) if files]
    rows = [np.ones(len(index.owners), bool) for index in parts]
    if len(parts) == 1:
        is_test = held_out_of_owners(parts[0].owners, test_fraction, seed)
        parts, rows = parts * 2, [~is_test, is_test]
    if not rows[1].any():
        raise UserError(f"{path}: no test part, and test_fraction {test_fraction:g} holds out no row of any client")
    names = parts[0].class_names
    decoding = encoded.Decoding(image_size, channels, scale=scale)
    options = dict(several=several, decoding=decoding, class_names=names or ())
    train, test = (functools.partial(_clients_of, *part, **options) for part in zip(parts, rows, strict=True))
    return Stream(str(path), train, test, len(parts[0].clients), names, task, normalisation)


def _listing(path, kind, columns, several, validation, test_fraction, seed):
    """Lists the images of the files of both parts (``parts.find_files``) of a ``kind``, Parquet or Arrow.

    Without test files, a ``test_fraction`` of each client, else of each class, is held out. An image is a struct with
    its encoded ``bytes``, or only these bytes. A class is a name, or an integer whose name Hugging Face's metadata may
    have; with ``several`` the label is a list of names.
    """
    names, parts = {}, []
    for files in find_files(path, kind, validation):
        parts.append(part := [])
        for file in files:
            table, chosen = _read(file, kind, columns)
            part += _examples(file, table, chosen, several, range(len(table)))
            names[file] = not several and _class_names_in(file, table.schema, chosen["label"])
        if files and not part:
            raise UserError(f"{files[0]}: it has no rows; expected at least one example, fetch or write it again")
    train, test = parts if parts[1] else encoded.divide(path, parts[0], test_fraction, seed)
    labels = [example.label for example in train]
    if several:
        return encoded.Listing(train, test, sorted({name for own in labels for name in own}))
    if isinstance(labels[0], str):
        return encoded.Listing(train, test, sorted(map(str, set(labels)), key=class_order))
    named = [(file, own) for file, own in names.items() if own]
    for file, own in named:
        if own != named[0][1]:
            raise UserError(f"{file}: other class names than {named[0][0].name}; expected the files of one data set")
    return encoded.Listing(train, test, named[0][1] if named else numbered(path, labels))


def _read(file, kind, columns, keys=None):
    """Returns the chosen columns of a table, by default all, and their names by key."""
    chosen = {}

    def choose(existing):
        for key, name in columns.items():
            if name or key in _USUAL:
                chosen[key] = choose_column(file, existing, key, name, _USUAL.get(key, ()))
        return [chosen[key] for key in keys or chosen]

    return read_table(file, kind, choose), chosen


def _class_names_in(file, schema, label):
    """Returns the class names in Hugging Face's metadata of a table, or None without names."""
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        classes = parse_json(metadata).get("info", {}).get("features", {}).get(label, {}).get("names")
        return classes and list(map(str, classes))
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{file}: Hugging Face's metadata in it cannot be read; fetch or write it again") from None


def _examples(file, table, columns, several, numbers):
    """Returns the examples of a table; ``numbers`` are the row numbers in the file, for messages."""
    values = zip(*(table[name].to_pylist() for name in columns.values()), strict=True)
    return [
        _example(f"{file}: row {row}", columns, several, **dict(zip(columns, own, strict=True)))
        for row, own in zip(numbers, values, strict=True)
    ]


def _example(where, names, several, image, label, client=None, coarse=None):
    content = image.get("bytes") if isinstance(image, dict) else image
    if isinstance(label, list) != several:
        found, expected = ("no list", "one of names") if several else ("a list", "one class")
        hint = "" if several else ", or data.task='multi_label'"
        raise UserError(f"{where} has {found} in {names['label']!r}, expected {expected}; set data.label_column{hint}")
    if not isinstance(content, bytes) or not isinstance(label, (int, str, list)):
        raise UserError(
            f"{where} has no encoded image in {names['image']!r}, or neither an integer nor a name in "
            f"{names['label']!r}"
        )
    if isinstance(label, str):
        check_class(where, label)
    if "client" in names:
        check_client(where, client)
    if "coarse" in names and not isinstance(coarse, int):
        raise UserError(f"{where} has {coarse!r:.40} in {names['coarse']!r}; expected an integer")
    own = tuple(map(str, label)) if several else label if isinstance(label, str) else int(label)
    return encoded.Encoded(content, where.replace(": row", ", row"), own, client=client, coarse=coarse)


class _Index(NamedTuple):
    """The rows of clients in the concatenated files, by row group."""

    groups: list[tuple[Path, int, int, int]]  # file, row group in it, first row of the file and of it among all rows
    columns: dict[str, str]
    clients: list[Client]  # in the order in which they first appear
    owners: np.ndarray  # [rows] int32, index into ``clients``
    row_bytes: float
    class_names: tuple[str, ...] | None


def _index_of(files, columns, several):
    """Reads clients, and the names of classes or labels that are texts."""
    import pyarrow.parquet

    groups, owners, labels, number = [], [], set(), {}
    names, first, size = None, 0, 0
    for file in files:
        table, chosen = _read(file, "Parquet", columns, keys=("client", "label"))
        names = names or _class_names_in(file, table.schema, chosen["label"])
        for row, client in enumerate(table[chosen["client"]].to_pylist()):
            check_client(f"{file}: row {row}", client)
            owners.append(number.setdefault(client, len(number)))
        own = table[chosen["label"]].to_pylist()
        labels |= set(map(str, itertools.chain(*own))) if several else {each for each in own if isinstance(each, str)}
        facts, start = pyarrow.parquet.read_metadata(file), first
        for place, group in enumerate(map(facts.row_group, range(facts.num_row_groups))):
            groups.append((file, place, start, first))
            first, size = first + group.num_rows, size + group.total_byte_size
    if not first:
        raise UserError(f"{files[0]}: it has no rows; expected at least one example, fetch or write it again")
    found = tuple(sorted(labels, key=None if several else class_order)) if labels else names and tuple(names)
    return _Index(groups, chosen, list(number), np.array(owners, np.int32), size / first, found)


def _clients_of(index, chosen, first: int = 0, *, several, decoding, class_names) -> Iterator[ClientExamples]:
    """Yields the clients in the order of the index, from position ``first`` on.

    Args:
        index: of the files.
        chosen: [rows] whether to read a row; clients without such rows are left out.
        first: a position.
        several: whether an example has several labels.
        decoding: of images.
        class_names: the names of classes, if labels are names.
    """
    rows, number = np.flatnonzero(chosen), {name: row for row, name in enumerate(class_names)}
    rows = rows[np.argsort(index.owners[rows], kind="stable")]
    of_client = [own for own in np.split(rows, np.flatnonzero(np.diff(index.owners[rows])) + 1) if len(own)][first:]
    budget = max(1, int(BATCH_BYTES / max(index.row_bytes, 1)))
    batch_of = (np.cumsum([len(own) for own in of_client], dtype=int) - 1) // budget
    for batch in np.unique(batch_of):
        of_batch = [of_client[place] for place in np.flatnonzero(batch_of == batch)]
        examples = _read_rows(index, several, np.concatenate(of_batch))
        for own in of_batch:
            listed = [examples.pop(row) for row in own.tolist()]
            labels = [encoded.class_of(each, number) if isinstance(each.label, str) else each.label for each in listed]
            targets = multi_hot(labels, class_names) if several else np.array(labels)
            yield ClientExamples(index.clients[index.owners[own[0]]], encoded.decode_all(listed, decoding), targets)


def _read_rows(index, several, rows):
    """Returns the encoded examples of some rows."""
    import pyarrow.parquet

    rows, examples = np.sort(rows), {}
    firsts = np.array([first for *_, first in index.groups] + [len(index.owners)])
    for number in np.unique(np.searchsorted(firsts, rows, "right") - 1):
        file, group, start, first = index.groups[number]
        own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, firsts[number + 1])]
        with reading_table(file, "Parquet"), pyarrow.parquet.ParquetFile(file) as table:
            wanted = list(dict.fromkeys(index.columns.values()))
            read = checked(file, table.read_row_group(group, wanted)).take(own - first)
        examples |= zip(own.tolist(), _examples(file, read, index.columns, several, own - start), strict=True)
    return examples
