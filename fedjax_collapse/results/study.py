"""The results of a study, or of one run: one frame of all evaluations, with the arrays next to it.

A study compares arms (configurations), possibly in several settings, each with several seeds. Swept values that change
data or partition make settings, too, so that only arms on equal data are compared.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedjax_collapse.config.cells import Arm, CellName, config_of, shown_cells
from fedjax_collapse.config.folder import ARMS, CONFIG, METRICS, SUMMARY, TIMING, seed_of
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import Arrays
from fedjax_collapse.results import reading
from fedjax_collapse.results.annotations import DataFrame
from fedjax_collapse.results.metrics import ACCURACY, SECONDS, Metric, headline_in, is_measured, metric_of
from fedjax_collapse.results.summaries import Row, moments, summarize_run
from fedjax_collapse.run.measurement import HEADLINES
from fedjax_collapse.run.running import Result
from fedjax_collapse.schema.names import check_name

_NONE: Mapping[str, Any] = MappingProxyType({})
_LABELS = ("setting", "arm", "seed")


class NothingEvaluated(UserError):
    """A folder without results."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One arm with one seed.

    Attributes:
        setting: empty if the study has none.
        arm: the name of the arm in its setting.
        seed: the seed.
        metrics: a row of numbers for each evaluated round, in order.
        timing: likewise; empty if not recorded.
        name: of its cell in the config, which names its folder.
        folder: None for a run in memory.
        is_finished: whether all its rounds are done.
        headline: the model that its accuracy is of; empty if not recorded.
        local: the clients that R and the other local metrics are of.
        notes: messages about its damaged rows, which are left out.
        values: the values of the keys that are swept, by the names of the axes.
        arrays: of a run in memory, by kind.
    """

    setting: str
    arm: str
    seed: int
    metrics: Sequence[Row]
    timing: Sequence[Row] = ()
    name: str = ""
    folder: Path | None = None
    is_finished: bool = True
    headline: str = ""
    local: str = ""
    notes: Sequence[str] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, Arrays] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Run({self.cell} seed {self.seed} after round {self.last_round})"

    @property
    def cell(self) -> CellName:
        return CellName(self.setting, self.arm)

    @property
    def last_round(self) -> int:
        return self.metrics[-1]["round"]

    @functools.cached_property
    def numbers(self) -> dict[str, float]:
        """The numbers that tables show of the run; see ``summarize_run``."""
        return summarize_run(self.metrics) | {SECONDS.name: self.seconds_per_round}

    @property
    def seconds_per_round(self) -> float:
        """The median over rounds of the seconds of training, compilation excluded; NaN if not timed."""
        seconds = [row["train"] / count for row, count in self.steady() if math.isfinite(row.get("train", math.nan))]
        return float(np.median(seconds)) if seconds else math.nan

    def steady(self) -> list[tuple[Row, int]]:
        """Returns the timed rows, each with its number of rounds: all but the first and those that compile."""
        rounds = sorted({row["round"] for row in (*self.metrics, *self.timing)})  # a row of timing may be missing
        before = dict(zip(rounds, [0, *rounds], strict=False))
        covered = [(row, row["round"] - before[row["round"]]) for row in self.timing]
        warm = [(row, count) for row, count in covered[1:] if not row.get("compile", math.nan) > 0]
        return warm or covered[1:] or covered

    @functools.cached_property
    def clients(self) -> Arrays:
        """Arrays [rounds, clients] of every trained round, by name; empty if not recorded, as are the next two."""
        return self.read("clients")

    @functools.cached_property
    def spectra(self) -> Arrays:
        """Eigenvalues [rounds, features] of the features' covariance, largest first: ``server`` and ``local``."""
        return self.read("spectra")

    @functools.cached_property
    def partition(self) -> Arrays:
        """``class_counts`` [clients, classes], with names of classes and domains where there are any."""
        return self.read("partition")

    def read(self, kind: str) -> Arrays:
        """Reads the arrays of a kind, also ``measurements`` and ``own_tests``, which may be large."""
        return reading.read_kind(self.folder, kind) if self.folder else self.arrays.get(kind, {})


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Results:
    """The results of a study; ``of_setting`` and ``select`` return parts of it.

    Attributes:
        path: its folder.
        config: its config; empty for a run of ``simulate``.
        runs: in the order of the config, then by seed.
        arms_in: by setting, its arms as the config declares them, also those without results.
        starts: the provenance that each start recorded.
        failed: by cell, messages of failed runs.
        setting: the setting that this is the part for; None for all.
        first: the first arm before ``select`` has sorted them; empty if it has not.
    """

    path: Path
    config: Mapping[str, Any]
    runs: Sequence[Run]
    arms_in: Mapping[str, Mapping[str, Arm]]
    starts: Sequence[Mapping[str, Any]] = ()
    failed: Mapping[CellName, Sequence[str]] = dataclasses.field(default_factory=dict)
    setting: str | None = None
    first: str = ""

    def __repr__(self) -> str:
        return f"Results({self.path}: {len(self.runs)} runs of {', '.join(self.arms)})"

    @functools.cached_property
    def frame(self) -> DataFrame:
        """All evaluations: a row for each run and evaluated round, a column for each metric, NaN if not recorded.

        The first columns are setting, arm, seed, the axes of a sweep, and round.
        """
        return self._tidy(lambda run: run.metrics)

    @functools.cached_property
    def timing(self) -> DataFrame:
        """The times of all evaluations, likewise."""
        return self._tidy(lambda run: run.timing)

    def _tidy(self, rows_of: Callable[[Run], Sequence[Row]]) -> DataFrame:
        import pandas as pd

        rows = [{n: getattr(run, n) for n in _LABELS} | run.values | row for run in self.runs for row in rows_of(run)]
        columns = dict.fromkeys((*_LABELS, *self.axes, "round", *(name for row in rows for name in row)))
        return pd.DataFrame(rows, columns=list(columns))

    @functools.cached_property
    def final(self) -> DataFrame:
        """The numbers of every finished run (``summarize_run``): a row for each, by setting, arm and seed."""
        import pandas as pd

        done = self.finished().runs
        index = pd.MultiIndex.from_tuples([(run.setting, run.arm, run.seed) for run in done], names=_LABELS)
        return pd.DataFrame([run.numbers for run in done], index=index)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that have results, in the order of the config."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def base(self) -> str:
        """The arm that others are compared with by default: the first, however they are sorted."""
        return self.first if self.first in self.arms else self.arms[0]

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that have results, in the order of the config; one empty name without settings."""
        return tuple(dict.fromkeys(run.setting for run in self.runs))

    @property
    def has_settings(self) -> bool:
        """Whether tables need a column of settings."""
        return self.setting is None and any(self.arms_in)

    @property
    def axes(self) -> list[str]:
        """Names of the axes of a sweep, in the order of the config."""
        values = (arm.values for arms in self.arms_in.values() for arm in arms.values())
        return list(dict.fromkeys(axis for of_arm in sorted(values, key=len, reverse=True) for axis in of_arm))

    @property
    def cells(self) -> list[CellName]:
        """The cells of the config and those that have results, in order."""
        found = [CellName(setting, arm) for setting, arms in self.arms_in.items() for arm in arms]
        found += [run.cell for run in self.runs]
        settings = [*self.arms_in, *self.settings]
        return sorted(dict.fromkeys(found), key=lambda cell: settings.index(cell.setting))

    @functools.cached_property
    def score(self) -> Metric:
        """The metric that is compared: the accuracy or, if no run has one, the score of its task."""
        return headline_in({name for run in self.runs for name in run.metrics[-1]})

    @property
    def rounds(self) -> int:
        """The configured number of rounds or, without one, the last round of any run."""
        return self.config.get("rounds") or max((run.last_round for run in self.runs), default=0)

    @property
    def measurements(self) -> list[str]:
        """Names of the custom metrics that have a number, in the order in which they were recorded."""
        return list(filter(is_measured, self.frame.dropna(axis=1, how="all")))

    @property
    def with_spectra(self) -> list[Run]:
        """The runs that saved spectra."""
        return [run for run in self.runs if len(run.spectra.get("round", ()))]

    @property
    def num_features(self) -> dict[str, int]:
        """The number of features of each arm that saved spectra.

        Raises:
            UserError: runs of one cell have different numbers, so that their spectra cannot be averaged.
        """
        first: dict[CellName, Run] = {}
        for run in self.with_spectra:
            other = first.setdefault(run.cell, run)
            features, expected = (of.spectra["server"].shape[1] for of in (run, other))
            if features != expected:
                raise UserError(f"{run.folder / 'spectra.npz'}: {features} features, {other.folder} has {expected}")
        return {cell.arm: run.spectra["server"].shape[1] for cell, run in first.items()}

    @property
    def headlines(self) -> dict[CellName, str]:
        """By cell, which model its accuracy is of; empty if that is not recorded."""
        return {run.cell: run.headline for run in self.finished().runs}

    @property
    def unfinished(self) -> list[tuple[Run, str]]:
        """The unfinished runs with their progress."""
        left = [run for run in self.runs if not run.is_finished]
        return [(run, f"round {run.last_round} of {self.of_setting(run.setting).rounds}") for run in left]

    def finished(self) -> "Results":
        """Returns the results of finished runs."""
        return dataclasses.replace(self, runs=[run for run in self.runs if run.is_finished])

    def with_unfinished(self) -> "Results":
        """Returns the results with unfinished runs as separate arms, whose names include their progress."""
        far = {run: f"{run.arm} (unfinished: {progress})" for run, progress in self.unfinished}
        runs = [dataclasses.replace(run, arm=far.get(run, run.arm), is_finished=True) for run in self.runs]
        return dataclasses.replace(self, runs=runs)

    def of_setting(self, setting: str) -> "Results":
        """Returns the part for this setting, with its config."""
        if self.setting is not None or not any(self.arms_in):
            return self
        return dataclasses.replace(
            self,
            config=config_of(self.config, setting),
            runs=[run for run in self.runs if run.setting == setting],
            arms_in={setting: self.arms_in.get(setting, {})},
            failed={cell: lines for cell, lines in self.failed.items() if cell.setting == setting},
            setting=setting,
        )

    def select(self, arms: Sequence[str] = (), sort: str = "") -> "Results":
        """Returns the results of these arms, in their order or that of a metric, by default all as in the config.

        ``sort`` names the metric by whose means over settings arms are ordered: the best, or largest, first.

        Raises:
            UserError: there is no such arm or metric.
        """
        for arm in arms:
            check_name("arm", arm, self.arms)
        shown = list(arms or dict.fromkeys(cell.arm for cell in self.cells))
        first = next(filter(self.arms.__contains__, [*arms, self.base]), "") if self.runs else ""
        if sort:
            check_name("metric", sort, self.final)
            means = self.final[sort].groupby(level=["setting", "arm"]).mean().groupby("arm").mean().dropna()
            best_first = means.sort_values(ascending=metric_of(sort).better == "lower").index
            shown = [*filter(shown.__contains__, best_first), *(arm for arm in shown if arm not in best_first)]
        runs, settings = [run for run in self.runs if run.arm in shown], self.settings
        runs.sort(key=lambda run: (settings.index(run.setting), shown.index(run.arm)))
        arms_in = {place: {arm: of[arm] for arm in shown if arm in of} for place, of in self.arms_in.items()}
        return dataclasses.replace(self, runs=runs, arms_in=arms_in, first=first)

    def of_arm(self, arm: str) -> tuple[Run, ...]:
        """Returns the runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def of_cell(self, cell: CellName) -> Sequence[Run]:
        """Returns the finished runs of one arm in one setting, by seed."""
        return self._finished.get(cell, ())

    @functools.cached_property
    def _finished(self) -> dict[CellName, list[Run]]:
        found: dict[CellName, list[Run]] = {}
        for run in self.finished().runs:
            found.setdefault(run.cell, []).append(run)
        return found

    def moments(self, cell: CellName, metric: str) -> tuple[float, float, int]:
        """Returns mean and standard deviation (n - 1) of a cell's finished runs, and the number that have a value."""
        return moments(run.numbers.get(metric) for run in self.of_cell(cell))

    def shared_by(self, arm: str) -> int:
        """Returns the largest number of runs that share the time of the arm's program; 1 if it has its own."""
        counts = (row.get("shared_by", math.nan) for run in self.of_arm(arm) for row in run.timing)
        return int(max((count for count in counts if count > 1), default=1))


