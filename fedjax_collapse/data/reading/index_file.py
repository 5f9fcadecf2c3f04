"""Partitions from files: example indices, and the split file of FLamby's ISIC2019."""

import csv
import functools
import re
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.reading.natural_clients import check_client
from fedjax_collapse.data.reading.untrusted import parse_json


class NamedParts(list):
    """The rows of each client, with the clients' ``names``."""

    names: tuple[str, ...] = ()


def read_indices(path: str, num_examples: int, repeated: bool = False) -> list[np.ndarray]:
    """Reads the rows of each client from a JSON list, or object, with one list of rows per client.

    The keys of an object are the numbers of the clients, from 0, in any order, or names, in the order of the file.

    Raises:
        UserError: if there is no such file, if it is not such a list, if a key occurs twice or numbers are not 0 to the
            number of clients less 1, if a row is out of range, or, unless ``repeated``, listed twice.
    """
    expected = "expected a JSON list with one list of rows per client, give the path of a partition file"
    with reading(path, "cannot be read", expected):
        stored = parse_json(Path(path).read_text("utf-8"), functools.partial(_by_key, path))
        names = tuple(stored) if isinstance(stored, dict) else ()
        for name in names:
            check_client(f"{path}: it", name)
        parts = NamedParts(map(np.array, stored.values() if names else stored))
    for client, rows in zip(names or range(len(parts)), parts, strict=True):
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
            raise UserError(f"{path}: client {client}: expected a list of at least one row, got {rows.tolist()!r:.60}")
    if any(_is_number(name) for name in names):
        numbers = [int(name) if _is_number(name) else -1 for name in names]
        if sorted(numbers) != list(range(len(parts))):
            raise UserError(
                f"{path}: keys {', '.join(names)[:60]}: expected the clients' numbers 0 to {len(parts) - 1}, each "
                "once, or names that are no numbers"
            )
        parts = NamedParts(parts[i] for i in np.argsort(numbers))
    else:
        parts.names = names
    every = np.concatenate(parts) if parts else np.zeros(0, int)
    if len(every) and (every.min() < 0 or every.max() >= num_examples):
        raise UserError(
            f"{path}: rows {every.min()} to {every.max()} are not all among the {num_examples} examples; the file "
            f"belongs to other data"
        )
    if not repeated and len(twice := np.flatnonzero(np.bincount(every) > 1)):
        raise UserError(f"{path}: row {twice[0]} is listed more than once; partition.repeated=True allows it")
    return parts


def _by_key(path, pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"{path}: key {twice!r} is there more than once; expected each client once")
    return found


def _is_number(key):
    return re.fullmatch(r"-?\d{1,18}", key, re.ASCII) is not None


def read_isic2019(path: str, fold: str) -> list[tuple[str, int, int]]:
    """Reads image name, class and centre of each line of a ``fold`` (train or test) of FLamby's ``train_test_split``.

    Raises:
        UserError: if there is no such file, or if it is another file.
    """
    expected = "expected FLamby's train_test_split, a table with the columns image, target, center and fold"
    with reading(path, "cannot be read", expected):
        rows = csv.DictReader(Path(path).read_text("utf-8").splitlines())
        found = [(row["image"], int(row["target"]), int(row["center"])) for row in rows if row["fold"] == fold]
        if not found:
            raise ValueError(f"no line of fold {fold}")
    return found
