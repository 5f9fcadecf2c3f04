"""What a study folder holds, and means and standard deviations over its seeds.

A study compares arms (configurations), maybe in several settings; each is run with several seeds. One run's folder is
``<arm>/seed<k>``, or ``<setting>/<arm>/seed<k>``.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.config.cells import CellName, cells_of, merged, settings_of
from experiments.results.metrics import (
    ACCURACY,
    BEST_ACCURACY,
    LARGEST,
    LAST10_ACCURACY,
    OVER_CLIENTS,
    SUMMARISED,
    R,
    is_of_domain,
    number,
)
from experiments.results.selection import Selection
from fedjax_collapse.core.records import MEASURED
from fedjax_collapse.simulation.measurement import HEADLINES
from fedjax_collapse.storage.round_arrays import read_arrays

Row = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]
Summary = Mapping[CellName, Mapping[str, Any]]


class Run(NamedTuple):
    """One arm with one seed; what was not recorded is empty."""

    arm: str
    seed: int
    metrics: tuple[Row, ...]  # one row per evaluated round, in order
    timing: tuple[Row, ...]  # likewise
    clients: Arrays
    spectra: Arrays
    partition: Arrays
    setting: str = ""  # of a study that has some
    folder: Path | None = None  # None for a run that is in memory alone
    is_finished: bool = True
    headline: str = ""  # what its accuracy is of; empty if nothing says so
    local: str = ""  # whose models R is of, and all else that is local
    notes: tuple[str, ...] = ()  # what of it is damaged and left out

    @property
    def cell(self) -> CellName:
        return CellName(self.setting, self.arm)

    @property
    def last_round(self) -> int:
        return self.metrics[-1]["round"]


@dataclasses.dataclass(frozen=True)
class Study:
    """All that is on disk of a study, and what of it is averaged over seeds."""

    path: Path
    config: Mapping[str, Any]
    starts: tuple[Mapping[str, Any], ...]  # what each start of it says where its numbers come from
    saved_summary: Mapping[str, Mapping[str, Any]]  # as ``summary.json`` has it, by the cell's name as text
    runs: tuple[Run, ...]
    setting: str = ""  # of which study this is a part

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that have results, in the order of the config."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that have results, likewise; one that is empty in a study without settings."""
        return tuple(dict.fromkeys(run.setting for run in self.runs))

    @property
    def notes(self) -> tuple[str, ...]:
        """What of its files is damaged and left out."""
        return tuple(note for run in self.runs for note in run.notes)

    @property
    def unfinished(self) -> dict[CellName, dict[int, str]]:
        """How far each run is that is not finished, by cell and seed."""
        found: dict[CellName, dict[int, str]] = {}
        for run in self.runs:
            if not run.is_finished:
                found.setdefault(run.cell, {})[run.seed] = self.how_far(run)
        return found

    def how_far(self, run: Run) -> str:
        """Which of its rounds a run has come to."""
        return f"round {run.last_round} of {self.of_setting(run.setting).rounds}"

    def finished(self) -> "Study":
        """The study without runs that are not finished."""
        return dataclasses.replace(self, runs=tuple(run for run in self.runs if run.is_finished))

    def with_unfinished(self) -> "Study":
        """The study in which runs that are not finished are of arms of their own, whose names say how far they are."""

        def marked(run):
            return run._replace(arm=f"{run.arm} (unfinished: {self.how_far(run)})", is_finished=True)

        return dataclasses.replace(self, runs=tuple(run if run.is_finished else marked(run) for run in self.runs))

    def of_setting(self, setting: str) -> "Study":
        """The study that this setting alone would be."""
        if not self.config.get("settings"):
            return self
        config = {name: value for name, value in self.config.items() if name not in ("settings", "means", "paper")}
        return dataclasses.replace(
            self,
            config=merged(config, settings_of(self.config).get(setting) or {}),
            runs=tuple(run._replace(setting="") for run in self.runs if run.setting == setting),
            setting=setting,
        )

    @property
    def rounds(self) -> int:
        """The configured number of rounds, or where there is none the last round of any run."""
        return self.config.get("rounds") or max((run.last_round for run in self.runs), default=0)

    @property
    def summary(self) -> Summary:
        """By cell, in the order of the config, of all finished runs; of a cell without any run what was saved."""
        settings = list(dict.fromkeys([*settings_of(self.config), *self.settings]))
        cells = dict.fromkeys([*cells_of(self.config), *(run.cell for run in self.runs)])
        found = {cell: self._summarize(cell) for cell in sorted(cells, key=lambda cell: settings.index(cell.setting))}
        return {cell: metrics for cell, metrics in found.items() if metrics}

    @functools.cached_property
    def table(self) -> Selection:
        """All evaluations: a row for each run and evaluated round, a column for each metric, None if not recorded."""
        metrics = dict.fromkeys(name for run in self.runs for row in run.metrics for name in row if name != "round")
        rows = [
            (*run.cell[:2], run.seed, row["round"], *map(row.get, metrics)) for run in self.runs for row in run.metrics
        ]
        return Selection(("setting", "arm", "seed", "round", *metrics), rows)

    @property
    def measurements(self) -> tuple[str, ...]:
        """Metrics that are a user's own, of any run, in the order in which they were recorded."""
        return tuple(dict.fromkeys(name for run in self.runs for name in measured(run.metrics)))

    def of_local(self, metric: str) -> str:
        """The name of a metric of local models: of its mean over clients where several are watched."""
        mean = f"{metric}_mean"
        return mean if mean in self.table.heading else metric

    @property
    def domain_accuracies(self) -> tuple[str, ...]:
        """Metrics that are accuracies on the test examples of a domain, ``domain_accuracy/<domain>``."""
        return tuple(filter(is_of_domain, self.table.heading))

    @property
    def num_features(self) -> dict[str, int]:
        """Of each arm that saved spectra, how many features its network has."""
        saved = {run.arm: run.spectra["server"] for run in self.runs if len(run.spectra.get("round", ()))}
        return {arm: spectra.shape[1] for arm, spectra in saved.items()}

    def of_arm(self, arm: str) -> tuple[Run, ...]:
        """The runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def of_cell(self, cell: CellName) -> tuple[Run, ...]:
        """The runs of one arm in one setting, by seed."""
        return tuple(run for run in self.runs if run.cell == cell)

    def measured_arrays(self, run: Run) -> Arrays:
        """What its measurements saved; read when it is asked for, as it may be larger than all else of a report."""
        return shown(read_arrays(run.folder, "measurements")) if run.folder else {}

    def shared_by(self, arm: str) -> int:
        """How many runs divide the time of the arm's program among them, at most; 1 if it has its own."""
        counts = [number(row.get("shared_by")) for run in self.of_arm(arm) for row in run.timing]
        return int(max((count for count in counts if count > 1), default=1))

    def _summarize(self, cell: CellName) -> Mapping[str, Any]:
        """The cell's part of a summary, with what was saved of those of its runs that failed; if it has no run, all
        that was saved of it."""
        saved = self.saved_summary.get(str(cell._replace(setting=cell.setting or self.setting)), {})
        if not (of_cell := self.of_cell(cell)):
            return saved
        runs = {f"seed{run.seed}": run for run in of_cell if run.is_finished}
        told = (dict(headline=run.headline, local=run.local, **summarize_run(run.metrics)) for run in runs.values())
        failed = {seed: line for seed, line in saved.get("failed", {}).items() if seed not in runs}
        return summarize_seeds(list(told)) | ({"failed": failed} if failed else {})


