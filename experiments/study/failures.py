"""Failures of runs, which do not end the study: a one-line message, and a log with the traceback."""

import contextlib
import errno
import traceback
from collections.abc import Iterable
from pathlib import Path

from fedjax_collapse.config.folder import ERROR_LOG, is_finished
from fedjax_collapse.core import files, processes
from fedjax_collapse.core.records import UserError

_OF_THE_DISK = {errno.ENOSPC: "No space left", errno.EDQUOT: "quota exceeded", errno.EROFS: "Read-only file system"}

_expected: set[Path] = set()  # the run that this worker trains


class RunsFailed(Exception):
    """Some runs of a study failed, the others being finished, or its report could not be written.

    ``lines`` has a message for each failure.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def is_of_the_disk(error: BaseException) -> bool:
    """Returns whether a write failed because the disk is full or read-only, so that other runs would fail too."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "errno", None) in _OF_THE_DISK or any(text in str(cause) for text in _OF_THE_DISK.values()):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@processes.in_first_process
def write_failure(run: Path, line: str, error: BaseException | None = None) -> None:
    """Writes the message and the error's traceback to the folder of an unfinished run, if possible."""
    _expected.discard(run)
    if is_finished(run):
        return
    trace = "".join(traceback.format_exception(error)) if error else ""
    with contextlib.suppress(OSError, UserError):
        run.mkdir(parents=True, exist_ok=True)
        with files.whole(run / ERROR_LOG) as file:
            file.write(f"{line}\n\n{trace}".encode(errors="backslashreplace"))


def expect_kill(run: Path, name: str) -> None:
    """Writes a failure that stays if this worker is killed before it calls ``forget_failure``.

    So no other worker tries the run, which may have exhausted the memory.
    """
    write_failure(run, f"{name}: its process was killed, perhaps because memory was exhausted")
    _expected.add(run)


def expect_no_kill() -> None:
    """Forgets what ``expect_kill`` wrote, because the run will be tried again."""
    forget_failure(*_expected)


def read_failure(run: Path) -> str | None:
    """Returns the message of the run's last failure; None if it did not fail."""
    try:
        return files.read(run / ERROR_LOG).decode().partition("\n")[0]
    except (OSError, ValueError):  # also if the name is invalid
        return None


@processes.in_first_process
def forget_failure(*runs: Path) -> None:
    """Removes the logs of the runs before they are tried again."""
    for run in runs:
        _expected.discard(run)
        (run / ERROR_LOG).unlink(missing_ok=True)
