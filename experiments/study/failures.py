"""What ends a run without ending its study: one line that says what went wrong, and a log with the rest of it."""

import contextlib
import dis
import errno
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.study.folder import ERROR_LOG, is_finished
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError

_LONGEST = 400  # characters of such a line
_OF_THE_DISK = {errno.ENOSPC: "No space left", errno.EDQUOT: "quota exceeded", errno.EROFS: "Read-only file system"}


class RunsFailed(Exception):
    """Some runs of a study failed, the others are finished, or its report could not be written; ``lines`` has one for
    each failure."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def one_line(error: BaseException) -> str:
    """The message without line breaks, and without what is in a traceback before its last line."""
    head, *rest = str(error).split("Traceback (most recent call last):")
    last = rest[-1].strip().splitlines()[-1] if rest else ""
    return " ".join(f"{head} {last}".split()) or type(error).__name__


def explain(error: BaseException) -> str:
    """One line on what went wrong: a UserError says it, anything else has its type before it."""
    text, kind = one_line(error), type(error).__name__
    if isinstance(error, UserError) or text == kind:
        return text
    return f"{kind}: {text if len(text) <= _LONGEST else text[:_LONGEST] + ' ...'}"


def is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, which comes between any two operations, and no ``raise KeyboardInterrupt`` of some code."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is None or dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS"


def is_of_the_disk(error: BaseException) -> bool:
    """Whether a file could not be written because there is no room, whoever says so: other runs would fail, too."""
    for cause in _causes(error):
        if getattr(cause, "errno", None) in _OF_THE_DISK or any(text in str(cause) for text in _OF_THE_DISK.values()):
            return True
    return False


def write_failure(run: Path, line: str, error: BaseException | None = None) -> None:
    """Leaves the line, and the error's traceback, in the folder of a run that is not finished, if it can be written."""
    if is_finished(run):
        return
    trace = "".join(traceback.format_exception(error)) if error else ""
    with contextlib.suppress(OSError):
        run.mkdir(parents=True, exist_ok=True)
        (run / ERROR_LOG).write_text(f"{line}\n\n{trace}", encoding="utf-8")


def read_failure(run: Path) -> str | None:
    """Why the run failed when it was tried last; None if it did not."""
    try:
        return files.read(run / ERROR_LOG).decode().partition("\n")[0]
    except (OSError, ValueError):  # also where no file can have that name
        return None


def forget_failure(run: Path) -> None:
    """Removes the log, as the run is tried again."""
    (run / ERROR_LOG).unlink(missing_ok=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
