"""Bounds of the sizes that data files declare: a few bytes of a damaged or hostile file can declare terabytes.

A file may take ``_TIMES`` its size in memory plus ``_SPARE`` bytes, more than compression gains on images and texts.
All functions raise a ValueError, whose message a reader adds to its error.
"""

import gzip
import json
import math
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_TIMES, _SPARE = 100, 2**27
ROW = 64  # bytes that a row takes at least, even an empty one, once it is an object of Python
_MOST_NESTED = 64  # brackets
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # NumPy's; of others a few bytes are unpacked at once to any size
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Implausible(ValueError):
    """A size beyond the bounds; the message is meant for the user."""


class Allowance:
    """The number of bytes that may still be read from some files.

    Args:
        path: the first of these files; ``of`` adds another.
    """

    def __init__(self, path: str | Path | None = None):
        self._stored = self._claimed = 0
        if path is not None:
            self.of(path)

    def of(self, path: str | Path) -> None:
        """Adds the bytes of another file."""
        self._stored += os.path.getsize(path)

    @property
    def left(self) -> int:
        return _TIMES * self._stored + _SPARE - self._claimed

    def take(self, count: int) -> None:
        """Subtracts some bytes.

        Raises:
            Implausible: if fewer are left.
        """
        self._claimed += int(count)
        if self.left < 0:
            raise Implausible(
                f"a file of {self._stored:,} bytes declares {self._claimed:,} bytes; if this is right, store it "
                "without compression"
            )


def parse_json(content: str | bytes, by_key: Callable[[list], Any] | None = None) -> Any:
    """Returns the value of a JSON text; ``by_key`` builds objects from their pairs of key and value.

    Raises:
        ValueError: if it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(content, object_pairs_hook=by_key)
    except RecursionError:
        raise Implausible("it is nested too deeply") from None


def check_nesting(file: BinaryIO) -> None:
    """Raises Implausible if a line of JSON is nested too deeply."""
    for line in file:
        if line.count(b"[") + line.count(b"{") <= _MOST_NESTED:
            continue
        depth, is_text = 0, False
        for token in re.finditer(rb'\\.|["\[\]{}]', line):
            is_text ^= token[0] == b'"'
            if not is_text and token[0] in b"[]{}":
                depth += 1 if token[0] in b"[{" else -1
            if depth > _MOST_NESTED:
                raise Implausible("it is nested too deeply")


def unzipped(path: Path) -> bytes:
    """Returns the content of a gzip file.

    Raises:
        Implausible: if the content is too large.
        OSError, EOFError, zlib.error: if the file cannot be read, or is damaged.
    """
    allowance = Allowance(path)
    with gzip.open(path) as file:
        content = file.read(allowance.left + 1)
    allowance.take(len(content))
    return content


def read_header(stream: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    """Returns the shape and dtype in the header of a ``npy`` file.

    Raises:
        ValueError, KeyError: if it is not such a file.
    """
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    return shape, dtype


def check_member(archive: zipfile.ZipFile, name: str, allowance: Allowance) -> None:
    """Raises Implausible if a ``npy`` file in a zip file is too large, or declares a larger array than it holds."""
    info = archive.getinfo(name)
    if info.compress_type not in _METHODS:
        raise Implausible(f"{name} is not compressed as NumPy does")
    allowance.take(info.file_size)
    with archive.open(info) as stream:
        shape, dtype = read_header(stream)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > info.file_size:
        raise Implausible(f"{name} has {info.file_size:,} bytes for {dtype}{list(shape)}")


def is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded: JSON and file names may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
