"""Files that are whole, and on the disk, from the moment at which they are in their place.

What is written lies in the memory of the system first, where a power failure takes it; ``fsync`` waits for the disk.
Only regular files are read and written: opening a pipe, or reading a device, might never end. Caches are in a folder of
the user's.
"""

import contextlib
import errno
import filecmp
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that have no such call, mostly for folders


def reading(path: Path) -> BinaryIO:
    """The regular file, open for reading in binary mode.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    return open(_open_regular(path, os.O_RDONLY), "rb")


def read(path: Path) -> bytes:
    """The content of a regular file; raises as ``reading``."""
    with reading(path) as file:
        return file.read()


@contextlib.contextmanager
def whole(path: Path, temporary: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write into; it takes the place of ``path`` in one step: a reader sees the old or the new one.

    A file with the same content stays as it is. ``temporary``: where it is until then, by default the same place for
    all writers, of which there is one at a time.
    """
    temporary = temporary or path.with_suffix(path.suffix + ".tmp")
    with open(_open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as file:
        yield file
        file.flush()
        _fsync(file.fileno())
    if path.is_file() and filecmp.cmp(temporary, path, shallow=False):
        temporary.unlink()
    else:
        os.replace(temporary, path)
    flush([path.parent])


@contextlib.contextmanager
def shared(path: Path) -> Iterator[BinaryIO]:
    """``whole`` for a file that several processes may write at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with whole(path, temporary) as file:
            yield file
    finally:
        temporary.unlink(missing_ok=True)


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


def cache_folder(kind: str) -> Path:
    """``$XDG_CACHE_HOME/fedjax_collapse/<kind>``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_collapse" / kind


def make_cache(folder: Path) -> None:
    """Makes a folder of a cache, and those above it that are missing, all of them this user's alone.

    Raises:
        OSError: it cannot be made.
    """
    for place in (*reversed(folder.parents), folder):
        if place == folder or not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def _open_regular(path, flags):
    """The descriptor of a regular file; a pipe is not waited for, and a device is not read."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return descriptor


def _fsync(descriptor):
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
