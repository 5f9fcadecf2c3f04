"""The remaining time of a study's runs, estimated from the rounds that have been timed."""

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.study.more_rounds import is_done
from experiments.study.resolving import RunSpec
from fedjax_collapse.config.cells import RunName


class Pace:
    """Seconds of rounds (training and evaluation) and of compiling, by cell.

    A cell's first update after each start is ignored for rounds as soon as there is another one, because the device is
    not warm. A program is compiled for a cell's first run and is mostly cached for its later ones.
    """

    def __init__(self) -> None:
        self._timed: dict[bool, dict[str, tuple[float, int]]] = {True: {}, False: {}}  # first -> cell: seconds, rounds
        self._compiling: dict[RunName, float] = {}  # seconds of each run, in the order of the runs

    def add(self, cell: str, seconds: float, rounds: int, first: bool) -> None:
        """Adds an update of ``rounds`` rounds; ``first`` is whether it is the first of its run."""
        if math.isfinite(seconds) and rounds > 0:
            old_seconds, old_rounds = self._timed[first].get(cell, (0.0, 0))
            self._timed[first][cell] = old_seconds + seconds, old_rounds + rounds

    def add_compiling(self, run: RunName, seconds: float) -> None:
        """Adds seconds of compiling for a run."""
        if math.isfinite(seconds):
            self._compiling[run] = self._compiling.get(run, 0.0) + seconds

    def seconds(self, rounds: Mapping[RunName, int], is_compiled: bool = False) -> float | None:
        """Returns the seconds of these rounds of each run, with compiling unless that is done; None if unknown.

        An unknown cell takes the mean of the others.
        """
        paces = {cell: total / count for cell, (total, count) in (self._timed[True] | self._timed[False]).items()}
        if not paces:
            return None
        left, mean = {run: number for run, number in rounds.items() if number > 0}, fmean(paces.values())
        trained = sum(number * paces.get(cell, mean) for (cell, _), number in left.items())
        return trained if is_compiled else trained + self._seconds_of_compiling(left)

    def seconds_divided(self, rounds: Mapping[RunName, int], workers: int) -> float | None:
        """Returns the seconds until this many processes have done these rounds of each run; None if unknown.

        They do runs at the same time, but a run is done by one of them.
        """
        total = self.seconds(rounds)
        each = (self.seconds({run: number}, is_compiled=True) or 0.0 for run, number in rounds.items())
        return None if total is None else max([total / workers, *each])

    def is_compiled(self, runs: Iterable[RunName]) -> bool:
        """Returns whether an earlier run has compiled the program of all of these."""
        return {cell for cell, _ in runs} <= {cell for cell, _ in self._compiling}

    def _seconds_of_compiling(self, runs):
        """Returns the seconds of compiling for the new ones of these runs: the means of cells' first or later runs."""
        firsts = set({run[0]: run for run in reversed([*self._compiling, *runs])}.values())
        known = {True: [], False: []}
        for run, seconds in self._compiling.items():
            known[run in firsts].append(seconds)
        new = (run in firsts for run in runs if run not in self._compiling)
        return sum(fmean(known[is_first] or known[not is_first] or [0.0]) for is_first in new)


def hours(runs: Iterable[RunSpec], pace: Pace) -> list[tuple[str, ...]]:
    """Returns a table of the hours that are left of a study, by cell and for all of them."""
    left = {run.name: run.cell.values["rounds"] - run.last_round for run in runs if not is_done(run)}
    cells: dict[str, dict[RunName, int]] = {}
    for name, rounds in left.items():
        cells.setdefault(name.cell, {})[name] = rounds
    cells |= {"all": left} if len(cells) > 1 else {}
    rows = [("Arm", "Runs", "Rounds left", "Hours")]
    for cell, of in cells.items():
        rows.append((cell, f"{len(of)}", f"{sum(of.values()):,}", f"{(pace.seconds(of) or math.nan) / 3600:.2f}"))
    return rows


def duration(seconds: float | None) -> str:
    """Formats seconds as ``1:02:03`` or ``2:03``; ``-`` if unknown."""
    return "-" if seconds is None else re.sub("^0:0?", "", str(datetime.timedelta(seconds=round(seconds))))
