"""What is shown while a command works: after three seconds a bar on a terminal, elsewhere one line.

    with wait("reading 600 runs", 600) as advance:
        for run in runs:
            ...
            advance()

A shorter wait shows nothing, and when a wait ends, its bar disappears. Waits may be nested.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any, TextIO

PATIENCE = 3.0  # seconds before anything is shown
_PER_SECOND = 2  # times that a bar is drawn; few, since programs may be timed meanwhile
Advance = Callable[..., None]
Wait = Callable[..., contextlib.AbstractContextManager[Advance]]


@contextlib.contextmanager
def wait(
    what: str, total: int | None = None, terminal: Any = None, say: Callable[[str], None] | None = None
) -> Iterator[Advance]:
    """Shows what the command is doing, once the body has taken three seconds.

    It yields ``advance(parts=1, total=None)``, which counts parts that are done; ``total`` is the number of all parts
    if that was not known before.

    Args:
        what: the work, in a few words.
        total: the number of its parts; None if unknown.
        terminal: a ``rich.console.Console`` for the bar, as ``terminal_of`` returns it.
        say: prints a line where there is no terminal; by default bar and line are on standard error.
    """
    if say is None:
        terminal, say = terminal_of(sys.stderr), _say
    bar, update = _bar(what, terminal) if terminal else (None, lambda **changes: None)
    lock, done, is_over = threading.Lock(), 0, False

    def advance(parts: int = 1, total: int | None = total) -> None:
        nonlocal done
        done += parts
        update(completed=done, total=total, count=f"{done}/{total}" if total else f"{done}")

    def show():
        with lock, contextlib.suppress(OSError):
            if bar and not is_over:
                bar.start()
                bar.refresh()  # for a nested one
            elif not is_over:
                say(f"{what} ...")

    if total:
        advance(0)
    timer = Timer(PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        with lock, contextlib.suppress(OSError):
            is_over = True
            if bar:
                bar.stop()


def unseen(what: str, total: int | None = None) -> contextlib.AbstractContextManager[Advance]:
    """Shows nothing: what functions take in place of ``wait`` unless they are given it."""
    return contextlib.nullcontext(lambda parts=1, total=None: None)


def terminal_of(stream: TextIO) -> Any:
    """Returns a ``rich.console.Console`` for the stream; None unless it is a terminal that can draw."""
    if not stream.isatty():
        return None
    from rich.console import Console

    terminal = Console(file=stream, highlight=False, markup=False, emoji=False)
    return None if terminal.is_dumb_terminal or not terminal.is_terminal else terminal


def redirected() -> dict[str, bool]:
    """Returns which streams rich may print above a live display: those that are not written to files."""
    return {"redirect_stdout": sys.stdout.isatty(), "redirect_stderr": sys.stderr.isatty()}


def _bar(what, terminal):
    """Returns a bar that has not started, although its clock runs, and the function that updates it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[count]}")
    options = dict(console=terminal, transient=True, refresh_per_second=_PER_SECOND, **redirected())
    bar = Progress(*columns, TimeElapsedColumn(), **options)
    task = bar.add_task(what, total=None, count="")
    return bar, lambda **changes: bar.update(task, **changes)


def _say(line):
    print(line, file=sys.stderr, flush=True)
