"""What rounds leave behind: rows of numbers, arrays per client, spectra. In memory and, given a folder, on disk.

``metrics.jsonl`` has a row per evaluated round (NaN as null) and nothing that depends on the machine's speed, so two
equal runs write equal files; wall-clock times are in ``timing.jsonl``. ``clients.npz`` and ``spectra.npz`` hold arrays.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_collapse.records import UserError


class History:
    """Rows and arrays of one run, in the order of rounds."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.rows: list[dict] = []
        self.timing: list[dict] = []
        self._clients: dict[str, list[np.ndarray]] = {}
        self._spectra: dict[str, list[np.ndarray]] = {}

    def add(self, row: Mapping, timing: Mapping, clients: Mapping, spectra: Mapping) -> None:
        """One evaluated round: its row, its times, its arrays [rounds since the last one, ...], its spectra [...]."""
        self.rows.append(dict(row))
        self.timing.append(dict(timing))
        for name, values in clients.items():
            self._clients.setdefault(name, []).extend(np.asarray(values))
        for name, values in spectra.items():
            self._spectra.setdefault(name, []).append(np.asarray(values))
        if self.folder:
            _append_line(self.folder / "metrics.jsonl", row)
            _append_line(self.folder / "timing.jsonl", timing)

    @property
    def clients(self) -> dict[str, np.ndarray]:
        """``round`` [rounds] and each metric [rounds, clients]; NaN for a client outside the cohort."""
        return {name: np.stack(values) for name, values in self._clients.items()}

    @property
    def spectra(self) -> dict[str, np.ndarray]:
        """``round`` [rounds] and descending eigenvalues ``server`` and ``local`` [rounds, features]."""
        return {name: np.stack(values) for name, values in self._spectra.items()}

    def save_arrays(self) -> None:
        """Writes the arrays; called before a checkpoint, so that a checkpoint never knows more rounds than they do."""
        if self.folder:
            write_npz(self.folder / "clients.npz", self.clients)
            write_npz(self.folder / "spectra.npz", self.spectra)

    @classmethod
    def resume(cls, folder: Path, round: int) -> "History":
        """The history on disk up to ``round``; whatever was written after it is removed.

        Raises:
            UserError: a file is missing or does not reach that round.
        """
        history = cls(folder)
        history.rows = _keep_rows(folder / "metrics.jsonl", round)
        history.timing = _keep_rows(folder / "timing.jsonl", round)
        history._clients = _read_npz(folder / "clients.npz", round)
        history._spectra = _read_npz(folder / "spectra.npz", round)
        reached = [rows[-1]["round"] if rows else 0 for rows in (history.rows, history.timing)]
        reached += [int(arrays["round"][-1]) if arrays else 0 for arrays in (history._clients, history._spectra)]
        if reached != [round] * 4:
            raise UserError(
                f"{folder}: its checkpoint is of round {round}, its metrics end at {min(reached)}; use a new folder"
            )
        return history


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file in one piece: a reader sees the old or the new one, never a part."""
    _replace(path, (json.dumps(_plain(content), indent=2) + "\n").encode())


def _append_line(path, row):
    with path.open("a") as file:
        file.write(json.dumps(_plain(row)) + "\n")


def _keep_rows(path, round):
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a killed run
            break
    rows = [row for row in rows if row["round"] <= round]
    _replace(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes named arrays in one piece, as ``write_json`` does."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(temporary, path)


def _read_npz(path, round):
    if not path.exists() or not round:
        return {}
    with np.load(path) as arrays:
        keep = arrays["round"] <= round
        return {name: list(arrays[name][keep]) for name in arrays.files}


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
