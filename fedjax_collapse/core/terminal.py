"""Output of running programs: lines, tables and progress bars by rich, on a terminal and elsewhere."""

import codecs
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from threading import Timer
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

PATIENCE = 3.0  # seconds before a wait is shown
_PER_SECOND = 2  # times that bars are drawn; few, since programs may be timed meanwhile
_SIZE = 120, 25  # characters of a line, and lines, where there is no terminal
_GAP = 2  # characters between two columns of a table
_PLAIN = {"±": "+-", "\N{MINUS SIGN}": "-", "≈": "~", "≠": "!="}
_ERRORS = "fedjax_collapse.plain"  # how characters are replaced that a stream cannot encode
codecs.register_error(_ERRORS, lambda error: (_PLAIN.get(error.object[error.start], "?"), error.start + 1))


class Printer:
    """Prints lines and tables to a stream, and bars if it is a terminal that can draw (``is_live``).

    Control characters are replaced, and so are characters that the stream cannot encode. If the stream cannot be
    written, as on a full disk or after a pipe was closed, a warning is printed and the program continues.
    """

    def __init__(self, stream: TextIO) -> None:
        options: dict[str, Any] = dict(force_jupyter=False, highlight=False, markup=False, emoji=False)
        options["force_interactive"] = None if stream.isatty() else False  # regardless of FORCE_COLOR
        self._console = Console(file=_Output(stream), **options)
        self.is_live = self._console.is_interactive
        if not self.is_live:
            self._console.size, self._console.soft_wrap = shutil.get_terminal_size(_SIZE), True
        name, about = (
            TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(overflow="fold"))
            for field in ("description", "fields[about]")
        )
        self.bars = Progress(
            name, BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn(), about,
            console=self._console, transient=True, refresh_per_second=_PER_SECOND, disable=not self.is_live,
            redirect_stdout=os.isatty(1), redirect_stderr=os.isatty(2),
        )  # fmt: skip

    def text(self, text: str) -> Text:
        """Returns the text in characters that can be printed; bold stays bold."""
        text, style = "".join(c if c.isprintable() else " " for c in text), getattr(text, "style", "")
        encoding = self._console.encoding
        return Text.assemble((text.encode(encoding, _ERRORS).decode(encoding), style))

    def note(self, text: str) -> None:
        """Prints one or more lines, above the bars if there are any."""
        for line in text.splitlines():
            self._console.print(self.text(line))

    def print_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Prints a table: its heading, and rows whose first cell is a name.

        Columns that do not fit are printed below, next to the names again.
        """
        names, *left = ([self.text(cell) for cell in column] for column in zip(*rows, strict=True))
        while left:
            widths = [*accumulate(max(cell.cell_len for cell in column) + _GAP for column in (names, *left))]
            number = max(1, sum(width - _GAP <= self._console.width for width in widths) - 1)
            heading, *cells = zip(names, *left[:number], strict=True)
            columns = (Column(text, justify="right" if i else "left") for i, text in enumerate(heading))
            table = Table(*columns, box=None, pad_edge=False, padding=(0, _GAP, 0, 0), width=widths[number] - _GAP)
            for row in cells:
                table.add_row(*row)
            self._console.print(table, soft_wrap=True)
            left = left[number:]

    @contextlib.contextmanager
    def wait(self, what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Shows the work of its body, once that has taken three seconds, as a bar or else as a line.

        It yields ``advance(parts=1, total=None)``, which counts finished parts; ``total`` is their number, if it was
        unknown before. The bar disappears when the wait ends. Waits may be nested.

        Args:
            what: the work, in a few words.
            total: the number of its parts; None if unknown.
        """
        bar = self.bars.add_task(self.text(what), total=total, visible=False, about="")

        def show():
            self.bars.update(bar, visible=True, refresh=True)
            self.bars.start()
            if not self.is_live:
                self.note(f"{what} ...")

        timer = Timer(PATIENCE, show)
        timer.start()
        try:
            yield lambda parts=1, total=None: self.bars.update(bar, advance=parts, total=total)
        finally:
            timer.cancel()
            timer.join()
            self.bars.remove_task(bar)
            if not any(task.visible for task in self.bars.tasks):
                self.bars.stop()


class _Output:
    """A stream that warns of the first failure to write, and then writes nothing more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            warning = f"warning: the output cannot be written ({error.strerror}); the program continues"
            with contextlib.suppress(OSError):
                print(warning, file=sys.stderr)
