"""Rows of numbers, one per evaluated round, in memory and as JSON lines in a file; non-finite numbers become null."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.records import Damaged

_TAIL = 2**16  # bytes that hold the last row


class Rows:
    """The rows, in the order of rounds; also in a file, if there is a path."""

    def __init__(self, path: Path | None = None):
        self.rows: list[dict[str, Any]] = []
        self._path, self._sha = path, hashlib.sha256()

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row, also to the file."""
        self.rows.append(dict(row))
        if self._path:
            line = _line(row)
            self._sha.update(line)
            with files.appending(self._path) as file:
                file.write(line)

    def flush(self) -> None:
        """Waits until the rows are on the disk."""
        if self._path and self.rows:
            files.flush([self._path, self._path.parent])

    @property
    def sha256(self) -> str:
        """The hash of all lines of the file."""
        return self._sha.hexdigest()

    @classmethod
    def read(cls, path: Path, until: int) -> "Rows":
        """Reads the rows up to a round. Later rows, and a last line that a kill left incomplete, are ignored.

        Raises:
            Damaged: names a line that is not a row, or whose round does not come after the previous one.
        """
        read = cls(path)
        for number, line in enumerate(_lines(path) if until else (), 1):
            row, before = _parse(line), read.rows[-1]["round"] if read.rows else 0
            if row is None:
                raise Damaged(f"{path}, line {number}: this row differs from what was written")
            if row["round"] <= before:
                raise Damaged(f"{path}, line {number}: round {row['round']} comes after round {before}")
            if row["round"] > until:
                break
            read.rows.append(row)
            read._sha.update(_line(row))
            if row["round"] == until:
                break
        return read

    @classmethod
    def salvage(cls, path: Path, rounds: Iterable[int]) -> "Rows":
        """Reads the rows of these rounds, except for damaged and missing rows."""
        read, found = cls(path), {}
        for row in filter(None, map(_parse, _lines(path))):
            found.setdefault(row["round"], row)
        read.rows = [found[round] for round in rounds if round in found]
        for row in read.rows:
            read._sha.update(_line(row))
        return read

    def cut(self) -> None:
        """Removes everything after the last row from the file."""
        with files.whole(self._path) as file:
            file.write(b"".join(map(_line, self.rows)))


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file atomically: a reader sees the old file or the new one."""
    with files.whole(path) as file:
        file.write((json.dumps(_plain(content), indent=2) + "\n").encode())


def last_row(path: Path) -> dict[str, Any]:
    """Returns the last row of a file that may still grow; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = finished_lines(file.read())
    except (OSError, ValueError):  # the locale may be unable to encode the name
        lines = []
    return (_parse(lines[-1]) if lines else None) or {}


def finished_lines(content: bytes) -> list[bytes]:
    """Returns the complete lines, without a last line that a crash has cut short."""
    return content.split(b"\n")[:-1]


def _lines(path):
    """Returns the complete lines of a file; none if it cannot be read."""
    try:
        return finished_lines(files.read(path))
    except OSError:
        return []


def _parse(line):
    """Returns the row of a line, with NaN for null; None if it is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _with_nan(row) if isinstance(row, dict) and type(row.get("round")) is int else None


def _line(row):
    return (json.dumps(_plain(row)) + "\n").encode()


def _plain(value):
    """Converts a value to JSON types, with null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_nan(value):
    """Returns the value with NaN where ``_plain`` has put null."""
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value
