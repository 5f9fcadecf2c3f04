"""The final table of a study as text, for the page and for the console."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments.cells import setting_and_arm
from experiments.metrics import ACCURACY, OVER_CLIENTS, SUMMARISED, Metric, R, metric_of, number, panels, show_number
from experiments.paper import Paper
from experiments.results.study import Summary
from fedjax_collapse.records import MEASURED

Means = Mapping[str, Sequence[str]]  # settings by the name of the mean over them
NO_MEANS: Means = MappingProxyType({})


def accuracy_note(summary: Summary) -> str:
    """What the table's accuracies are of, where the summary says so; an arm that is alike in all settings is named
    once."""
    of_arms: dict[str, dict[str, str]] = {}
    for cell, metrics in summary.items():
        if meaning := accuracy_of(metrics):
            of_arms.setdefault(setting_and_arm(cell)[1], {})[cell] = meaning
    named: dict[str, dict[str, None]] = {}
    for arm, cells in of_arms.items():
        for cell, meaning in cells.items():
            named.setdefault(meaning, {})[arm if len({*cells.values()}) == 1 else cell] = None
    known = [f"{meaning} ({', '.join(names)})" if len(named) > 1 else meaning for meaning, names in named.items()]
    of = f"of the {'; of the '.join(known)} " if known else ""
    return f"Accuracy: the headline, {of}after the last round; best and mean of the last 10 are over evaluated rounds."


def accuracy_of(metrics: Mapping[str, Any]) -> str:
    """What the accuracy is of in a cell's part of a summary; empty if nothing says so."""
    return (metrics.get(ACCURACY.name) or {}).get("of", "")


def unlike_note(summary: Summary, base: str) -> str:
    """Which arms are not compared with another one, as their accuracy is of something else; empty if all are."""
    of_cell = {setting_and_arm(cell): accuracy_of(metrics) for cell, metrics in summary.items()}
    of_base = {setting: of for (setting, arm), of in of_cell.items() if arm == base}
    unlike = [arm for (setting, arm), of in of_cell.items() if of and of_base.get(setting, of) not in ("", of)]
    names = ", ".join(dict.fromkeys(unlike))
    return f"Not compared with {base}, as their accuracy is of something else: {names}." if names else ""


def unfinished_note(unfinished: Mapping[str, str]) -> str:
    """Which runs are not in the tables, and how far they are; empty if all are finished."""
    runs = ", ".join(f"{run} ({how_far})" for run, how_far in unfinished.items())
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
    """The heading and one row per arm: mean ± standard deviation over seeds of each metric, number of seeds.

    ``paired``: further metrics, over pairs of runs, whose number stands behind them.
    """
    columns = [*columns_of(summary), *paired]
    rows = [["Arm", *(metric.heading for metric in columns), "Seeds"]]
    for arm, metrics in summary.items():
        entries = [metrics.get(metric.name) for metric in columns]
        cells = [show_moments(m, entry, with_seeds=m in paired) for m, entry in zip(columns, entries, strict=True)]
        rows.append([arm, *cells, str(max(int((entry or {}).get("n") or 0) for entry in entries))])
    return rows


def columns_of(summary: Summary) -> list[Metric]:
    """The metrics that have a column, with those of the user's own measurements."""
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    own = map(metric_of, panels([name for name in names if name.startswith(MEASURED)]))
    return [*SUMMARISED[:-1], *(OVER_CLIENTS if _is_over_clients(summary) else (R,)), *own]


def pivot_table(summary: Summary, metric: Metric = ACCURACY, means: Means = NO_MEANS) -> list[list[str]]:
    """The heading and one row per arm: of each setting mean ± standard deviation (number of seeds) of the metric.

    ``means``: further columns, each by its name the mean over some settings, which all must have the arm.
    """
    settings, arms = _settings_and_arms(summary)
    of_cell = {setting_and_arm(cell): metrics.get(metric.name) or {} for cell, metrics in summary.items()}
    rows = [["Arm", *(setting or metric.heading for setting in settings), *means]]
    for arm in arms:
        row = [arm, *(show_moments(metric, of_cell.get((setting, arm))) for setting in settings)]
        for over in means.values():
            values = [number(of_cell.get((setting, arm), {}).get("mean")) for setting in over]
            row.append(metric.show(sum(values) / len(values)))
        rows.append(row)
    return rows


def paper_table(summary: Summary, paper: Paper, means: Means = NO_MEANS) -> list[list[str]]:
    """The paper's numbers at the places of ``pivot_table``; empty where it has none."""
    settings, arms = _settings_and_arms(summary)
    settings = [*settings, *means]
    form = ".2f" if paper.is_percent else ".6g"
    numbers = [[show_number(paper.values.get(s, {}).get(arm), form, "") for s in settings] for arm in arms]
    return [["Arm", *settings], *([arm, *row] for arm, row in zip(arms, numbers, strict=True))]


def paper_note(paper: Paper) -> str:
    """What the paper's numbers are, in a sentence."""
    unit = paper.metric.quantity
    if paper.target:
        unit = f"rounds to the best accuracy of {paper.target} with the same seed; its own are all its rounds"
    of = "" if paper.is_percent else f" ({unit})"
    return f"{paper.source}{of}" + ("." if paper.comparable else f"; not comparable: {paper.why.rstrip('.')}.")


def table_with_paper(summary: Summary, paper: Paper | None, means: Means = NO_MEANS) -> list[list[str]]:
    """``pivot_table`` as text with the paper's numbers: in ours' cells if they are comparable, else in rows of their
    own."""
    ours = pivot_table(summary, paper.metric if paper else ACCURACY, means)
    if paper is None:
        return ours
    rows = ours[:1]
    for own, row in zip(ours[1:], paper_table(summary, paper, means)[1:], strict=True):
        if paper.comparable:
            rows.append([f"{cell} | paper {theirs}" if theirs else cell for cell, theirs in zip(own, row, strict=True)])
            rows[-1][0] = own[0]
        else:
            rows.append(own)
            rows += [[f"{own[0]} (paper, not comparable)", *row[1:]]] if any(row[1:]) else []
    return rows


def _settings_and_arms(summary):
    """Both in the order of the summary."""
    names = [setting_and_arm(cell) for cell in summary]
    return [list(dict.fromkeys(parts)) for parts in zip(*names, strict=True)] or [[], []]


def _is_over_clients(summary):
    """Whether several clients were watched, of which columns show mean and range."""
    return any(OVER_CLIENTS[0].name in metrics for metrics in summary.values())
