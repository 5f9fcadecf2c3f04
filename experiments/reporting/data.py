"""The numbers behind the figures of a report, as rows of a CSV file; most functions have their figure's name."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from experiments.cells import arms_of
from experiments.reporting import embedding
from experiments.reporting.escaping import in_csv
from experiments.reporting.figures import PHASES, client_losses, mean_seconds, ranks, samples_per_second
from experiments.reporting.partition import recorded
from experiments.reporting.study import Study, number, panels

Rows = list[list[Any]]
MOST = 150_000  # characters of an address that holds a file, so that a report stays small
_CURVE = ["arm", "metric", "round", "mean", "std"]


def as_address(rows: Rows) -> str:
    """The rows as a CSV file inside an address, ``data:...``; empty if it were too long, or without rows."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    address = "data:text/csv;charset=utf-8," + quote(out.getvalue(), safe=",.:()=;*!$@", errors="backslashreplace")
    return address if len(rows) > 1 and len(address) <= MOST else ""


def _cell(value):
    """Five digits, nothing where a number is none, and no text that a spreadsheet takes for a formula."""
    if isinstance(value, (float, np.floating)):
        return f"{value:.5g}" if np.isfinite(value) else ""
    return in_csv(value) if isinstance(value, str) else str(value)


def curves(study: Study, metrics: Iterable[str], factors: Mapping[str, float] | None = None) -> Rows:
    """Mean and standard deviation over seeds, in the units of ``metrics.jsonl``, times the factors of arms."""
    rows = [_CURVE]
    for arm in study.arms:
        factor = factors.get(arm, np.nan) if factors else 1
        for metric in metrics:
            curve = study.curve(arm, metric)
            rows += [[arm, metric, r, factor * mean, factor * std] for r, mean, std in zip(*curve, strict=True)]
    return rows


def over_settings(study: Study, metric: str) -> Rows:
    parts = {setting: curves(study.of_setting(setting), [metric]) for setting in study.settings}
    return [["setting", *_CURVE], *([setting, *row] for setting, rows in parts.items() for row in rows[1:])]


def rank_share(study: Study) -> Rows:
    return curves(study, ranks(study), {arm: 1 / features for arm, features in study.num_features.items()})


def measurements(study: Study) -> Rows:
    return curves(study, [name for styles in panels(study.measurements).values() for name in styles])


def spectra(study: Study) -> Rows:
    """Natural logarithms of the eigenvalues."""
    rows: Rows = [["arm", "round", "index", "server", "local"]]
    for arm in study.arms:
        if (log := study.log_spectra(arm)) is not None:
            rows += [[arm, log.round, i, *pair] for i, pair in enumerate(zip(log.server, log.local, strict=True), 1)]
    return rows


def client_loss(study: Study) -> Rows:
    """A column for each client, empty outside the cohort."""
    losses = {arm: (run, client_losses(run)) for arm in study.arms for run in study.of_arm(arm)[:1]}
    most = max(values.shape[1] for _, values in losses.values())
    rows: Rows = [["arm", "seed", "round", *(f"client {client}" for client in range(most))]]
    for arm, (run, values) in losses.items():
        rows += [[arm, run.seed, r, *of] for r, of in zip(run.clients.get("round", ()), values, strict=False)]
    return rows


def timing(study: Study) -> Rows:
    """Seconds of a run by phase, and true samples per second of training."""
    arms = [arm for arm in study.arms if any(run.timing for run in study.of_arm(arm))]
    rows = [[arm, *(mean_seconds(study, arm, phase) for phase in PHASES), samples_per_second(study, arm)]
            for arm in arms]  # fmt: skip
    return [["arm", *PHASES, "samples per second"], *rows]


def partition(study: Study) -> Rows:
    """Examples of each class at each client."""
    run = next(iter(recorded(study)), None)
    if run is None:
        return []
    counts = np.atleast_2d(run.partition["class_counts"])
    names = [str(name) for name in run.partition.get("class_names", ())]
    names = names if len(names) == counts.shape[1] else list(map(str, range(counts.shape[1])))
    return [["arm", "seed", "client", *names], *([run.arm, run.seed, i, *row] for i, row in enumerate(counts))]


def sweep(study: Study) -> Rows:
    """Metrics after the last round, with the values that are swept."""
    metrics = ("accuracy", "effective_rank", study.of_local("R"))
    swept = {name: arm.values for name, arm in arms_of(study.config).items() if name in study.summary}
    axes = list(dict.fromkeys(axis for values in swept.values() for axis in values))
    rows: Rows = [["arm", *axes, *(f"{metric}: {part}" for metric in metrics for part in ("mean", "std"))]]
    for arm, values in swept.items():
        entries = [study.summary[arm].get(metric) or {} for metric in metrics]
        numbers = [number(entry.get(part)) for entry in entries for part in ("mean", "std")]
        rows.append([arm, *(values.get(axis, "") for axis in axes), *numbers])
    return rows


def sphere(study: Study) -> Rows:
    return embedding.point_rows(embedding.on_the_sphere(study), "class")


def tsne_classes(study: Study) -> Rows:
    return embedding.point_rows(embedding.by_class(study), "class")


def tsne_clients(study: Study) -> Rows:
    return embedding.point_rows(embedding.by_client(study), "client")
