"""Locks on the folders of a study and of its runs, which are released when their process ends for any reason."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedjax_collapse.config.folder import LOCK, START_LOCK
from fedjax_collapse.core.records import UserError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Locks the folder of a run or a study until the body ends; yields False if another process has locked it.

    A folder that holds nothing else afterwards is removed, and so are the empty folders above it that this made.
    """
    made = [place for place in folder.parents if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        if os.listdir(folder) == [LOCK]:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):
                for place in made:
                    place.rmdir()
        lock.release()


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Locks the folder of a study until the body ends.

    Raises:
        UserError: another process has locked it.
    """
    with locked(folder) as is_mine:
        if not is_mine:
            raise UserError(f"{folder}: another process runs this study; wait for it, or stop it")
        yield


def one_at_a_time(folder: Path) -> FileLock:
    """Returns a lock for files that all processes of a study write; it is waited for."""
    return FileLock(folder / START_LOCK)
