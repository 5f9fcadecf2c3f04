"""What a study folder holds, and means and standard deviations over its seeds.

A study compares arms (configurations); each arm is run with several seeds. One run's folder is ``<arm>/seed<k>``.
"""

import contextlib
import dataclasses
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.analysis.spectrum import FLOOR
from fedjax_collapse.records import UserError

SUMMARISED = ("accuracy", "best_accuracy", "last10_accuracy", "effective_rank", "significant_dims", "R")

Row = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]
Summary = Mapping[str, Mapping[str, Any]]


class Run(NamedTuple):
    """One arm with one seed; what was not recorded is empty."""

    arm: str
    seed: int
    metrics: tuple[Row, ...]  # one row per evaluated round, in order
    timing: tuple[Row, ...]  # likewise
    clients: Arrays
    spectra: Arrays
    partition: Arrays


class Curve(NamedTuple):
    """A metric of one arm over rounds; ``std`` is NaN where fewer than two seeds have a value."""

    rounds: np.ndarray
    mean: np.ndarray
    std: np.ndarray


class LogSpectra(NamedTuple):
    """Natural logarithms of the eigenvalues, in descending order, averaged over ``num_seeds`` seeds."""

    round: int
    server: np.ndarray
    local: np.ndarray
    num_seeds: int


