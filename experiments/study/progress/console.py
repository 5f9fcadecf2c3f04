"""The output of a study while it runs: bars on a terminal, plain lines elsewhere, and the final table."""

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TextIO

import numpy as np
from rich.progress import TaskID

from experiments.study.progress.eta import Pace, duration
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.core.terminal import Printer
from fedjax_collapse.results.comparing import recommendations
from fedjax_collapse.results.metrics import EFFECTIVE_RANK, PHASES, Metric, R, headline_in, is_measured, number
from fedjax_collapse.results.study import Results
from fedjax_collapse.results.tables import BEST, Table, columns_of, final_table, pivots

Row = Mapping[str, Any]

ROUNDS_PER_LINE = 5  # plain output: a line after this many rounds,
SECONDS_PER_LINE = 60  # or this many seconds of work, whichever comes first
_MOST_MEASURED = 12  # columns of measurements that a table shows unless they are asked for


class Console(Printer):
    """Shows the progress of runs.

    Args:
        to_come: the remaining rounds of each run; without any, only notes and tables are shown.
        stream: where to print; by default standard output.
        workers: the number of processes that divide the runs.
    """

    def __init__(
        self, to_come: Mapping[RunName, int] = MappingProxyType({}), stream: TextIO | None = None, workers: int = 1
    ) -> None:
        super().__init__(stream or sys.stdout or open(os.devnull, "w"))  # noqa: SIM115 - Python closes it at its end
        self._workers, self._to_come = workers, dict(to_come)  # rounds of the runs that have not started
        self._num_rounds, self._started = sum(to_come.values()), 0
        self.pace, self._announced = Pace(), set()
        self._runs: Sequence[RunName] = ()  # the active runs
        self._arms: dict[TaskID, list[int]] = {}  # the bars of their cells: places of a cell's runs
        self.round, self._rounds = 0, 0  # of each active run
        self._is_updated, self._shown_round, self._unshown_seconds = False, 0, 0.0  # of the active runs
        self._study = self.bars.add_task("study", total=self._num_rounds, visible=False, about="")

    def __enter__(self) -> "Console":
        self.bars.update(self._study, visible=True)
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()
        for bar in self.bars.task_ids:
            self.bars.update(bar, visible=False)

    def expect(self, to_come: Mapping[RunName, int]) -> None:
        """Corrects the remaining rounds of runs that have not started."""
        self._to_come |= to_come

    def leave_out(self, runs: Iterable[RunName]) -> None:
        """Removes finished runs, which will not be started."""
        self._num_rounds -= sum(self._to_come.pop(run, 0) for run in runs)

    def start_runs(self, runs: Sequence[RunName], first_round: int, rounds: int) -> None:
        """Announces batched runs of ``rounds`` rounds, ``first_round`` of which were done before."""
        first, self._started = self._started + 1, self._started + len(runs)
        for run in runs:
            self._to_come.pop(run, None)
        counter = f"[{first}{f'-{self._started}' * (len(runs) > 1)}/{self._started + len(self._to_come)}]"
        self._runs, self.round, self._rounds = runs, first_round, rounds
        self._is_updated, self._shown_round, self._unshown_seconds = False, -1, 0.0
        places = {cell: [i for i, (other, _) in enumerate(runs) if other == cell] for cell, _ in runs}
        seeds = {cell: ", ".join(str(runs[i][1]) for i in own) for cell, own in places.items()}
        names = {cell: f"{cell} seed{'s' * (len(own) > 1)} {seeds[cell]}" for cell, own in places.items()}
        doing = f"resumes after round {first_round}" if first_round else "starts"
        doing += ", compiling" * (first_round < rounds and not self.pace.is_compiled(runs))
        if not self.is_live:
            self.note(f"{counter} {'; '.join(names.values())}: {doing}")
        for bar in self._arms:
            self.bars.remove_task(bar)
        options = dict(total=rounds, completed=first_round, about=doing)
        bars = (self.bars.add_task(self.text(f"{counter} {name}"), **options) for name in names.values())
        self._arms = dict(zip(bars, places.values(), strict=True))
        self._draw("- samples/s")

    def announce(self, text: str) -> None:
        """Prints a line about the active runs.

        Before their first round, it is about cohort and memory, and printed only if the part before its semicolon, the
        cohort, differs from those of all earlier runs.
        """
        about = text.partition(";")[0]
        if self._is_updated or about not in self._announced:
            self.note(text)
        self._announced.add(about)

    def update(self, rows: Sequence[Row], timings: Sequence[Row]) -> None:
        """Shows one evaluated round: each run's row of ``metrics.jsonl`` and its row of ``timing.jsonl``."""
        last, self.round = self.round, int(rows[0]["round"])
        is_first, self._is_updated = not self._is_updated, True
        for run, timing in zip(self._runs, timings, strict=True):
            compiling, train, evaluate = phases = [number(timing.get(phase)) for phase in PHASES]
            self.pace.add(run[0], train + np.nansum(evaluate), self.round - last, is_first)
            self.pace.add_compiling(run, compiling)
            self._unshown_seconds += np.nansum(phases)
        samples, seconds = (sum(number(timing.get(name)) for timing in timings) for name in ("samples", "train"))
        for bar, own in self._arms.items():
            self.bars.update(bar, completed=self.round, about=self.text(_means([rows[i] for i in own])))
        self._draw(f"{samples / seconds:.0f} samples/s" if samples / (seconds or math.nan) >= 0 else "- samples/s")
        is_due = self.round >= self._rounds or self.round - self._shown_round >= ROUNDS_PER_LINE
        if not self.is_live and (is_first or is_due or self._unshown_seconds >= SECONDS_PER_LINE):
            self._show()

    def finish_runs(self) -> None:
        """Shows the last update of the runs unless it has been shown."""
        if self._is_updated and self._shown_round != self.round:
            self._show()
        self.round = self._rounds

    def print_table(self, study: Results, columns: Sequence[Metric] = ()) -> None:
        """Prints the final table: mean ± standard deviation over seeds per arm.

        For a study with settings: arms by settings, for each of the columns or, by default, with accuracies or the
        metric of its paper's table, and the paper's values. A study without settings has these below its table.
        """
        tables, notes = pivots(study, columns)[: None if columns else 1], []
        if not study.has_settings:
            shown = columns or columns_of(study)
            measured = [metric for metric in shown if is_measured(metric.name)]
            if not columns and len(measured) > _MOST_MEASURED:
                shown = [metric for metric in shown if metric not in measured]
                names = ", ".join(dict.fromkeys(metric.heading.partition("/")[0] for metric in measured))
                where = "report.html, and printed by fedjax-collapse report STUDY_FOLDER --columns=METRIC,METRIC"
                notes = [f"{len(measured)} more columns, of {names}: in {where}."]
            tables = [final_table(study, shown), *tables]
        for table in tables:
            if study.has_settings and columns:
                self.note(f"{table.title}:")
            self.print_rows(table.rows)
            notes = [*(note for note in table.notes if self.is_live or note != BEST), *notes]  # lines have no bold
        for line in dict.fromkeys([*notes, *recommendations(study, columns=columns)]):
            self.note(line)

    def print_whole(self, table: Table) -> None:
        """Prints a table with its title above and its notes below it."""
        self.note(f"\n{table.title}")
        self.print_rows(table.rows)
        for note in table.notes:
            self.note(note)

    def time_left(self) -> tuple[float | None, float | None]:
        """Returns the remaining seconds of these runs and of the whole study, with compiling; None if unknown."""
        run = self.pace.seconds(dict.fromkeys(self._runs, self._rounds - self.round), self._is_updated)
        others = self.pace.seconds_divided(self._to_come, self._workers)
        return (None, None) if run is None else (run, run + others)

    def _show(self):
        """Prints the last update, with a line for each arm."""
        round = f"round {self.round:{len(str(self._rounds))}d}/{self._rounds}"
        arms = (task for task in self.bars.tasks if task.id in self._arms)
        lines = [f"{task.description}  {round}  {task.fields['about']}" for task in arms]
        self.note("\n".join(lines) + f"  {self._tail}")
        self._shown_round, self._unshown_seconds = self.round, 0.0

    def _draw(self, speed):
        """Draws the bars, with the speed and the time left."""
        run, study = map(duration, self.time_left())
        self._tail = f"{speed}  left {run} (study {study})"
        done = self._num_rounds - sum(self._to_come.values()) - len(self._runs) * (self._rounds - self.round)
        self.bars.update(self._study, total=self._num_rounds, completed=done, about=self._tail, refresh=True)


def _means(rows):
    """Returns the means over runs of one arm, and the spread of their accuracies, as a text."""
    shown = (headline := headline_in(rows[0]), EFFECTIVE_RANK, R)
    return "  ".join(m.say([row.get(m.name) for row in rows], spread=m is headline) for m in shown)
