"""Files that are complete and on the disk when they appear under their name.

The system first holds written data in memory, where a power failure loses it; ``fsync`` waits for the disk. Only
regular files are read and written: opening a pipe, or reading a device, might never end. Caches are in the user's cache
folder.
"""

import contextlib
import errno
import filecmp
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fedjax_collapse.core.records import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)  # from file systems without fsync, mostly for folders


def reading(path: Path, follows_links: bool = False) -> BinaryIO:
    """Opens a regular file for reading in binary mode.

    Raises:
        UserError: it is a link, and ``follows_links`` is False.
        OSError: it cannot be opened, or is not a regular file.
    """
    return _opened(path, "rb", os.O_RDONLY if follows_links else os.O_RDONLY | os.O_NOFOLLOW)


def writing(path: Path, is_new: bool = False) -> BinaryIO:
    """Opens a regular file for reading and writing in binary mode, empty if ``is_new``.

    Raises:
        UserError: it is a link.
        OSError: it cannot be opened, or is not a regular file.
    """
    return _opened(path, "r+b", os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_TRUNC if is_new else 0))


def appending(path: Path) -> BinaryIO:
    """Opens a regular file for reading and for writing at its end, in binary mode.

    Raises:
        UserError: it is a link.
        OSError: it cannot be opened, or is not a regular file.
    """
    return _opened(path, "a+b", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def read(path: Path) -> bytes:
    """Returns the content of a regular file; for errors, see ``reading``."""
    with reading(path) as file:
        return file.read()


@contextlib.contextmanager
def whole(path: Path, temporary: Path | None = None) -> Iterator[BinaryIO]:
    """Opens a file for writing that replaces ``path`` in one step: readers see the old content or the new.

    A file with the same content is left untouched.

    Args:
        path: the file to replace.
        temporary: the path that the content is written to first. All writers share the default, so only one may write
            at a time.
    """
    temporary = temporary or path.with_suffix(path.suffix + ".tmp")
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with named(path), _opened(temporary, "wb", how) as file:
        yield file
        file.flush()
        _fsync(file.fileno())
    if path.is_file() and filecmp.cmp(temporary, path, shallow=False):
        temporary.unlink()
    else:
        os.replace(temporary, path)
    flush([path.parent])


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds the name of this file to an error of the disk that names none, such as that it is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def shared(path: Path) -> Iterator[BinaryIO]:
    """``whole``, for a file that several processes or threads write at the same time."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with whole(path, temporary) as file:
            yield file
    finally:
        temporary.unlink(missing_ok=True)


def lock(descriptor: int) -> bool:
    """Locks an open file or folder until it is closed; returns False if another process has it.

    Raises:
        OSError: files cannot be locked here.
    """
    if fcntl is None:
        raise OSError("this system has no fcntl")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def flush(paths: Iterable[Path]) -> None:
    """Waits until the content of these files, or the entries of these folders, are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


def cache_folder(kind: str) -> Path:
    """Returns ``$XDG_CACHE_HOME/fedjax_collapse/<kind>``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_collapse" / kind


def make_cache(folder: Path) -> None:
    """Makes a cache folder and its missing parents, accessible to this user only.

    Raises:
        OSError: it cannot be made.
    """
    for place in (*reversed(folder.parents), folder):
        if place == folder or not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def _opened(path, mode, flags):
    try:
        return open(path, mode, opener=lambda path, _: _open_regular(path, flags))
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise UserError(
                f"{path}: it is a link, expected a regular file; remove it, or choose a new folder"
            ) from error
        raise


def _open_regular(path, flags):
    """Returns the descriptor of a regular file, without waiting for a pipe or reading a device."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return descriptor


def _fsync(descriptor):
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
