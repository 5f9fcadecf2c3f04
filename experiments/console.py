"""What a person sees while a study runs: a live display on a terminal, plain lines elsewhere, and the final table."""

import contextlib
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from experiments.cells import setting_and_arm
from experiments.paper import Paper
from experiments.reporting.study import Summary, number
from experiments.reporting.table import (
    NO_MEANS,
    Means,
    accuracy_note,
    final_table,
    local_note,
    paper_note,
    show_number,
    table_with_paper,
)

Row = Mapping[str, Any]

ROUNDS_PER_LINE = 5  # plain output: a line for so many rounds,
SECONDS_PER_LINE = 60  # or for so much work, whichever comes first


class Pace:
    """How long a round takes: seconds of training and evaluating, without compilation.

    An arm's first update after each start is left out as soon as there is another one, because the device is not warm.
    """

    def __init__(self) -> None:
        self._steady: dict[str, tuple[float, int]] = {}  # arm -> seconds, rounds
        self._first: dict[str, tuple[float, int]] = {}

    def add(self, arm: str, seconds: float, rounds: int, first: bool) -> None:
        """Counts an update that covers so many rounds; ``first`` of its run."""
        if not math.isfinite(seconds) or rounds < 1:
            return
        counts = self._first if first else self._steady
        old_seconds, old_rounds = counts.get(arm, (0.0, 0))
        counts[arm] = old_seconds + seconds, old_rounds + rounds

    def seconds_per_round(self, arm: str | None = None) -> float | None:
        """Seconds of a round of an arm (of any arm: the mean over arms), or None if there is nothing to go by."""
        counts = self._first | self._steady
        if arm is not None:
            counts = {arm: counts[arm]} if arm in counts else {}
        means = [seconds / rounds for seconds, rounds in counts.values()]
        return sum(means) / len(means) if means else None


