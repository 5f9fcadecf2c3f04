"""The results of rounds, rows of numbers and arrays, in memory and, given a folder, on disk.

``metrics.jsonl`` has a row per evaluated round (NaN as null) and nothing that depends on the machine's speed, so two
equal runs write equal files; wall-clock times are in ``timing.jsonl``. There are four kinds of arrays, ``clients``,
``spectra``, ``measurements`` and ``own_tests``: a save writes only the rounds since the last one, so that its cost
stays constant, and the end of the run makes one file of each kind (``round_arrays.py``).
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse.core.records import Damaged, UserError
from fedjax_collapse.core.round_arrays import (
    Arrays,
    between,
    check_alike,
    forget_after,
    join,
    merge_segments,
    read_arrays,
    write_segment,
)
from fedjax_collapse.core.rows import Rows, last_row

KINDS = ("clients", "spectra", "measurements", "own_tests")
_METRICS, _TIMING = "metrics.jsonl", "timing.jsonl"
_STATES = "client_states"  # in the notes of a checkpoint, the ``digest`` of those in files
_EVALUATED = "evaluated"  # the last evaluated round, in the notes of a checkpoint of a later round
_SHOWN = 3  # the number of rounds in a warning
_TAKEN = ("round", "file", "allow_pickle")  # the array of rounds, and arguments of np.savez


class History:
    """The rows and arrays of one run, in the order of rounds."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._metrics = Rows(folder and folder / _METRICS)
        self._timing = Rows(folder and folder / _TIMING)
        self._blocks: dict[str, list[Arrays]] = {kind: [] for kind in KINDS}
        self._num_saved = dict.fromkeys(KINDS, 0)  # the number of saved blocks
        self._shas = {kind: hashlib.sha256() for kind in KINDS}  # of the arrays, round by round
        self.client_states = ""  # the ``digest`` of those in files, at the last checkpoint

    def add_rounds(self, clients: Mapping) -> None:
        """Adds trained rounds, before their evaluation: ``round`` [rounds], and arrays [rounds, ...].

        Raises:
            UserError: names or shapes of arrays differ from those of the previous rounds. Nothing is added then.
        """
        self._add_arrays({"clients": clients})

    def add(
        self,
        row: Mapping,
        timing: Mapping,
        spectra: Mapping,
        measurements: Mapping | None = None,
        own_tests: Mapping | None = None,
    ) -> None:
        """Adds the evaluation after the last round.

        Args:
            row: the metrics.
            timing: the times.
            spectra: ``round`` [], and arrays of this round.
            measurements: arrays of this round, of any shape.
            own_tests: arrays of this round, [clients].

        Raises:
            UserError: names or shapes of arrays differ from those of the previous round, or a measurement is not
                numeric or has a reserved name. Nothing is added then.
        """
        new = {"spectra": _one_round(spectra)}
        if measurements:
            _check_measurements(measurements)
            new["measurements"] = _one_round({"round": row["round"], **measurements})
        if own_tests:
            new["own_tests"] = _one_round({"round": row["round"], **own_tests})
        self._add_arrays(new)
        self._metrics.add(row)
        self._timing.add(timing)

    def _add_arrays(self, new):
        new = {kind: {name: np.asarray(array) for name, array in arrays.items()} for kind, arrays in new.items()}
        for kind, arrays in new.items():
            check_alike(kind, arrays, self._blocks[kind])
        for kind, arrays in new.items():
            self._blocks[kind].append(arrays)
            self._hash(kind, arrays)

    def _hash(self, kind, arrays):
        """Adds rounds to the hash of a kind of arrays, which does not depend on how rounds are divided into blocks."""
        for row in range(len(arrays["round"])):
            for name, array in sorted(arrays.items()):
                self._shas[kind].update(f"{name}{array.dtype}{array.shape[1:]}".encode())
                self._shas[kind].update(np.ascontiguousarray(array[row]))

    @property
    def evaluated(self) -> int:
        """The last round with a row of metrics; 0 before the first."""
        return self.rows[-1]["round"] if self.rows else 0

    @property
    def unevaluated(self) -> Arrays:
        """The ``clients`` of the rounds since the last evaluation; empty if there are none."""
        blocks = [block for block in self._blocks["clients"] if block["round"][-1] > self.evaluated]
        return between(join(blocks), self.evaluated)

    @property
    def rows(self) -> list[dict]:
        """Rows of metrics, one per evaluated round."""
        return self._metrics.rows

    @property
    def timing(self) -> list[dict]:
        """Rows of times, one per evaluated round."""
        return self._timing.rows

    def arrays(self, kind: str) -> Arrays:
        """Returns the arrays of a kind, of all rounds; empty if there are none.

        clients: ``round`` [rounds] and each metric [rounds, clients]; NaN for a client outside the cohort.
        spectra: ``round`` [rounds] and descending eigenvalues ``server`` and ``local`` [rounds, features].
        measurements: ``round`` [rounds] and each measurement [rounds, ...].
        own_tests: ``round`` [rounds] and each score [rounds, clients].
        """
        return join(self._blocks[kind])

    def save_arrays(self) -> None:
        """Writes the arrays of the rounds since the last save."""
        self.to_save()()

    def to_save(self) -> Callable[[], None]:
        """Returns a function that saves the arrays of the rounds since the last save and flushes the current rows.

        It is called before a checkpoint is written, so that a checkpoint never has more rounds than the history. It may
        be called in another thread, while rows are added.
        """
        new = {kind: join(blocks[self._num_saved[kind] :]) for kind, blocks in self._blocks.items()}
        self._num_saved = {kind: len(blocks) for kind, blocks in self._blocks.items()}

        def save():
            for kind, arrays in new.items():
                if self.folder and arrays:
                    write_segment(self.folder, kind, arrays)
            for rows in (self._metrics, self._timing):
                rows.flush()

        return save

    def finish(self) -> None:
        """Saves, and merges each kind of arrays into one file; called after the run's last round."""
        self.save_arrays()
        for kind in KINDS:
            if self.folder:
                merge_segments(self.folder, kind, self.arrays(kind))

    def written(self) -> dict[str, Any]:
        """Returns the hashes and counts with which a checkpoint verifies that the folder contains this history."""
        arrays = {kind: sorted(blocks[-1]) if blocks else [] for kind, blocks in self._blocks.items()}
        of_arrays = {f"{kind}.npz": self._shas[kind].hexdigest() for kind, blocks in self._blocks.items() if blocks}
        of_rows = {_METRICS: self._metrics.sha256, _TIMING: self._timing.sha256}
        of_states = {_STATES: self.client_states} if self.client_states else {}
        return of_rows | arrays | of_arrays | of_states | ({_EVALUATED: self.evaluated} if self.unevaluated else {})

    @classmethod
    def read(
        cls, folder: Path, round: int, written: Mapping[str, Any] | None = None, measure_every: int = 1
    ) -> "History":
        """Reads the history up to ``round``; later rounds are ignored.

        Args:
            folder: the run's folder.
            round: the last round to read.
            written: the notes of the checkpoint of this round, compared with the files.
            measure_every: rounds between measurements, rounded up to evaluations.

        Raises:
            Damaged: a row of metrics or an array is missing or differs from what was written. Times, which affect no
                result, are the exception: damaged or missing rows of them are left out, with a warning.
        """
        history = cls(folder)
        history._metrics = Rows.read(folder / _METRICS, round)
        history._timing = Rows.salvage(folder / _TIMING, range(1, round + 1))
        for kind in KINDS if round else ():  # before the first round there is nothing to read
            if arrays := read_arrays(folder, kind, round):
                history._blocks[kind], history._num_saved[kind] = [arrays], 1
                history._hash(kind, arrays)
        history.client_states = (written or {}).get(_STATES, "")
        history._check_rounds(round, (written or {}).get(_EVALUATED, round), measure_every)
        for name, found in history.written().items() if written else ():
            if written.get(name) != found and name != _TIMING:
                raise Damaged(f"{folder / name}: differs from what was written up to round {round}")
        history._keep_timing(written)
        return history

    @staticmethod
    def last_round(folder: Path) -> int:
        """Returns the round of the last row of metrics in a folder; 0 without one that can be read."""
        return last_row(folder / _METRICS).get("round", 0)

    def _keep_timing(self, written):
        """Selects the times of evaluated rounds; warns if they differ from what was written."""
        path, evaluated = self.folder / _TIMING, [row["round"] for row in self.rows]
        self._timing = Rows.salvage(path, evaluated)
        known = {row["round"] for row in self.timing}
        if lost := [str(round) for round in evaluated if round not in known]:
            some = ", ".join(lost[:_SHOWN]) + (f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else "")
            warnings.warn(f"{path}: the seconds of round {some} cannot be read and are left out", stacklevel=2)
        elif written and written.get(_TIMING) != self._timing.sha256:
            warnings.warn(f"{path}: differs from what was written; its seconds may be wrong", stacklevel=2)

    def _check_rounds(self, round, evaluated, measure_every):
        """Raises Damaged unless the arrays, each kind one block, and the rows contain exactly the expected rounds.

        These are all rounds up to ``round`` for clients, and all evaluations up to ``evaluated`` for the rest.
        """
        timed, rounds = [row["round"] for row in self.timing], {_METRICS: [row["round"] for row in self.rows]}
        rounds |= {kind: blocks[0]["round"].tolist() if blocks else [] for kind, blocks in self._blocks.items()}
        last = {name: max(of_kind, default=0) for name, of_kind in rounds.items()}
        reached = min(last[_METRICS], last["spectra"], last["clients"])
        if reached != evaluated or last["clients"] != round:
            raise Damaged(f"{self.folder}: its checkpoint is of round {round}, its metrics end at {reached}")
        evaluated = rounds[_METRICS if rounds[_METRICS] == timed else "spectra"]  # two of the three agree
        expected = dict.fromkeys(rounds, evaluated) | {"clients": list(range(1, round + 1))}
        expected["measurements"] = [
            now
            for before, now in zip([0, *evaluated], evaluated, strict=False)
            if now % measure_every < now - before or now in rounds["measurements"]  # as at the end of a run
        ]
        for name, found in rounds.items():
            for number, (is_, should) in enumerate(zip(found, expected[name], strict=False), 1):
                if is_ != should:
                    place = f"{self.folder / name}, {'line' if name == _METRICS else 'entry'} {number}"
                    raise Damaged(f"{place}: round {is_}, expected round {should}")

    def cut(self) -> None:
        """Removes later rounds than this history's from the folder."""
        if self.folder:
            self._metrics.cut()
            self._timing.cut()
            for kind in KINDS:
                blocks = self._blocks[kind]
                forget_after(self.folder, kind, int(blocks[-1]["round"][-1]) if blocks else 0)


def _one_round(arrays):
    return {name: np.asarray(values)[None] for name, values in arrays.items()}


def _check_measurements(measurements):
    for name, values in measurements.items():
        if name in _TAKEN:
            raise UserError(f"measurement {name!r}: this name is taken; choose another one")
        if (dtype := np.asarray(values).dtype).kind not in "biufc":
            raise UserError(f"measurement {name!r} is of type {dtype}, expected numbers")
