"""Partitions from files: example indices, and the split file of FLamby's ISIC2019."""

import csv
import json
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import check_is_file


def read_indices(path: str, num_examples: int) -> list[np.ndarray]:
    """Reads the rows of each client from a JSON list (or object) with one list of rows per client.

    Raises:
        UserError: if there is no such file, if it is not such a list, or if a row is out of range or listed twice.
    """
    content = _read(path)
    try:
        stored = json.loads(content)
        stored = list(stored.values()) if isinstance(stored, dict) else stored
        parts = [np.array(rows) for rows in stored]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: expected a JSON list with one list of rows per client ({error})") from None
    for client, rows in enumerate(parts):
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
            raise UserError(f"{path}: client {client}: expected a list of at least one row, got {stored[client]!r:.60}")
    every = np.concatenate(parts) if parts else np.zeros(0, int)
    if len(every) and (every.min() < 0 or every.max() >= num_examples):
        raise UserError(
            f"{path}: rows {every.min()} to {every.max()} are not all among the {num_examples} examples; the file "
            f"belongs to other data"
        )
    if len(twice := np.flatnonzero(np.bincount(every) > 1)):
        raise UserError(f"{path}: row {twice[0]} is listed more than once; every example has at most one owner")
    return parts


def read_isic2019(path: str, fold: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Reads image names, classes and centres of a ``fold`` (train or test) of FLamby's ``train_test_split``, in order.

    Raises:
        UserError: if there is no such file, or if it is another file.
    """
    rows = [row for row in csv.DictReader(_read(path).splitlines()) if row.get("fold") == fold]
    try:
        columns = [(row["image"], int(row["target"]), int(row["center"])) for row in rows]
    except (KeyError, ValueError, TypeError):
        columns = []
    if not columns:
        raise UserError(
            f"{path}: expected FLamby's train_test_split, a table with the columns image, target, center and fold, "
            f"some of them {fold}"
        )
    names, targets, centers = zip(*columns, strict=True)
    return list(names), np.array(targets), np.array(centers)


def _read(path):
    check_is_file(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: undecodable bytes, or an invalid path
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); give the path of a partition file") from None
