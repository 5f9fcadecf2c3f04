"""The remaining time of a study's runs, estimated from the rounds that have been timed."""

import math
from collections.abc import Iterable, Mapping

from fedjax_collapse.config.cells import RunName


class Pace:
    """Seconds of rounds (training and evaluation) and of compiling, by cell.

    A cell's first update after each start is ignored for rounds as soon as there is another one, because the device is
    not warm. A program is compiled for a cell's first run and is mostly cached for its later ones.
    """

    def __init__(self) -> None:
        self._steady: dict[str, tuple[float, int]] = {}  # cell -> seconds, rounds
        self._first: dict[str, tuple[float, int]] = {}
        self._compiling: dict[RunName, float] = {}  # seconds of each run, in the order of the runs

    def add(self, cell: str, seconds: float, rounds: int, first: bool) -> None:
        """Adds an update of ``rounds`` rounds; ``first`` tells whether it is the first of its run."""
        if not math.isfinite(seconds) or rounds < 1:
            return
        counts = self._first if first else self._steady
        old_seconds, old_rounds = counts.get(cell, (0.0, 0))
        counts[cell] = old_seconds + seconds, old_rounds + rounds

    def add_compiling(self, run: RunName, seconds: float) -> None:
        """Adds seconds of compiling for a run."""
        if math.isfinite(seconds):
            self._compiling[run] = self._compiling.get(run, 0.0) + seconds

    def seconds_per_round(self, cell: str | None = None) -> float | None:
        """Returns the seconds of a round of a cell (without one: the mean over cells), or None if unknown."""
        counts = self._first | self._steady
        if cell is not None:
            counts = {cell: counts[cell]} if cell in counts else {}
        means = [seconds / rounds for seconds, rounds in counts.values()]
        return sum(means) / len(means) if means else None

    def seconds(self, rounds: Mapping[RunName, int], is_compiled: bool = False) -> float | None:
        """Returns the seconds of these rounds of each run, with compiling unless that is done; None if unknown.

        An unknown cell takes the mean of the others.
        """
        of_any = self.seconds_per_round()
        if of_any is None:
            return None
        left = {run: number for run, number in rounds.items() if number > 0}
        of_cells = {cell: self.seconds_per_round(cell) for cell, _ in left}
        paces = {cell: of_any if seconds is None else seconds for cell, seconds in of_cells.items()}
        return sum(number * paces[cell] for (cell, _), number in left.items()) + (
            0.0 if is_compiled else self._seconds_of_compiling(left)
        )

    def seconds_divided(self, rounds: Mapping[RunName, int], workers: int) -> float | None:
        """Returns the seconds until this many processes have done these rounds of each run; None if unknown.

        They do runs at the same time, but a run is done by one of them.
        """
        total = self.seconds(rounds)
        each = (self.seconds({run: number}, is_compiled=True) or 0.0 for run, number in rounds.items())
        return None if total is None else max(total / workers, max(each, default=0.0))

    def is_compiled(self, runs: Iterable[RunName]) -> bool:
        """Returns whether an earlier run has compiled the program of all of these."""
        return {cell for cell, _ in runs} <= {cell for cell, _ in self._compiling}

    def _seconds_of_compiling(self, runs: Iterable[RunName]) -> float:
        """Returns the seconds of compiling for the new ones of these runs.

        They are the means of a cell's first runs and of its later ones.
        """
        seen: set[str] = set()
        kinds: dict[bool, list[float]] = {True: [], False: []}
        for (cell, _), seconds in self._compiling.items():
            kinds[cell not in seen].append(seconds)
            seen.add(cell)
        means = {is_first: sum(of_kind) / len(of_kind) for is_first, of_kind in kinds.items() if of_kind}
        total = 0.0
        for run in runs:
            is_first = run[0] not in seen
            if run not in self._compiling:
                total += means.get(is_first, means.get(not is_first, 0.0))
            seen.add(run[0])
        return total


def duration(seconds: float | None) -> str:
    """Formats seconds as ``1:02:03`` or ``2:03``; ``-`` if unknown."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
