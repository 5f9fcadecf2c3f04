"""Locks on folders: one process at a time, or several that divide the runs of a study."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedjax_collapse.config.folder import LOCK, START_LOCK
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError


@contextlib.contextmanager
def only_process_in(folder: Path, shared: bool = False) -> Iterator[Callable[[], bool]]:
    """Keeps other processes out of the folder; the system releases the lock when this process ends for any reason.

    If files cannot be locked, as on some network file systems, nothing is locked, and the folder cannot be shared.
    Yields a function that returns whether no other process is left in the folder.

    Args:
        folder: the folder of a study.
        shared: whether other processes that share the folder may enter too.

    Raises:
        UserError: another process is in it, or it cannot be shared.
    """
    with files.appending(folder / LOCK) as file:
        if not _is_locked(file, shared):
            raise UserError(f"{folder}: another process runs this study; wait for it, or stop it")
        yield lambda: _is_locked(file)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Waits until no other process is in such a section, which protects files that all processes of a folder write."""
    with files.appending(folder / START_LOCK) as file:
        with contextlib.suppress(OSError):
            files.lock(file, waits=True)
        yield


@contextlib.contextmanager
def taken(run: Path, worker_group: str) -> Iterator[bool]:
    """Locks the run's folder and yields whether this process may train the run.

    It may unless another process has the lock, or a process of the same ``worker_group`` has had it: a group's
    processes try each run once, even if it killed the process that tried it.
    """
    run.mkdir(parents=True, exist_ok=True)
    with files.appending(run / LOCK) as file:
        is_free = _is_locked(file, must=True)
        file.seek(0)
        is_free = is_free and file.read().decode(errors="replace").split()[:1] != [worker_group]
        if is_free:
            file.truncate(0)
            file.write(f"{worker_group} {os.getpid()}".encode())
            file.flush()
        yield is_free


def holder(run: Path, worker_group: str) -> int | None:
    """Returns the process of the group that has, or last had, the run's folder; None if there is none."""
    try:
        group, process = (run / LOCK).read_text().split()
    except (OSError, ValueError):
        return None
    return int(process) if group == worker_group else None


def _is_locked(file, shared=False, must=False):
    """Returns whether this process has the lock now, or files cannot be locked."""
    must = must or shared
    try:
        return files.lock(file, shared)
    except OSError as error:
        if must:
            raise UserError(f"{file.name}: files cannot be locked here ({error}), so runs cannot be divided") from error
    return True
