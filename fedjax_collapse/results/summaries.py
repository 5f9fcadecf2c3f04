"""The numbers of a finished run, and their mean and standard deviation over seeds, for ``summary.json``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_collapse.results import metrics
from fedjax_collapse.results.metrics import is_measured, is_privacy, number
from fedjax_collapse.run.running import Result

Row = Mapping[str, Any]


def summary_of(result: Result, watch: str | Sequence[int] = "one") -> dict[str, Any]:
    """Returns the summary of a finished run: its numbers, the model that is scored, and the clients of R."""
    return {"headline": result.headline, "local": _whose(watch, result.metrics), **summarize_run(result.metrics)}


def _whose(watch, rows):
    """Describes the clients whose local models R and the other local metrics are of."""
    if watch == "all":
        return "all clients of the round's cohort"
    if watch == "one":
        ids = {row["watched"] for row in rows}
        return f"client {ids.pop()}" if len(ids) == 1 else "the client of lowest identity in the round's cohort"
    those = ", ".join(map(str, watch))
    return f"client {those}" if len(watch) == 1 else f"clients {those}"


def summarize_run(rows: Sequence[Row]) -> dict[str, float]:
    """Returns one run's numbers: its last row, the best accuracy, and the mean of the last ten accuracies.

    The mean is NaN if there are fewer than ten evaluations or one of them is null, as for a model that is not finite.
    With validation rows also the first round that is best on them, and its accuracy.
    """
    accuracies = [number(row.get(metrics.ACCURACY.name)) for row in rows]
    over_rounds = {
        metrics.BEST_ACCURACY.name: max(filter(math.isfinite, accuracies), default=math.nan),
        metrics.LAST10_ACCURACY.name: mean_and_std(accuracies[-10:])[0] if len(accuracies) >= 10 else math.nan,
    }
    for name in (metrics.VALIDATION.name, metrics.OWN_VALIDATION):
        if validated := [row for row in rows if math.isfinite(number(row.get(name)))]:
            best = max(validated, key=lambda row: row[name])
            over_rounds[metrics.BY_VALIDATION.name] = number(best.get(metrics.ACCURACY.name))
            over_rounds[metrics.VALIDATION_ROUND.name] = best["round"]
    found = {*over_rounds, *(name for row in rows for name in row)}
    measured = {n: None for row in rows for n, value in row.items() if is_measured(n) and math.isfinite(number(value))}
    optional = [metric.name for metric in metrics.OPTIONAL if metric.name in found]
    names = (*(metric.name for metric in metrics.SUMMARISED), *optional, *filter(is_privacy, rows[-1]), *measured)
    return {name: number(over_rounds.get(name, rows[-1].get(name))) for name in names}


def summarize_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns mean, standard deviation (n - 1) and number of the runs that have a value, for every metric.

    ``of`` is the model that the accuracy is of, and whose models R is of, if the runs recorded that.
    """
    optional = {metric.name for metric in metrics.OPTIONAL}
    recorded = (name for run in runs for name in run if name in optional or is_measured(name) or is_privacy(name))
    summary = {}
    for metric in dict.fromkeys((*(metric.name for metric in metrics.SUMMARISED), *recorded)):
        summary[metric] = dict(zip(("mean", "std", "n"), moments(run.get(metric) for run in runs), strict=True))
    for metric, key in ((metrics.ACCURACY, "headline"), (metrics.R, "local")):
        if of := sorted({run[key] for run in runs if run.get(key)}):
            summary[metric.name]["of"] = ", ".join(of)
    return summary


def moments(values: Iterable[Any]) -> tuple[float, float, int]:
    """Returns mean and sample standard deviation of the finite numbers among the values, and how many these are."""
    finite = list(filter(math.isfinite, map(number, values)))
    return (*mean_and_std(finite), len(finite))


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and sample standard deviation; NaN where undefined."""
    if len(values) > 1 and len(set(values)) == 1:  # such as epsilon; their mean may differ by rounding
        return values[0], 0.0
    mean = float(np.mean(values)) if len(values) else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
