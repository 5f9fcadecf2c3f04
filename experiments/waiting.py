"""What is shown on standard error while a command works: a bar on a terminal, elsewhere one line.

with wait("reading 600 runs", 600) as advance:
    for run in runs:
        ...
        advance()
"""

import contextlib
import functools
import sys
from collections.abc import Callable

from fedjax_collapse.core.terminal import Printer

Advance = Callable[..., None]
Wait = Callable[..., contextlib.AbstractContextManager[Advance]]
_printer = functools.cache(Printer)  # one for a stream: waits may be nested


def wait(what: str, total: int | None = None) -> contextlib.AbstractContextManager[Advance]:
    """Shows the current step of the command, as ``Printer.wait`` does."""
    return _printer(sys.stderr).wait(what, total)


def unseen(what: str, total: int | None = None) -> contextlib.AbstractContextManager[Advance]:
    """Shows nothing: the default of functions that take ``wait``."""
    return contextlib.nullcontext(lambda parts=1, total=None: None)
