"""The output of a study while it runs: a live display on a terminal, plain lines elsewhere, and the final table."""

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, TextIO

from experiments import waiting
from experiments.study.progress.eta import Pace, duration
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.results.metrics import (
    EFFECTIVE_RANK,
    MINUS,
    PHASES,
    Metric,
    R,
    headline_in,
    is_measured,
    number,
    show_number,
)
from fedjax_collapse.results.paper import APART, OVERLAP
from fedjax_collapse.results.study import Results
from fedjax_collapse.results.tables import BEST, Table, columns_of, final_table, pivots

Row = Mapping[str, Any]

ROUNDS_PER_LINE = 5  # plain output: a line after this many rounds,
SECONDS_PER_LINE = 60  # or this many seconds of work, whichever comes first
_PER_SECOND = 2  # times that the live display is drawn
_BETWEEN = 3  # characters between two columns of a table on a terminal
_WIDTH = 120  # characters of a line of a table that is not on a terminal
_MOST_MEASURED = 12  # columns of measurements that a table shows unless they are asked for


class Console:
    """Shows the progress of runs.

    Args:
        to_come: the remaining rounds of each run; without any, only notes and tables are shown.
        stream: where to print; by default standard output.
    """

    def __init__(self, to_come: Mapping[RunName, int] = MappingProxyType({}), stream: TextIO | None = None) -> None:
        self._to_come = dict(to_come)  # rounds of the runs that have not started
        self._num_runs, self._num_rounds = len(to_come), sum(to_come.values())
        self._stream = stream or sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - Python closes it at its end
        self._pace = Pace()
        self._started, self._finished = 0, False
        self._runs: Sequence[RunName] = ()  # the active runs
        self._round, self._rounds = 0, 0  # of each active run
        self._update: tuple[Sequence[Row], Sequence[Row]] | None = None  # None before a run's first update
        self._shown_round, self._unshown_seconds = 0, 0.0
        self._announced: set[str] = set()
        self._rich: Any = waiting.terminal_of(self._stream)
        self._live: Any = None

    def __enter__(self) -> "Console":
        if self._rich is not None:
            import rich.live

            self._live = rich.live.Live(console=self._rich, refresh_per_second=_PER_SECOND, **waiting.redirected())
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._refresh()
            self._live.stop()
            self._live = None

    def expect(self, to_come: Mapping[RunName, int]) -> None:
        """Corrects the remaining rounds of runs that have not started."""
        self._to_come |= to_come

    def leave_out(self, runs: Iterable[RunName]) -> None:
        """Removes finished runs, which will not be started."""
        self._num_rounds -= sum(self._to_come.pop(run, 0) for run in runs)
        self._num_runs = len(self._to_come) + self._started

    def start_runs(self, runs: Sequence[RunName], first_round: int, rounds: int) -> None:
        """Announces batched runs of ``rounds`` rounds, ``first_round`` of which were done before."""
        self._started += len(runs)
        for run in runs:
            self._to_come.pop(run, None)
        self._num_runs = max(self._num_runs, self._started)
        self._runs, self._round, self._rounds = runs, first_round, rounds
        self._finished, self._update, self._shown_round, self._unshown_seconds = False, None, -1, 0.0
        if self._live is None:
            self.note(f"{self._counter()} {'; '.join(name for name, _ in self._arms())}: {self._doing()}")
        self._refresh()

    def announce(self, text: str) -> None:
        """Prints a line about the active runs.

        Before their first round, it is about cohort and memory, and printed only if the part before its semicolon, the
        cohort, differs from those of all earlier runs.
        """
        about = text.partition(";")[0]
        if self._update is not None or about not in self._announced:
            self.note(text)
        self._announced.add(about)

    def wait(self, what: str, total: int | None = None) -> AbstractContextManager[waiting.Advance]:
        """Shows what is being done, as ``waiting.wait`` does."""
        return waiting.wait(what, total, self._rich, self.note)

    def update(self, rows: Sequence[Row], timings: Sequence[Row]) -> None:
        """Shows one evaluated round: each run's row of ``metrics.jsonl`` and its row of ``timing.jsonl``."""
        last = self._round
        self._round = int(rows[0]["round"])
        for run, timing in zip(self._runs, timings, strict=True):
            phases = {phase: number(timing.get(phase)) for phase in PHASES}
            steady = phases["train"] + (phases["evaluate"] if math.isfinite(phases["evaluate"]) else 0)
            self._pace.add(run[0], steady, self._round - last, first=self._update is None)
            self._pace.add_compiling(run, phases["compile"])
            self._unshown_seconds += sum(seconds for seconds in phases.values() if math.isfinite(seconds))
        due = (
            self._update is None
            or self._round >= self._rounds
            or self._round - self._shown_round >= ROUNDS_PER_LINE
            or self._unshown_seconds >= SECONDS_PER_LINE
        )
        self._update = rows, timings
        if self._live is None and due:
            self._show()
        self._refresh()

    def finish_runs(self) -> None:
        """Shows the last update of the runs unless it has been shown."""
        if self._update is not None and (self._live is not None or self._shown_round != self._round):
            self._show()
        self._finished = True
        self._refresh()

    def note(self, text: str) -> None:
        """Prints one or more lines, above the live display if there is one."""
        for line in text.splitlines():
            line = self._printable(line)
            if self._rich is not None:
                self._write(lambda line=line: self._rich.print(line))
            else:
                self._write(lambda line=line: print(line, file=self._stream, flush=True))

    def print_table(self, study: Results, columns: Sequence[Metric] = ()) -> None:
        """Prints the final table: mean ± standard deviation over seeds per arm.

        For a study with settings: arms by settings, for each of the columns or, by default, with accuracies or the
        metric of its paper's table, and the paper's values. A study without settings has these below its table.
        """
        shown, notes = [], []
        if not study.has_settings:
            all_columns = columns or columns_of(study)
            measured = [] if columns else [metric for metric in all_columns if is_measured(metric.name)]
            left_out = measured if len(measured) > _MOST_MEASURED else []
            shown.append(final_table(study, [metric for metric in all_columns if metric not in left_out]))
            notes = [_left_out_note(left_out)]
        by_setting = pivots(study, columns)
        for table in [*shown, *(by_setting if columns else by_setting[:1])]:
            if study.has_settings and columns:
                self.note(f"{table.title}:")
            self.print_rows(table.rows)
            notes[:0] = [note for note in table.notes if self._rich is not None or note != BEST]  # lines have no bold
        for line in filter(None, dict.fromkeys(notes)):
            self.note(line)

    def print_whole(self, table: Table) -> None:
        """Prints a table with its title above and its notes below it."""
        self.note(f"\n{table.title}")
        self.print_rows(table.rows)
        for note in table.notes:
            self.note(note)

    def print_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Prints a table: its heading, and rows whose first cell is a name.

        Columns that do not fit are printed below, next to the names again.
        """
        rows = [[self._printable(cell) for cell in row] for row in rows]
        if self._rich is None:
            self._print_lines(rows)
            return
        for columns in _blocks(_narrowest(rows), self._rich.width):
            self._print_block([[row[i] for i in columns] for row in rows])

    def _print_lines(self, rows):
        widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
        for columns in _blocks(widths, shutil.get_terminal_size((_WIDTH, 0)).columns):
            for arm, *cells in ([row[i] for i in columns] for row in rows):
                padded = [cell.rjust(widths[i]) for cell, i in zip(cells, columns[1:], strict=True)]
                self.note("".join([arm.ljust(widths[0] - 2), *padded]))

    def _print_block(self, rows):
        import rich.box
        import rich.table
        from rich.text import Text

        table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
        for i, (heading, width) in enumerate(zip(rows[0], _narrowest(rows), strict=True)):
            table.add_column(heading, justify="right" if i else "left", min_width=width - _BETWEEN if i else None)
        for row in rows[1:]:
            table.add_row(*(Text.assemble((cell, getattr(cell, "style", ""))) for cell in row))  # not its padding
        self._write(lambda: self._rich.print(table))

    def time_left(self) -> tuple[float | None, float | None]:
        """Returns the remaining seconds of these runs and of the whole study, with compiling; None if unknown."""
        rounds = 0 if self._finished else max(0, self._rounds - self._round)
        run = self._pace.seconds(dict.fromkeys(self._runs, rounds), is_compiled=self._update is not None)
        others = self._pace.seconds(self._to_come)
        return (None, None) if run is None or others is None else (run, run + others)

    def _doing(self) -> str:
        doing = f"resumes after round {self._round}" if self._round else "starts"
        must_compile = self._round < self._rounds and not self._pace.is_compiled(self._runs)
        return doing + ", compiling" * must_compile

    def _counter(self) -> str:
        first = self._started - len(self._runs) + 1
        count = f"{first}-{self._started}" if first < self._started else f"{self._started}"
        return f"[{count}/{self._num_runs}]"

    def _arms(self) -> list[tuple[str, list[int]]]:
        """Returns the active cells, named with their seeds, and the indices of their runs."""
        places: dict[str, list[int]] = {}
        for i, (cell, _) in enumerate(self._runs):
            places.setdefault(cell, []).append(i)
        seeds = {cell: ", ".join(str(self._runs[i][1]) for i in own) for cell, own in places.items()}
        return [(f"{cell} seed{'s' * (len(own) > 1)} {seeds[cell]}", own) for cell, own in places.items()]

    def _metrics(self, own: Sequence[int]) -> str:
        """Returns the means over runs of one arm, given by their indices, and the spread of their accuracies."""
        rows, _ = self._update or ((), ())
        shown = (headline := headline_in(rows[own[0]]), EFFECTIVE_RANK, R)
        return "  ".join(m.say([rows[i].get(m.name) for i in own], spread=m is headline) for m in shown)

    def _speed(self) -> str:
        """Returns the speed of all active runs, which are one program."""
        _, timings = self._update or ((), ())
        samples, seconds = (sum(number(timing.get(name)) for timing in timings) for name in ("samples", "train"))
        return f"{show_number(samples / seconds if seconds > 0 else math.nan, '.0f')} samples/s"

    def _show(self) -> None:
        """Prints the current round, with a line for each arm."""
        run, study = map(duration, self.time_left())
        round = f"round {self._round:{len(str(self._rounds))}d}/{self._rounds}"
        lines = [f"{self._counter()} {name}  {round}  {self._metrics(own)}" for name, own in self._arms()]
        self.note("\n".join(lines) + f"  {self._speed()}  left {run} (study {study})")
        self._shown_round, self._unshown_seconds = self._round, 0.0

    def _refresh(self) -> None:
        """Draws the live display: a bar for the active runs, one for the study, and metrics of each arm."""
        if self._live is None:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        run, study = map(duration, self.time_left())
        round = self._rounds if self._finished else self._round
        done = self._num_rounds - sum(self._to_come.values()) - len(self._runs) * (self._rounds - round)
        arms = self._arms()
        name = arms[0][0] if len(arms) == 1 else f"{len(arms)} arms together"
        bars, metrics = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        bars.add_row(
            Text(self._printable(name)),
            ProgressBar(total=self._rounds or 1, completed=self._round, width=20, pulse=self._update is None),
            Text(f"round {self._round}/{self._rounds}  left {run}" if self._update else self._doing()),
        )
        bars.add_row(
            Text("study"),
            ProgressBar(total=self._num_rounds or 1, completed=max(0, done), width=20),
            Text(f"run {self._counter()[1:-1]}  left {study}"),
        )
        for name, own in arms if self._update else ():
            named = [Text(self._printable(name))] if len(arms) > 1 else []
            metrics.add_row(*named, Text(self._printable(self._metrics(own))))
        shown = Group(bars, metrics, Text(self._speed())) if self._update else bars
        self._write(lambda: self._live.update(shown, refresh=True))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes; after a failure, such as a full disk or a closed pipe, the study continues without output."""
        try:
            write()
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"warning: the output cannot be written ({error.strerror}); the study continues", file=sys.stderr)
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def _printable(self, text: str) -> str:
        """Replaces control characters, and, if the stream is not UTF-8, characters outside of ASCII; bold stays so."""
        text = type(text)("".join(c if c.isprintable() else " " for c in text))
        if (self._stream.encoding or "").lower().replace("-", "").startswith("utf8"):
            return text
        for character, plain in {"±": "+-", MINUS: "-", OVERLAP: "~", APART: "!="}.items():
            text = type(text)(text.replace(character, plain))
        return type(text)(text.encode("ascii", "replace").decode("ascii"))


def _left_out_note(metrics: Sequence[Metric]) -> str:
    """Says where measurements are that a table does not show; empty if there are none."""
    names = ", ".join(dict.fromkeys(metric.heading.partition("/")[0] for metric in metrics))
    where = "report.html, and printed by fedjax-collapse report STUDY_FOLDER --columns=METRIC,METRIC"
    return f"{len(metrics)} more columns, of {names}: in {where}." if metrics else ""


def _narrowest(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the least width of each column of a terminal's table, whose cells are on one line.

    A heading has a word per line.
    """
    columns = (([*heading.split(), *cells]) for heading, *cells in zip(*rows, strict=True))
    return [max(map(len, texts)) + _BETWEEN for texts in columns]


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Splits a table's columns into blocks that fit next to the first column, which is in all of them."""
    first, *widths = widths
    blocks, left = [[0]], room - first - 1
    for i, width in enumerate(widths, 1):
        if left < width and len(blocks[-1]) > 1:
            blocks, left = [*blocks, [0]], room - first - 1
        blocks[-1].append(i)
        left -= width
    return blocks