def measured(rows: Iterable[Row]) -> tuple[str, ...]:
    """The user's own metrics in the rows: those with a number in any of them."""
    values = ((name, value) for row in rows for name, value in row.items() if name.startswith(MEASURED))
    return tuple(dict.fromkeys(name for name, value in values if math.isfinite(number(value))))


def summarize_run(rows: Sequence[Row]) -> dict[str, float]:
    """One run's numbers: of its last row; of evaluated accuracies the best, and the mean of the last ten if so many and
    none of them is null, as that of a model that is not finite."""
    accuracies = [number(row.get(ACCURACY.name)) for row in rows]
    over_rounds = {
        BEST_ACCURACY.name: max(filter(math.isfinite, accuracies), default=math.nan),
        LAST10_ACCURACY.name: mean_and_std(accuracies[-10:])[0] if len(accuracies) >= 10 else math.nan,
    }
    over_clients = [metric.name for metric in OVER_CLIENTS if any(metric.name in row for row in rows)]
    metrics = (*(metric.name for metric in SUMMARISED), *over_clients, *measured(rows))
    return {metric: number(over_rounds.get(metric, rows[-1].get(metric))) for metric in metrics}


def summarize_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of every metric of the runs mean, standard deviation (n - 1) and number of the runs that have a value.

    ``of``: what the accuracy is of, and whose models R is of, where the runs say so.
    """
    summary = {}
    of_clients = {metric.name for metric in OVER_CLIENTS}
    recorded = (name for run in runs for name in run if name in of_clients or name.startswith(MEASURED))
    for metric in dict.fromkeys((*(metric.name for metric in SUMMARISED), *recorded)):
        values = [value for run in runs if math.isfinite(value := number(run.get(metric)))]
        summary[metric] = moments(values)
    for metric, key in ((ACCURACY, "headline"), (R, "local")):
        if of := sorted({run[key] for run in runs if run.get(key)}):
            summary[metric.name]["of"] = ", ".join(of)
    return summary


def moments(values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1) and number of the values; None where undefined."""
    mean, std = (moment if math.isfinite(moment) else None for moment in mean_and_std(values))
    return {"mean": mean, "std": std, "n": len(values)}


def is_of(values: np.ndarray, dimensions: int, kinds: str = "f") -> bool:
    """Whether an array that a measurement saved is one of so many dimensions and of such numbers, and not empty."""
    return values.ndim == dimensions and values.dtype.kind in kinds and values.size > 0


def headline_of(rows: Sequence[Row]) -> str:
    """Which of the accuracies in rows their headline is, as ``measurement.HEADLINES`` has it; empty if none."""
    for kind, meaning in HEADLINES.items():
        if all(f"{kind}_accuracy" in row and row[f"{kind}_accuracy"] == row.get(ACCURACY.name) for row in rows):
            return meaning
    return ""


def shown(arrays: Arrays) -> Arrays:
    """The arrays, with NaN for numbers that are too large to be shown."""
    large = {name: np.abs(a) > LARGEST for name, a in arrays.items() if a.dtype.kind == "f" and a.dtype.itemsize > 4}
    return arrays | {name: np.where(where, np.nan, arrays[name]) for name, where in large.items() if where.any()}


def mean_and_std(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; NaN where undefined."""
    return (
        float(np.mean(values)) if values else math.nan,
        float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
    )
