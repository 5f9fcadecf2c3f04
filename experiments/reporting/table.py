"""The final table of a study as text, for the page and for the console."""

import math
from collections.abc import Iterator
from typing import Any

from experiments.reporting.study import MEASURED, Summary, number, panels

# Metric, heading, factor, format.
COLUMNS = (
    ("accuracy", "Accuracy (%)", 100, ".2f"),
    ("best_accuracy", "Best", 100, ".2f"),
    ("last10_accuracy", "Last 10", 100, ".2f"),
    ("effective_rank", "Effective rank", 1, ".1f"),
    ("significant_dims", "Significant dimensions", 1, ".1f"),
    ("R", "R", 1, ".3f"),
)


def accuracy_note(summary: Summary) -> str:
    """What the table's accuracies are of, where the summary says so."""
    arms = {}
    for arm, metrics in summary.items():
        if meaning := (metrics.get("accuracy") or {}).get("of"):
            arms.setdefault(str(meaning), []).append(arm)
    known = [f"{meaning} ({', '.join(names)})" if len(arms) > 1 else meaning for meaning, names in arms.items()]
    of = f"of the {'; of the '.join(known)} " if known else ""
    return f"Accuracy: the headline, {of}after the last round; best and mean of the last 10 are over evaluated rounds."


def show_number(value: Any, form: str, missing: str = "-") -> str:
    """The number in a format such as ``.2f``; ``missing`` if it is null or not finite."""
    value = number(value)
    return f"{value:{form}}" if math.isfinite(value) else missing


def final_table(summary: Summary) -> list[list[str]]:
    """The heading and one row per arm: mean ± standard deviation over seeds of each metric, number of seeds."""
    columns = [*COLUMNS, *_measured_columns(summary)]
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


def _measured_columns(summary: Summary) -> Iterator[tuple[str, str, float, str]]:
    """Of the study's own measurements, whose sizes nobody knows: four significant digits."""
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    for metric in panels([name for name in names if name.startswith(MEASURED)]):
        yield metric, metric.removeprefix(MEASURED), 1, ".4g"
