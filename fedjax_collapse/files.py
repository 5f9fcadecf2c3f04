"""Files that are whole, and on the disk, from the moment at which they are in their place.

What is written lies in the memory of the system first, where a power failure takes it; ``fsync`` waits for the disk.
"""

import contextlib
import errno
import filecmp
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that have no such call, mostly for folders


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into; it takes the place of ``path`` in one step: a reader sees the old or the new one.

    A file with the same content stays as it is.
    """
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        _fsync(file.fileno())
    if path.is_file() and filecmp.cmp(temporary, path, shallow=False):
        temporary.unlink()
    else:
        os.replace(temporary, path)
    flush([path.parent])


def flush(paths: Iterable[Path]) -> None:
    """Waits until the disk has what is in these files; of a folder, its names."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


def flush_all(folder: Path) -> None:
    """``flush`` of the folder and of all that is in it."""
    flush([*folder.rglob("*"), folder])


def _fsync(descriptor):
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