def load(folder: Path | str) -> Results:
    """Reads the results in a folder: of a study, or of one run of ``simulate(folder=...)``.

    Runs that are not finished are there as far as they are saved.

    Raises:
        UserError: the folder is neither, or a file in it cannot be read or is invalid.
        NothingEvaluated: a UserError; no round has been evaluated.

    Examples:
        >>> results.load("runs/quickstart").frame[["arm", "seed", "round", "accuracy"]]  # doctest: +SKIP
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected the folder of a study or of a run")
    declared = next((name for name in (CONFIG, ARMS) if (path / name).exists()), None)
    if declared is None:
        if not (path / METRICS).exists():
            raise UserError(f"{path}: has neither {CONFIG} nor {METRICS}; expected the folder of a study or of a run")
        run = dataclasses.replace(_read_run(path, name_of(path.resolve())), is_finished=True)
        if not run.metrics:
            raise NothingEvaluated(f"{path / METRICS}: no evaluated round yet; start the run first")
        return _without_config(path, [run])
    config = reading.read_json(path / declared, reading.check_config)
    places = shown_cells(config)
    has_settings = bool(config.get("settings"))
    runs = []
    for file in path.glob("*/" * has_settings + f"*/seed*/{METRICS}"):
        if (seed := seed_of(file.parent)) is not None:
            own = CellName(name_of(file.parents[2]) if has_settings else "", name_of(file.parents[1]))
            cell, arm = places.get(own, (own, Arm({}, own.arm, {})))
            runs.append(_read_run(file.parent, cell.arm, seed, cell.setting, str(own), arm.values))
    runs = [run for run in runs if run.metrics]
    if not runs:
        place = "<setting>/" * has_settings + f"<arm>/seed<k>/{METRICS}"
        raise NothingEvaluated(f"{path}: no evaluated round in any {place}; start the study first")
    arms_in: dict[str, dict[str, Arm]] = {}
    for cell, arm in places.values():
        arms_in.setdefault(cell.setting, {})[cell.arm] = arm
    order = {cell: i for i, (cell, _) in enumerate(places.values())}
    settings = [*arms_in, *sorted({run.setting for run in runs} - arms_in.keys())]
    runs.sort(key=lambda run: (settings.index(run.setting), order.get(run.cell, len(order)), run.arm, run.seed))
    saved = reading.read_json(path / SUMMARY, reading.check_failed, optional=True)
    finished = {(run.cell, f"seed{run.seed}") for run in runs if run.is_finished}
    failed = {
        cell: [line for seed, line in saved.get(str(own), {}).get("failed", {}).items() if (cell, seed) not in finished]
        for own, (cell, _) in places.items()
    }
    return Results(path, config, runs, arms_in, reading.read_starts(path), failed)


def of_runs(runs: "Mapping[str, Result | Mapping[int, Result]]", partitions: Mapping[int, Arrays] = _NONE) -> Results:
    """Returns the results of runs in memory.

    Args:
        runs: by arm a ``Result`` of ``simulate``, or such results by seed; a single one has seed 0.
        partitions: by seed the arrays of the partition (``Federation.partition_arrays``).
    """
    found = []
    for arm, of_arm in runs.items():
        for seed, result in (of_arm if isinstance(of_arm, Mapping) else {0: of_arm}).items():
            kinds = {kind: getattr(result, kind) for kind in ("clients", "spectra", "measurements", "own_tests")}
            kinds["partition"] = partitions.get(seed, {})
            metrics, timing = (list(map(reading.numbers_of, rows)) for rows in (result.metrics, result.timing))
            found += [Run("", arm, seed, metrics, timing, headline=result.headline, arrays=kinds)] * bool(metrics)
    return _without_config(Path(), found)


def _without_config(path: Path, runs: Sequence[Run]) -> Results:
    return Results(path, {}, runs, {"": {run.arm: Arm({}, run.arm, {}) for run in runs}})


def _read_run(
    folder: Path, arm: str, seed: int = 0, setting: str = "", name: str = "", values: Mapping[str, Any] = _NONE
) -> Run:
    rows, _ = reading.read_rows(folder / METRICS)
    timing, damaged = reading.read_rows(folder / TIMING, is_timing=True)
    summary = reading.read_run_summary(folder)
    headline = summary.get("headline") or _headline_of(rows)
    about = dict(is_finished=bool(summary), headline=headline, local=summary.get("local", ""))
    return Run(setting, arm, seed, rows, timing, name, folder, notes=damaged, values=values, **about)


def _headline_of(rows: Sequence[Row]) -> str:
    """Returns which accuracy the headline of these rows is, in the words of ``HEADLINES``; empty if unknown."""
    for kind, meaning in HEADLINES.items():
        if all(f"{kind}_accuracy" in row and row[f"{kind}_accuracy"] == row.get(ACCURACY.name) for row in rows):
            return meaning
    return ""


def name_of(path: Path) -> str:
    """Returns the name of a file or folder as text, decoded as UTF-8 in any locale; other bytes as escapes."""
    return os.fsencode(path.name).decode(errors="backslashreplace")
