"""What rounds leave behind: rows of numbers, and arrays. In memory and, given a folder, on disk.

``metrics.jsonl`` has a row per evaluated round (NaN as null) and nothing that depends on the machine's speed, so two
equal runs write equal files; wall-clock times are in ``timing.jsonl``. Arrays are of three kinds, ``clients``,
``spectra`` and ``measurements``: a save writes those of the rounds since the last one, so that it costs the same in
every round, and the end of the run makes one file of each kind (``arrays.py``).
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_collapse.arrays import (
    Arrays,
    between,
    check_alike,
    forget_after,
    join,
    merge_segments,
    read_arrays,
    write_segment,
)
from fedjax_collapse.arrays import write_npz as write_npz
from fedjax_collapse.records import UserError

KINDS = ("clients", "spectra", "measurements")
_TAKEN = ("round", "file", "allow_pickle")  # the array of rounds, and arguments of np.savez


class History:
    """Rows and arrays of one run, in the order of rounds."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.rows: list[dict] = []
        self.timing: list[dict] = []
        self._blocks: dict[str, list[Arrays]] = {kind: [] for kind in KINDS}
        self._num_saved = dict.fromkeys(KINDS, 0)  # of the blocks

    def add(
        self, row: Mapping, timing: Mapping, clients: Mapping, spectra: Mapping, measurements: Mapping | None = None
    ) -> None:
        """One evaluated round: its row and times, and three kinds of arrays.

        Args:
            clients: ``round`` [rounds since the last evaluation], and arrays [those rounds, ...].
            spectra: ``round`` [], and arrays of this round.
            measurements: arrays of this round, of any shape.

        Raises:
            UserError: names or shapes of arrays differ from those of the round before, or a measurement is not
                numbers or has a name that is taken. Nothing is added then.
        """
        new = {"clients": clients, "spectra": _one_round(spectra)}
        if measurements:
            _check_measurements(measurements)
            new["measurements"] = _one_round({"round": row["round"], **measurements})
        new = {kind: {name: np.asarray(array) for name, array in arrays.items()} for kind, arrays in new.items()}
        for kind, arrays in new.items():
            check_alike(kind, arrays, self._blocks[kind])
        for kind, arrays in new.items():
            self._blocks[kind].append(arrays)
        self.rows.append(dict(row))
        self.timing.append(dict(timing))
        if self.folder:
            _append_line(self.folder / "metrics.jsonl", row)
            _append_line(self.folder / "timing.jsonl", timing)

    @property
    def clients(self) -> Arrays:
        """``round`` [rounds] and each metric [rounds, clients]; NaN for a client outside the cohort."""
        return join(self._blocks["clients"])

    @property
    def spectra(self) -> Arrays:
        """``round`` [rounds] and descending eigenvalues ``server`` and ``local`` [rounds, features]."""
        return join(self._blocks["spectra"])

    @property
    def measurements(self) -> Arrays:
        """``round`` [rounds] and each measurement [rounds, ...]; empty if there are none."""
        return join(self._blocks["measurements"])

    def save_arrays(self) -> None:
        """Writes the arrays of the rounds since the last save.

        Called before a checkpoint, so that a checkpoint never knows more rounds than they do.
        """
        for kind in KINDS:
            if self.folder and (new := join(self._blocks[kind][self._num_saved[kind] :])):
                write_segment(self.folder, kind, new)
                self._num_saved[kind] = len(self._blocks[kind])

    def finish(self) -> None:
        """Saves, and makes one file of each kind of arrays; called when the run has done all its rounds."""
        self.save_arrays()
        for kind in KINDS:
            if self.folder:
                merge_segments(self.folder, kind, join(self._blocks[kind]))

    @classmethod
    def resume(cls, folder: Path, round: int) -> "History":
        """The history on disk up to ``round``; whatever was written after it is removed.

        Raises:
            UserError: a file is missing, is damaged or does not reach that round. Nothing is removed then.
        """
        history = cls(folder)
        history.rows = _read_rows(folder / "metrics.jsonl", round)
        history.timing = _read_rows(folder / "timing.jsonl", round)
        for kind in KINDS if round else ():  # before the first round there is nothing to read
            if arrays := between(read_arrays(folder, kind), until=round):
                history._blocks[kind], history._num_saved[kind] = [arrays], 1
        reached = [rows[-1]["round"] if rows else 0 for rows in (history.rows, history.timing)]
        reached += [int(arrays["round"][-1]) if arrays else 0 for arrays in (history.clients, history.spectra)]
        if reached != [round] * 4:
            raise UserError(
                f"{folder}: its checkpoint is of round {round}, its metrics end at {min(reached)}; use a new folder"
            )
        for name, rows in (("metrics", history.rows), ("timing", history.timing)):
            _replace(folder / f"{name}.jsonl", "".join(map(_line, rows)).encode())
        for kind in KINDS:
            forget_after(folder, kind, round)
        return history


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file in one piece: a reader sees the old or the new one, never a part."""
    _replace(path, (json.dumps(_plain(content), indent=2) + "\n").encode())


def _one_round(arrays):
    return {name: np.asarray(values)[None] for name, values in arrays.items()}


def _check_measurements(measurements):
    for name, values in measurements.items():
        if name in _TAKEN:
            raise UserError(f"measurement {name!r}: this name is taken; choose another one")
        if (dtype := np.asarray(values).dtype).kind not in "biufc":
            raise UserError(f"measurement {name!r} is of type {dtype}, expected numbers")


def _append_line(path, row):
    with path.open("a") as file:
        file.write(_line(row))


def _line(row):
    return json.dumps(_plain(row)) + "\n"


def _read_rows(path, round):
    """The rows up to a round, with NaN for null; a last line that a killed run left unfinished is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(_with_nan(json.loads(line)))
        except json.JSONDecodeError:
            break
    return [row for row in rows if row["round"] <= round]


def _replace(path, content: bytes):
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _plain(value):
    """The value as JSON knows it: numbers, with null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_nan(value):
    """The value that ``_plain`` made null where it was not finite."""
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value
