"""Listings of the files below a folder, in an order that does not depend on the machine."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.untrusted import is_unicode

_CLUTTER = {"Thumbs.db", "ehthumbs.db", "desktop.ini", "__MACOSX", "__pycache__"}
_MOST_NESTED = 100  # folders


def folders_in(folder: Path) -> list[Path]:
    """Returns the folders directly in ``folder`` that are not hidden, sorted by name.

    Raises:
        UserError: if the folder cannot be listed, or has a name that is not UTF-8.
    """
    return [Path(entry.path) for entry in _entries(folder) if _is_folder(entry)]


def files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yields all files below ``folder``, sorted by name, without hidden files and files created by desktops.

    Links are followed. ``above`` are the parents of this folder; links to them are not followed again.

    Raises:
        UserError: if a folder cannot be listed; if an entry is neither a folder nor a file, such as a pipe, because
            reading it might never end; if folders are nested too deeply.
    """
    above = above | {folder.resolve()}
    if len(above) > _MOST_NESTED:
        raise UserError(f"{folder}: more than {_MOST_NESTED} folders, one in another; expected fewer, move them away")
    for entry in _entries(folder):
        path = Path(entry.path)
        if not _is_folder(entry):
            check_is_file(path)
            yield path
        elif path.resolve() not in above:
            yield from files_below(path, above)


def check_is_file(path: Path | str) -> None:
    """Raises UserError for a pipe, a device or the like: reading it might never end. A missing path is valid."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path}: it is neither a file nor a folder; remove it, or give another path")


@contextlib.contextmanager
def reading(path: Path | str, problem: str, hint: str) -> Iterator[None]:
    """Turns exceptions into a one-line UserError with the path, the problem, the reason and a hint."""
    check_is_file(path)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # for damaged files, packages raise various exceptions
        raise UserError(f"{path}: {problem} ({reason_of(error)}); {hint}") from None


def reason_of(error: Exception) -> str:
    """Returns the message of an error in one line; of a missing key its name."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__


def file_below(folder: Path, name: str, where: str) -> Path:
    """Returns the path of a file that a data file names by its path below ``folder``, or by its whole path.

    The path must be below the folder; links in the folder may lead elsewhere.

    Args:
        where: the place of the name, for the message.

    Raises:
        UserError: for another path.
    """
    root, path = os.path.abspath(folder), Path(os.path.abspath(folder / name))
    if not path.is_relative_to(root):
        raise UserError(f"{where}: {name!r} is not in the folder {folder}; correct the name, or the folder")
    return folder / path.relative_to(root)


def fingerprint(path: Path) -> str:
    """Returns a hash of the names, sizes and modification times of all files below a folder, or of one file.

    Raises:
        UserError: if a folder cannot be listed.
    """
    digest = hashlib.sha256()
    for file in files_below(path) if os.path.isdir(path) else [path]:
        if os.path.exists(file):  # otherwise reading it raises an error
            state = file.stat()
            digest.update(f"{file.relative_to(path)}|{state.st_size}|{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _is_folder(entry):
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _entries(folder):
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in _CLUTTER]
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); make it readable, or move it away") from None
    for entry in shown:
        if not is_unicode(entry.name):
            raise UserError(f"{folder}: the name {os.fsencode(entry.name)!r} in it is not UTF-8; rename or remove it")
    return sorted(shown, key=lambda entry: entry.name)
