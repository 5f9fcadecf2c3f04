"""The final table of a study as text, for the page and for the console."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments.cells import setting_and_arm
from experiments.paper import UNITS, Paper
from experiments.reporting.study import Summary, number, panels
from fedjax_collapse.records import MEASURED

Means = Mapping[str, Sequence[str]]  # settings by the name of the mean over them
NO_MEANS: Means = MappingProxyType({})

# Metric, heading, factor, format.
COLUMNS = (
    ("accuracy", "Accuracy (%)", 100, ".2f"),
    ("best_accuracy", "Best", 100, ".2f"),
    ("last10_accuracy", "Last 10", 100, ".2f"),
    ("effective_rank", "Effective rank", 1, ".1f"),
    ("significant_dims", "Significant dimensions", 1, ".1f"),
    ("R", "R", 1, ".3f"),
)
OVER_CLIENTS = (  # instead of R, where several clients are watched
    ("R_mean", "R, mean over clients", 1, ".3f"),
    ("R_min", "R, lowest", 1, ".3f"),
    ("R_max", "R, highest", 1, ".3f"),
    ("local_effective_rank_mean", "Local effective rank, mean over clients", 1, ".1f"),
    ("local_effective_rank_min", "Local effective rank, lowest", 1, ".1f"),
    ("local_effective_rank_max", "Local effective rank, highest", 1, ".1f"),
)


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
    return (metrics.get("accuracy") or {}).get("of", "")


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
    whose = {str(of) for metrics in summary.values() if (of := (metrics.get("R") or {}).get("of"))}
    if not whose:
        return ""
    several = any("R_mean" in metrics for metrics in summary.values())
    over = ": the mean over them, the lowest and the highest of them, each a mean over seeds" if several else ""
    return f"R and all else that is local: of {'; of '.join(sorted(whose))}{over}."


def show_number(value: Any, form: str, missing: str = "-") -> str:
    """The number in a format such as ``.2f``; ``missing`` if it is null or not finite."""
    value = number(value)
    return f"{value:{form}}" if math.isfinite(value) else missing


def show_moments(entry: Mapping[str, Any], factor: float, form: str) -> str:
    """Mean ± standard deviation (number of seeds) of a metric in a summary."""
    mean = show_number(factor * number(entry.get("mean")), form)
    std = show_number(factor * number(entry.get("std")), form.lstrip("+"))
    num_seeds = int(entry.get("n") or 0)
    if mean == "-" or not num_seeds:
        return "-"
    return f"{mean} ± {std} ({num_seeds})" if num_seeds > 1 and std != "-" else f"{mean} ({num_seeds})"


def final_table(summary: Summary) -> list[list[str]]:
    """The heading and one row per arm: mean ± standard deviation over seeds of each metric, number of seeds."""
    columns = columns_of(summary)
    rows = [["Arm", *(heading for _, heading, _, _ in columns), "Seeds"]]
    for arm, metrics in summary.items():
        row, seeds = [arm], 0
        for metric, _, factor, form in columns:
            entry = metrics.get(metric) or {}
            num_seeds = int(entry.get("n") or 0)
            mean, std = (show_number(factor * number(entry.get(part)), form) for part in ("mean", "std"))
            row.append(mean if "-" in (mean, std) or num_seeds < 2 else f"{mean} ± {std}")
            seeds = max(seeds, num_seeds)
        rows.append([*row, str(seeds)])
    return rows


def columns_of(summary: Summary) -> list[tuple[str, str, float, str]]:
    """Metric, heading, factor and format of all columns, with those of the user's own measurements."""
    if any("R_mean" in metrics for metrics in summary.values()):
        return [*COLUMNS[:-1], *OVER_CLIENTS, *_measured_columns(summary)]
    return [*COLUMNS, *_measured_columns(summary)]


def column_of(summary: Summary, metric: str) -> tuple[str, float, str]:
    """Heading, factor and format of a metric, also of one that no run records, or none yet."""
    known = {name: column for name, *column in columns_of(summary)}
    heading = UNITS.get(metric, "").capitalize() or metric.removeprefix(MEASURED)
    return known.get(metric) or (heading, 1, ".4g")


def pivot_table(summary: Summary, metric: str = "accuracy", means: Means = NO_MEANS) -> list[list[str]]:
    """The heading and one row per arm: of each setting mean ± standard deviation (number of seeds) of the metric.

    ``means``: further columns, each by its name the mean over some settings, which all must have the arm.
    """
    heading, factor, form = column_of(summary, metric)
    settings, arms = _settings_and_arms(summary)
    of_cell = {setting_and_arm(cell): metrics.get(metric) or {} for cell, metrics in summary.items()}
    rows = [["Arm", *(setting or heading for setting in settings), *means]]
    for arm in arms:
        row = [arm, *(show_moments(of_cell.get((setting, arm), {}), factor, form) for setting in settings)]
        for over in means.values():
            values = [number(of_cell.get((setting, arm), {}).get("mean")) for setting in over]
            row.append(show_number(factor * sum(values) / len(values), form))
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
    unit = UNITS.get(paper.metric) or paper.metric.removeprefix(MEASURED)
    if paper.target:
        unit = f"rounds to the best accuracy of {paper.target} with the same seed; its own are all its rounds"
    of = "" if paper.is_percent else f" ({unit})"
    return f"{paper.source}{of}" + ("." if paper.comparable else f"; not comparable: {paper.why.rstrip('.')}.")


def table_with_paper(summary: Summary, paper: Paper | None, means: Means = NO_MEANS) -> list[list[str]]:
    """``pivot_table`` as text with the paper's numbers: in ours' cells if they are comparable, else in rows of their
    own."""
    ours = pivot_table(summary, paper.metric if paper else "accuracy", means)
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


def _measured_columns(summary: Summary) -> Iterator[tuple[str, str, float, str]]:
    """Of the study's own measurements, whose sizes nobody knows: four significant digits."""
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    for metric in panels([name for name in names if name.startswith(MEASURED)]):
        yield metric, metric.removeprefix(MEASURED), 1, ".4g"