@dataclasses.dataclass(frozen=True)
class Study:
    """All that is on disk of a study, and what of it is averaged over seeds."""

    path: Path
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    saved_summary: Summary
    runs: tuple[Run, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that have results, in the order of the config."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def rounds(self) -> int:
        """The configured number of rounds, or where there is none the last round of any run."""
        configured = self.config.get("rounds")
        return configured if isinstance(configured, int) else max(run.metrics[-1]["round"] for run in self.runs)

    @property
    def summary(self) -> Summary:
        """The saved summary; an arm that it lacks is summarised from its rows."""
        return {arm: self._last_round(arm) for arm in self.arms} | dict(self.saved_summary)

    def of_arm(self, arm: str) -> tuple[Run, ...]:
        """The runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def curve(self, arm: str, metric: str) -> Curve:
        """Mean and standard deviation (n - 1 in the denominator) over the seeds that have a value, per round."""
        values: dict[int, list[float]] = {}
        for row in (row for run in self.of_arm(arm) for row in run.metrics):
            if math.isfinite(value := number(row.get(metric))):
                values.setdefault(row["round"], []).append(value)
        rounds = sorted(values)
        moments = np.array([_moments(values[r]) for r in rounds]).reshape(-1, 2)
        return Curve(np.array(rounds, int), moments[:, 0], moments[:, 1])

    def log_spectra(self, arm: str) -> LogSpectra | None:
        """The spectra at the last round that any run of the arm saved, over the runs that saved it."""
        runs = [run.spectra for run in self.of_arm(arm) if len(run.spectra.get("round", ()))]
        if not runs:
            return None
        last = max(int(arrays["round"].max()) for arrays in runs)
        runs = [arrays for arrays in runs if last in arrays["round"]]

        def log(name: str) -> np.ndarray:
            rows = np.array([arrays[name][arrays["round"] == last][-1] for arrays in runs])
            finite = rows[np.isfinite(rows).all(axis=1)]
            return np.log(np.maximum(finite if len(finite) else rows, FLOOR)).mean(axis=0)

        return LogSpectra(last, log("server"), log("local"), len(runs))

    def _last_round(self, arm: str) -> Mapping[str, Any]:
        """The arm's part of a summary, at the last round that any of its runs reached."""
        last = max(run.metrics[-1]["round"] for run in self.of_arm(arm))
        finished = [run.metrics for run in self.of_arm(arm) if run.metrics[-1]["round"] == last]
        return summarize_seeds([summarize_run(rows) for rows in finished])


def summarize_run(rows: Sequence[Row]) -> dict[str, float]:
    """One run's numbers: those of its last row; also the best accuracy and the mean of the last ten evaluated ones."""
    accuracies = [value for row in rows if math.isfinite(value := number(row.get("accuracy")))]
    over_rounds = {
        "best_accuracy": max(accuracies, default=math.nan),
        "last10_accuracy": _moments(accuracies[-10:])[0],
    }
    return {metric: number(over_rounds.get(metric, rows[-1].get(metric))) for metric in SUMMARISED}


def summarize_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of every summarised metric mean, standard deviation (n - 1) and number of the runs that have a value."""
    summary = {}
    for metric in SUMMARISED:
        values = [value for run in runs if math.isfinite(value := number(run.get(metric)))]
        mean, std = (moment if math.isfinite(moment) else None for moment in _moments(values))
        summary[metric] = {"mean": mean, "std": std, "n": len(values)}
    return summary


def number(value: Any) -> float:
    """The value as a float; NaN for null and for what is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_study(path: Path | str) -> Study:
    """The study in a folder. ``config.json`` and the rows of at least one run are required, the rest is optional.

    Raises:
        UserError: the folder holds no study, or a file in it cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected the folder of a study")
    if not (path / "config.json").is_file():
        raise UserError(f"{path / 'config.json'}: no such file; expected the folder of a study")
    config = _read_json(path / "config.json")
    order = list(config.get("arms") or ())
    folders = [file.parent for file in path.glob("*/seed*/metrics.jsonl")]
    runs = [_read_run(folder) for folder in folders if folder.name.removeprefix("seed").isdecimal()]
    runs = [run for run in runs if run.metrics]
    if not runs:
        raise UserError(f"{path}: no evaluated round in any <arm>/seed<k>/metrics.jsonl; start the study first")
    runs.sort(key=lambda run: (order.index(run.arm) if run.arm in order else len(order), run.arm, run.seed))
    summary = _read_json(path / "summary.json", optional=True)
    for arm, metrics in summary.items():
        if not isinstance(metrics, dict) or not all(
            entry is None or isinstance(entry, dict) for entry in metrics.values()
        ):
            raise UserError(f"{path / 'summary.json'}: arm {arm!r} should map metrics to mean, std and n")
    return Study(path, config, _read_json(path / "provenance.json", optional=True), summary, tuple(runs))


def _read_run(folder: Path) -> Run:
    return Run(
        folder.parent.name,
        int(folder.name.removeprefix("seed")),
        _read_rows(folder / "metrics.jsonl"),
        _read_rows(folder / "timing.jsonl", optional=True),
        _read_arrays(folder / "clients.npz", ("round",), per_round=("task_loss", "steps")),
        _read_arrays(folder / "spectra.npz", ("round", "server", "local"), per_round=("server", "local")),
        _read_arrays(folder / "partition.npz", ("class_counts",)),
    )


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    return _parse(path, _read_text(path))


def _read_rows(path: Path, optional: bool = False) -> tuple[Row, ...]:
    """Rows by round; of a round that was written twice, the later. A last line cut short by a crash is left out."""
    if optional and not path.exists():
        return ()
    complete, _, rest = _read_text(path).rpartition("\n")
    rows = [_parse(path, line) for line in complete.splitlines() if line.strip()]
    with contextlib.suppress(UserError):
        rows += [_parse(path, rest)] if rest.strip() else []
    by_round = {}
    for row in rows:
        if type(row.get("round")) is not int:
            raise UserError(f"{path}: a row has no whole number as its round")
        by_round[row["round"]] = row
    return tuple(by_round[r] for r in sorted(by_round))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__})") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}: expected a JSON object")
    return record


def _read_arrays(path: Path, required: Iterable[str], per_round: Iterable[str] = ()) -> Arrays:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: not a readable .npz file ({type(error).__name__})") from error
    for name in required:
        if name not in arrays:
            raise UserError(f"{path}: has no array {name!r}")
    for name in per_round:
        if name in arrays and (arrays[name].ndim != 2 or len(arrays[name]) != len(arrays["round"])):
            raise UserError(f"{path}: {name!r} has shape {arrays[name].shape}, expected a row for each of its rounds")
    return arrays


def _moments(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; NaN where undefined."""
    return (
        float(np.mean(values)) if values else math.nan,
        float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
    )
