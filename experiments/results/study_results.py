"""The results in a study's folder, and means and standard deviations over its seeds.

A study compares arms (configurations), possibly in several settings; each is run with several seeds. The folder of a
run is ``<arm>/seed<k>``, or ``<setting>/<arm>/seed<k>``.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.results.metrics import (
    ACCURACY,
    BEST_ACCURACY,
    BY_VALIDATION,
    LARGEST,
    LAST10_ACCURACY,
    OPTIONAL,
    OWN_VALIDATION,
    SUMMARISED,
    VALIDATION,
    VALIDATION_ROUND,
    Metric,
    R,
    headline_in,
    is_of_domain,
    is_privacy,
    number,
)
from experiments.results.selection import Selection
from fedjax_collapse.config.cells import CellName, cells_of, merged, settings_of
from fedjax_collapse.core.records import MEASURED
from fedjax_collapse.core.round_arrays import read_arrays
from fedjax_collapse.run.measurement import HEADLINES

Row = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]
Summary = Mapping[CellName, Mapping[str, Any]]


class Run(NamedTuple):
    """One arm with one seed; fields that were not recorded are empty."""

    arm: str
    seed: int
    metrics: tuple[Row, ...]  # one row per evaluated round, in order
    timing: tuple[Row, ...]  # likewise
    clients: Arrays
    spectra: Arrays
    partition: Arrays
    setting: str = ""  # empty if the study has no settings
    folder: Path | None = None  # None for a run in memory
    is_finished: bool = True
    headline: str = ""  # which model its accuracy is of; empty if not recorded
    local: str = ""  # whose models R and the other local metrics are of
    notes: tuple[str, ...] = ()  # its damaged files, which are left out

    @property
    def cell(self) -> CellName:
        return CellName(self.setting, self.arm)

    @property
    def last_round(self) -> int:
        return self.metrics[-1]["round"]


@dataclasses.dataclass(frozen=True)
class Study:
    """All saved results of a study."""

    path: Path
    config: Mapping[str, Any]
    starts: tuple[Mapping[str, Any], ...]  # the provenance recorded by each start
    saved_summary: Mapping[str, Mapping[str, Any]]  # from ``summary.json``, by the cell's name as text
    runs: tuple[Run, ...]
    setting: str = ""  # if this is the part of a study for one setting

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that have results, in the order of the config."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that have results, in the order of the config; one empty name without settings."""
        return tuple(dict.fromkeys(run.setting for run in self.runs))

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about damaged files, which are left out."""
        return tuple(note for run in self.runs for note in run.notes)

    @property
    def unfinished(self) -> dict[CellName, dict[int, str]]:
        """The progress of each unfinished run, by cell and seed."""
        found: dict[CellName, dict[int, str]] = {}
        for run in self.runs:
            if not run.is_finished:
                found.setdefault(run.cell, {})[run.seed] = self.how_far(run)
        return found

    def how_far(self, run: Run) -> str:
        """Describes the progress of a run."""
        return f"round {run.last_round} of {self.of_setting(run.setting).rounds}"

    def finished(self) -> "Study":
        """Returns the study without unfinished runs."""
        return dataclasses.replace(self, runs=tuple(run for run in self.runs if run.is_finished))

    def with_unfinished(self) -> "Study":
        """Returns the study with unfinished runs as separate arms, whose names include their progress."""

        def marked(run):
            return run._replace(arm=f"{run.arm} (unfinished: {self.how_far(run)})", is_finished=True)

        return dataclasses.replace(self, runs=tuple(run if run.is_finished else marked(run) for run in self.runs))

    def of_setting(self, setting: str) -> "Study":
        """Returns the part of the study for this setting, as a study without settings."""
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
    def score(self) -> Metric:
        """The metric that is compared: the accuracy or, if no run has one, the score of its task."""
        return headline_in(self.table.heading)

    @property
    def rounds(self) -> int:
        """The configured number of rounds or, without one, the last round of any run."""
        return self.config.get("rounds") or max((run.last_round for run in self.runs), default=0)

    @property
    def summary(self) -> Summary:
        """The summary of all finished runs by cell, in the order of the config; without runs what was saved."""
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

    @functools.cached_property
    def numbers(self) -> dict[tuple[CellName, int], dict[str, float]]:
        """The numbers of each run that summaries are of, by cell and seed."""
        return {(run.cell, run.seed): summarize_run(run.metrics) for run in self.runs}

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the custom metrics of any run, in the order in which they were recorded."""
        return tuple(dict.fromkeys(name for run in self.runs for name in measured(run.metrics)))

    def of_local(self, metric: str) -> str:
        """Returns the name of a metric of local models; of its mean over clients if several are watched."""
        mean = f"{metric}_mean"
        return mean if mean in self.table.heading else metric

    @property
    def domain_accuracies(self) -> tuple[str, ...]:
        """Names of the accuracies on the test examples of a domain, ``domain_accuracy/<domain>``."""
        return tuple(filter(is_of_domain, self.table.heading))

    @property
    def num_features(self) -> dict[str, int]:
        """The number of features of each arm that saved spectra."""
        saved = {run.arm: run.spectra["server"] for run in self.runs if len(run.spectra.get("round", ()))}
        return {arm: spectra.shape[1] for arm, spectra in saved.items()}

    def of_arm(self, arm: str) -> tuple[Run, ...]:
        """Returns the runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def of_cell(self, cell: CellName) -> tuple[Run, ...]:
        """Returns the runs of one arm in one setting, by seed."""
        return self._by_cell.get(cell, ())

    @functools.cached_property
    def _by_cell(self) -> dict[CellName, tuple[Run, ...]]:
        found: dict[CellName, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.cell, []).append(run)
        return {cell: tuple(runs) for cell, runs in found.items()}

    def measured_arrays(self, run: Run) -> Arrays:
        """Reads the arrays of the run's measurements, which are not read in advance because they may be very large."""
        return shown(read_arrays(run.folder, "measurements")) if run.folder else {}

    def shared_by(self, arm: str) -> int:
        """Returns the largest number of runs that share the time of the arm's program; 1 if it has its own."""
        counts = [number(row.get("shared_by")) for run in self.of_arm(arm) for row in run.timing]
        return int(max((count for count in counts if count > 1), default=1))

    def _summarize(self, cell: CellName) -> Mapping[str, Any]:
        """Returns the cell's part of a summary, with the saved messages of its failed runs.

        Without runs it is everything that was saved.
        """
        saved = self.saved_summary.get(str(cell._replace(setting=cell.setting or self.setting)), {})
        if not (of_cell := self.of_cell(cell)):
            return saved
        runs = {f"seed{run.seed}": run for run in of_cell if run.is_finished}
        numbers = self.numbers
        summaries = (dict(headline=r.headline, local=r.local, **numbers[cell, r.seed]) for r in runs.values())
        failed = {seed: line for seed, line in saved.get("failed", {}).items() if seed not in runs}
        return summarize_seeds(list(summaries)) | ({"failed": failed} if failed else {})


