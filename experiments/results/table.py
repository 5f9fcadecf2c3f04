"""The final table of a study as text, for the page and for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.config.cells import CellName
from experiments.results.metrics import ACCURACY, OVER_CLIENTS, SUMMARISED, Metric, R, metric_of, panels
from experiments.results.study_results import Summary
from fedjax_collapse.core.records import MEASURED


def accuracy_note(summary: Summary) -> str:
    """What the table's accuracies are of, where the summary says so; an arm that is alike in all settings is named
    once."""
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
    return f"Accuracy: the headline, {of}after the last round; best and mean of the last 10 are over evaluated rounds."


def accuracy_of(metrics: Mapping[str, Any]) -> str:
    """What the accuracy is of in a cell's part of a summary; empty if nothing says so."""
    return (metrics.get(ACCURACY.name) or {}).get("of", "")


def unlike_note(summary: Summary, base: str) -> str:
    """Which arms are not compared with another one, as their accuracy is of something else; empty if all are."""
    of_cell = {cell: accuracy_of(metrics) for cell, metrics in summary.items()}
    of_base = {cell.setting: of for cell, of in of_cell.items() if cell.arm == base}
    unlike = [cell.arm for cell, of in of_cell.items() if of and of_base.get(cell.setting, of) not in ("", of)]
    names = ", ".join(dict.fromkeys(unlike))
    return f"Not compared with {base}, as their accuracy is of something else: {names}." if names else ""


def unfinished_note(unfinished: Mapping[CellName, Mapping[int, str]]) -> str:
    """Which runs are not in the tables, and how far they are; empty if all are finished."""
    runs = ", ".join(f"{cell} seed {seed} ({far})" for cell, runs in unfinished.items() for seed, far in runs.items())
    return f"Unfinished, and not in the tables: {runs}." if runs else ""


def local_note(summary: Summary) -> str:
    """Whose local models R and the local effective rank are of, where the summary says so."""
    whose = {str(of) for metrics in summary.values() if (of := (metrics.get(R.name) or {}).get("of"))}
    if not whose:
        return ""
    over = ": the mean over them, the lowest and the highest of them, each a mean over seeds"
    over = over if _is_over_clients(summary) else ""
    return f"R and all else that is local: of {'; of '.join(sorted(whose))}{over}."


def show_moments(metric: Metric, entry: Mapping[str, Any] | None, with_seeds: bool = True) -> str:
    """Mean ± standard deviation of a metric in a summary, ``with_seeds`` also their number: ``1.5 ± 0.5 (2)``."""
    entry = entry or {}
    mean, num_seeds = metric.show(entry.get("mean")), int(entry.get("n") or 0)
    if mean == "-" or not num_seeds:
        return "-"
    std = metric._replace(format=metric.format.lstrip("+")).show(entry.get("std"))
    text = f"{mean} ± {std}" if num_seeds > 1 and std != "-" else mean
    return f"{text} ({num_seeds})" if with_seeds else text


def final_table(summary: Summary, paired: Sequence[Metric] = ()) -> list[list[str]]:
    """The heading and one row per cell: mean ± standard deviation over seeds of each metric, number of seeds.

    ``paired``: further metrics, over pairs of runs, whose number stands behind them.
    """
    columns = [*columns_of(summary), *paired]
    labels = label_columns(summary)
    rows = [[*map(str.capitalize, labels), *(metric.heading for metric in columns), "Seeds"]]
    for cell, metrics in summary.items():
        entries = [metrics.get(metric.name) for metric in columns]
        cells = [show_moments(m, entry, with_seeds=m in paired) for m, entry in zip(columns, entries, strict=True)]
        rows.append(
            [
                *(getattr(cell, name) for name in labels),
                *cells,
                str(max(int((entry or {}).get("n") or 0) for entry in entries)),
            ]
        )
    return rows


def label_columns(summary: Summary) -> list[str]:
    """Which parts of cells' names are columns of a table: study and setting only where there are some."""
    return [name for name in ("study", "setting") if any(getattr(cell, name) for cell in summary)] + ["arm"]


def columns_of(summary: Summary) -> list[Metric]:
    """The metrics that have a column, with those of the user's own measurements."""
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    own = map(metric_of, panels([name for name in names if name.startswith(MEASURED)]))
    return [*SUMMARISED[:-1], *(OVER_CLIENTS if _is_over_clients(summary) else (R,)), *own]


def _is_over_clients(summary):
    """Whether several clients were watched, of which columns show mean and range."""
    return any(OVER_CLIENTS[0].name in metrics for metrics in summary.values())
