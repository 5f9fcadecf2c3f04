"""The final table of a study as text, for the report and for the console."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.results.formats import Bold
from experiments.results.metrics import (
    ACCURACIES,
    ACCURACY,
    DEAD_FEATURES,
    LOCAL_DEAD_FEATURES,
    OF_OWN_TESTS,
    OVER_CLIENTS,
    SCORES,
    SUMMARISED,
    Metric,
    R,
    headline_in,
    is_privacy,
    metric_of,
    number,
    panels,
)
from experiments.results.study_results import Summary
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.core.records import MEASURED


class Titled(NamedTuple):
    """A table with what stands above and below it."""

    title: str
    rows: list[list[str]]
    note: str


def accuracy_note(summary: Summary) -> str:
    """Explains which model's accuracies the table has, as recorded in the summary.

    An arm is named once if the explanation is the same in all settings.
    """
    of_arms: dict[str, dict[CellName, str]] = {}
    for cell, metrics in summary.items():
        if meaning := accuracy_of(metrics):
            of_arms.setdefault(cell.arm, {})[cell] = meaning
    named: dict[str, dict[str, None]] = {}
    for arm, cells in of_arms.items():
        for cell, meaning in cells.items():
            named.setdefault(meaning, {})[arm if len({*cells.values()}) == 1 else str(cell)] = None
    known = [f"{meaning} ({', '.join(names)})" if len(named) > 1 else meaning for meaning, names in named.items()]
    of = f"of the {'; of the '.join(known)} " if known else ""
    score = headline_of(summary)
    if score != ACCURACY:
        return f"{score.quantity.capitalize()}: the headline, {of}after the last round."
    return f"Accuracy: the headline, {of}after the last round; best and mean of the last 10 are over evaluated rounds."


def headline_of(summary: Summary) -> Metric:
    """Returns the metric that is compared: the accuracy or, if no cell has one, the score of its task."""
    return headline_in({name for of_cell in summary.values() for name, of in of_cell.items() if (of or {}).get("n")})


def accuracy_of(metrics: Mapping[str, Any]) -> str:
    """Returns which model's accuracy a cell's part of a summary has; empty if that is not recorded."""
    return (metrics.get(ACCURACY.name) or {}).get("of", "")


def unlike_note(summary: Summary, base: str) -> str:
    """Names the arms that are not compared with ``base`` because their accuracies are of another kind of model."""
    of_cell = {cell: accuracy_of(metrics) for cell, metrics in summary.items()}
    of_base = {cell.setting: of for cell, of in of_cell.items() if cell.arm == base}
    unlike = [cell.arm for cell, of in of_cell.items() if of and of_base.get(cell.setting, of) not in ("", of)]
    names = ", ".join(dict.fromkeys(unlike))
    return f"Not compared with {base}, as their accuracy is of something else: {names}." if names else ""


def unfinished_note(unfinished: Mapping[CellName, Mapping[int, str]]) -> str:
    """Names the runs that are not in the tables, with their last rounds; empty if all are finished."""
    runs = ", ".join(f"{cell} seed {seed} ({far})" for cell, runs in unfinished.items() for seed, far in runs.items())
    return f"Unfinished, and not in the tables: {runs}." if runs else ""


def local_note(summary: Summary) -> str:
    """Explains which local models R and the local effective rank are of, as recorded in the summary."""
    whose = {str(of) for metrics in summary.values() if (of := (metrics.get(R.name) or {}).get("of"))}
    if not whose:
        return ""
    over = ": the mean over them, the lowest and the highest of them, each a mean over seeds"
    over = over if _is_over_clients(summary) else ""
    return f"R and all else that is local: of {'; of '.join(sorted(whose))}{over}."


def show_moments(metric: Metric, entry: Mapping[str, Any] | None, with_seeds: bool = True) -> str:
    """Formats mean ± standard deviation of a metric in a summary, bold if that is marked as the best.

    ``with_seeds`` adds the number of seeds: ``1.5 ± 0.5 (2)``.
    """
    entry = entry or {}
    mean, num_seeds = metric.show(entry.get("mean")), int(entry.get("n") or 0)
    if mean == "-" or not num_seeds:
        return "-"
    std = metric._replace(format=metric.format.lstrip("+")).show(entry.get("std"))
    text = f"{mean} ± {std}" if num_seeds > 1 and std != "-" else mean
    text = f"{text} ({num_seeds})" if with_seeds else text
    return Bold(text) if entry.get("best") else text


def final_table(summary: Summary, columns: Sequence[Metric] = ()) -> list[list[str]]:
    """Returns the heading and one row per cell: mean ± standard deviation over seeds of each metric, number of seeds.

    ``columns`` are the metrics, by default all that have a column.
    """
    columns = columns or columns_of(summary)
    labels = label_columns(summary)
    rows = [[*map(str.capitalize, labels), *(metric.heading for metric in columns), "Seeds"]]
    for cell, metrics in summary.items():
        entries = [metrics.get(metric.name) for metric in columns]
        cells = [show_moments(m, entry, with_seeds=False) for m, entry in zip(columns, entries, strict=True)]
        num_seeds = max(int((entry or {}).get("n") or 0) for entry in entries)
        rows.append([*(getattr(cell, name) for name in labels), *cells, str(num_seeds)])
    return rows


def label_columns(summary: Summary) -> list[str]:
    """Returns the parts of cells' names that are columns of a table; study and setting only if there are any."""
    return [name for name in ("study", "setting") if any(getattr(cell, name) for cell in summary)] + ["arm"]


def columns_of(summary: Summary) -> list[Metric]:
    """Returns the metrics that have a column, including custom measurements."""
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    own = map(metric_of, panels([name for name in names if name.startswith(MEASURED)]))
    spent = [metric_of(name) for name in names if is_privacy(name)]
    scores = [metric for metric in (*SCORES, *OF_OWN_TESTS) if metric.name in names]
    accuracies = [*spent, *(ACCURACIES if headline_of(summary) == ACCURACY else ()), *scores]
    ranks = [metric for metric in SUMMARISED[:-1] if metric not in ACCURACIES]
    of_local = OVER_CLIENTS if _is_over_clients(summary) else (R, LOCAL_DEAD_FEATURES)
    columns = [*accuracies, *ranks, DEAD_FEATURES, *of_local, *own]
    entries = [(name, entry or {}) for metrics in summary.values() for name, entry in metrics.items()]
    found = {name for name, entry in entries if number(entry.get("mean")) > 0}
    return [metric for metric in columns if not metric.is_rare or metric.name in found]


def _is_over_clients(summary):
    """Returns whether several clients were watched, so that columns show mean and range over them."""
    return any(OVER_CLIENTS[0].name in metrics for metrics in summary.values())