def measured(rows: Iterable[Row]) -> tuple[str, ...]:
    """Returns the names of custom metrics that have a number in any of the rows."""
    values = ((name, value) for row in rows for name, value in row.items() if name.startswith(MEASURED))
    return tuple(dict.fromkeys(name for name, value in values if math.isfinite(number(value))))


def summarize_run(rows: Sequence[Row]) -> dict[str, float]:
    """Returns one run's numbers: those of its last row, the best accuracy, and the mean of the last ten accuracies.

    The mean is NaN if there are fewer than ten evaluations or one of them is null, as for a model that is not finite.
    With validation rows also the first round that is best on them, and its accuracy.
    """
    accuracies = [number(row.get(ACCURACY.name)) for row in rows]
    over_rounds = {
        BEST_ACCURACY.name: max(filter(math.isfinite, accuracies), default=math.nan),
        LAST10_ACCURACY.name: mean_and_std(accuracies[-10:])[0] if len(accuracies) >= 10 else math.nan,
    }
    for name in (VALIDATION.name, OWN_VALIDATION):
        if validated := [row for row in rows if math.isfinite(number(row.get(name)))]:
            best = max(validated, key=lambda row: row[name])
            over_rounds |= {BY_VALIDATION.name: number(best.get(ACCURACY.name)), VALIDATION_ROUND.name: best["round"]}
    found = {*over_rounds, *(name for row in rows for name in row)}
    optional = [metric.name for metric in OPTIONAL if metric.name in found]
    optional += filter(is_privacy, rows[-1])
    metrics = (*(metric.name for metric in SUMMARISED), *optional, *measured(rows))
    return {metric: number(over_rounds.get(metric, rows[-1].get(metric))) for metric in metrics}


def summarize_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns mean, standard deviation (n - 1) and number of the runs that have a value, for every metric.

    ``of`` tells which model the accuracy is of, and whose models R is of, if the runs recorded that.
    """
    summary = {}
    optional = {metric.name for metric in OPTIONAL}
    recorded = (
        name for run in runs for name in run if name in optional or name.startswith(MEASURED) or is_privacy(name)
    )
    for metric in dict.fromkeys((*(metric.name for metric in SUMMARISED), *recorded)):
        values = [value for run in runs if math.isfinite(value := number(run.get(metric)))]
        summary[metric] = moments(values)
    for metric, key in ((ACCURACY, "headline"), (R, "local")):
        if of := sorted({run[key] for run in runs if run.get(key)}):
            summary[metric.name]["of"] = ", ".join(of)
    return summary


def moments(values: list[float]) -> dict[str, Any]:
    """Returns mean, standard deviation (n - 1) and number of the values; None where undefined."""
    mean, std = (moment if math.isfinite(moment) else None for moment in mean_and_std(values))
    return {"mean": mean, "std": std, "n": len(values)}


def is_of(values: np.ndarray, dimensions: int, kinds: str = "f") -> bool:
    """Returns whether a measurement's array has this number of dimensions and kind of numbers, and is not empty."""
    return values.ndim == dimensions and values.dtype.kind in kinds and values.size > 0


def headline_of(rows: Sequence[Row]) -> str:
    """Returns which accuracy the headline of these rows is, in the words of ``HEADLINES``; empty if unknown."""
    for kind, meaning in HEADLINES.items():
        if all(f"{kind}_accuracy" in row and row[f"{kind}_accuracy"] == row.get(ACCURACY.name) for row in rows):
            return meaning
    return ""


def shown(arrays: Arrays) -> Arrays:
    """Replaces numbers that are too large to be shown by NaN."""
    large = {name: np.abs(a) > LARGEST for name, a in arrays.items() if a.dtype.kind == "f" and a.dtype.itemsize > 4}
    return arrays | {name: np.where(where, np.nan, arrays[name]) for name, where in large.items() if where.any()}


def mean_and_std(values: list[float]) -> tuple[float, float]:
    """Returns mean and sample standard deviation; NaN where undefined."""
    if len(values) > 1 and len(set(values)) == 1:  # such as epsilon; their mean may differ by rounding
        return values[0], 0.0
    mean = float(np.mean(values)) if values else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