class Console:
    """Shows the progress of ``num_runs`` runs of ``rounds`` rounds each; with neither, only notes and tables."""

    def __init__(self, num_runs: int = 0, rounds: int = 0, stream: TextIO | None = None) -> None:
        self.num_runs = num_runs
        self.rounds = rounds
        self._stream = stream or sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - Python closes it at its end
        self._pace = Pace()
        self._started, self._finished = 0, False
        self._runs: Sequence[tuple[str, int]] = ()  # cell and seed of those under way
        self._first_round, self._round = 0, 0
        self._update: tuple[Sequence[Row], Sequence[Row]] | None = None  # None before the first of a run
        self._shown_round, self._unshown_seconds = 0, 0.0
        self._rich: Any = None
        self._live: Any = None
        if self._stream.isatty():
            import rich.console

            terminal = rich.console.Console(file=self._stream, highlight=False, markup=False, emoji=False)
            self._rich = None if terminal.is_dumb_terminal or not terminal.is_terminal else terminal

    def __enter__(self) -> "Console":
        if self._rich is not None:
            import rich.live

            self._live = rich.live.Live(console=self._rich, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._refresh()
            self._live.stop()
            self._live = None

    def start_runs(self, runs: Sequence[tuple[str, int]], first_round: int = 0, rounds: int | None = None) -> None:
        """Announces runs that go together, by cell and seed; ``first_round`` rounds of them were done before.

        ``rounds``: where they are not those of the study; what is left of it is told as if all had as many.
        """
        self.rounds = self.rounds if rounds is None else rounds
        self._started += len(runs)
        self._runs, self._first_round, self._round = runs, first_round, first_round
        self._finished, self._update, self._shown_round, self._unshown_seconds = False, None, -1, 0.0
        if self._live is None:
            self.note(f"{self._name()}: " + (f"resumes after round {first_round}" if first_round else "starts"))
        self._refresh()

    def update(self, rows: Sequence[Row], timings: Sequence[Row]) -> None:
        """Shows one evaluated round: each run's row of ``metrics.jsonl`` and its row of ``timing.jsonl``."""
        last = self._round
        self._round = int(rows[0]["round"])
        for (arm, _), timing in zip(self._runs, timings, strict=True):
            phases = {phase: number(timing.get(phase)) for phase in ("compile", "train", "evaluate")}
            steady = phases["train"] + (phases["evaluate"] if math.isfinite(phases["evaluate"]) else 0)
            self._pace.add(arm, steady, self._round - last, first=self._update is None)
            self._unshown_seconds += sum(seconds for seconds in phases.values() if math.isfinite(seconds))
        due = (
            self._update is None
            or self._round >= self.rounds
            or self._round - self._shown_round >= ROUNDS_PER_LINE
            or self._unshown_seconds >= SECONDS_PER_LINE
        )
        self._update = rows, timings
        if self._live is None and due:
            self._show()
        self._refresh()

    def finish_runs(self) -> None:
        """Shows the last update of the runs if that has not been done."""
        if self._update is not None and (self._live is not None or self._shown_round != self._round):
            self._show()
        self._finished = True
        self._refresh()

    def note(self, text: str) -> None:
        """Prints a line (or several), above the live display if there is one."""
        for line in text.splitlines():
            line = self._printable(line)
            if self._rich is not None:
                self._write(lambda line=line: self._rich.print(line))
            else:
                self._write(lambda line=line: print(line, file=self._stream, flush=True))

    def print_table(self, summary: Summary, paper: Paper | None = None, means: Means = NO_MEANS) -> None:
        """Prints the final table: mean ± standard deviation over seeds per arm, as in ``summary.json``.

        Of a study with settings: accuracies, arms by settings, beside the paper's.
        """
        has_settings = any(setting_and_arm(cell)[0] for cell in summary)
        table = table_with_paper(summary, paper, means) if has_settings else final_table(summary)
        self.print_rows(table)
        for line in filter(None, (accuracy_note(summary), local_note(summary) if not has_settings else "")):
            self.note(line)
        if has_settings and paper:
            self.note(f"Paper: {paper_note(paper)}")

    def print_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Prints a table: its heading, and rows whose first cell is a name."""
        rows = [[self._printable(cell) for cell in row] for row in rows]
        if self._rich is not None:
            import rich.box
            import rich.table

            table = rich.table.Table(*rows[0], box=rich.box.SIMPLE_HEAD)
            for column in table.columns[1:]:
                column.justify = "right"
            for row in rows[1:]:
                table.add_row(*row)
            self._write(lambda: self._rich.print(table))
            return
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for arm, *cells in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            self.note("  ".join([arm.ljust(widths[0]), *padded]))

    def time_left(self) -> tuple[float | None, float | None]:
        """Seconds left of these runs and of the whole study, from the rounds so far; None before there are any."""
        rounds = 0 if self._finished else max(0, self.rounds - self._round)
        of_any = self._pace.seconds_per_round()
        if of_any is None:
            return None, None
        of_arms = [self._pace.seconds_per_round(arm) for arm, _ in self._runs]
        run = rounds * sum(of_any if of_arm is None else of_arm for of_arm in of_arms)
        return run, run + max(0, self.num_runs - self._started) * self.rounds * of_any

    def _name(self) -> str:
        first = self._started - len(self._runs) + 1
        count = f"{first}-{self._started}" if first < self._started else f"{self._started}"
        of_arms: dict[str, list[str]] = {}
        for arm, seed in self._runs:
            of_arms.setdefault(arm, []).append(str(seed))
        names = (f"{arm} seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for arm, seeds in of_arms.items())
        return f"[{count}/{self.num_runs}] {'; '.join(names)}"

    def _metrics(self) -> str:
        """Means over the runs, and the spread of their accuracies."""
        rows, timings = self._update or ((), ())

        def values(name, rows=rows):
            return [number(row.get(name)) for row in rows] or [math.nan]

        accuracies = [100 * value for value in values("accuracy")]
        spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
        return "  ".join(
            (
                f"accuracy {show_number(statistics.fmean(accuracies), '.2f')}{spread} %",
                f"effective rank {show_number(statistics.fmean(values('effective_rank')), '.1f')}",
                f"R {show_number(statistics.fmean(values('R')), '.3f')}",
                f"{show_number(statistics.fmean(values('samples_per_second', timings)), '.0f')} samples/s",
            )
        )

    def _show(self) -> None:
        """Prints the current round as a line."""
        run, study = map(_duration, self.time_left())
        counter = f"round {self._round:{len(str(self.rounds))}d}/{self.rounds}"
        self.note(f"{self._name()}  {counter}  {self._metrics()}  left {run} (study {study})")
        self._shown_round, self._unshown_seconds = self._round, 0.0

    def _refresh(self) -> None:
        """Draws the live display: a bar for the run, its metrics, and a bar for the study."""
        if self._live is None:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        run, study = map(_duration, self.time_left())
        before = self._started - len(self._runs)
        done = before * self.rounds + len(self._runs) * (self.rounds if self._finished else self._round)
        bars = Table.grid(padding=(0, 2))
        bars.add_row(
            Text(self._printable(self._name())),
            ProgressBar(total=self.rounds or 1, completed=self._round, width=20),
            Text(f"round {self._round}/{self.rounds}  left {run}"),
        )
        bars.add_row(
            Text("study"),
            ProgressBar(total=self.num_runs * self.rounds or 1, completed=max(0, done), width=20),
            Text(f"run {self._started}/{self.num_runs}  left {study}"),
        )
        shown = Group(bars, Text(self._metrics() if self._update else "compiling"))
        self._write(lambda: self._live.update(shown, refresh=True))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes; once that fails, as on a full disk or a closed pipe, the study goes on without being shown."""
        try:
            write()
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"warning: the output cannot be written ({error.strerror}); the study goes on", file=sys.stderr)
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def _printable(self, text: str) -> str:
        """The text without control characters, and in ASCII if the stream is not UTF-8."""
        text = "".join(c if c.isprintable() else " " for c in text)
        if (self._stream.encoding or "").lower().replace("-", "").startswith("utf8"):
            return text
        return text.replace("±", "+-").encode("ascii", "replace").decode("ascii")


def _duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as ``1:02:03`` or ``2:03``; ``-`` if unknown."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
