"""The best values of a table: the best mean, and all that are not shown to be worse."""

from collections.abc import Mapping, Sequence

from experiments.results.metrics import Metric, metric_of, number
from experiments.results.study_results import Study, Summary
from experiments.results.tables.differences import comparison
from experiments.results.tables.significance import CONFIDENCE
from experiments.results.tables.table import accuracy_of
from fedjax_collapse.config.cells import CellName

_NOTE = (
    "Bold: the best mean, and every arm whose difference from it over pairs of runs has an interval "
    f"({100 * CONFIDENCE:.0f} %) that contains 0."
)


def with_best(study: Study, summary: Summary) -> Summary:
    """Returns cells of the study's summary with ``best=True`` for the best values of each setting and metric.

    Only metrics that declare which direction is better have any, and only arms with the same kind of accuracy are
    compared. Without two pairs of runs to compare the best mean with, nothing is best.
    """
    found: dict[str, list[str]] = {}
    names = dict.fromkeys(name for metrics in summary.values() for name in metrics)
    groups: dict[tuple[str, str], list[CellName]] = {}
    for cell, metrics in summary.items():
        groups.setdefault((cell.setting, accuracy_of(metrics)), []).append(cell)
    for metric in filter(lambda metric: metric.better, map(metric_of, names)):
        for cells in groups.values():
            for cell in _best(study, summary, cells, metric):
                found.setdefault(str(cell), []).append(metric.name)
    return mark_best(summary, found)


def mark_best(summary: Summary, names: Mapping[str, Sequence[str]]) -> Summary:
    """Returns the summary with ``best=True`` for these metrics of cells, as ``best_in`` returns them."""
    marked = {}
    for cell, metrics in summary.items():
        best = {name: {**metrics[name], "best": True} for name in names.get(str(cell), ()) if name in metrics}
        marked[cell] = {**metrics, **best}
    return marked


def best_in(summary: Summary) -> dict[str, list[str]]:
    """Returns by cell the names of the metrics that are marked as best."""
    return {
        str(cell): names
        for cell, of in summary.items()
        if (names := [name for name, entry in of.items() if (entry or {}).get("best")])
    }


def best_note(summary: Summary) -> str:
    """Explains what is bold; empty if no value is marked as best."""
    return _NOTE if best_in(summary) else ""


def _best(study: Study, summary: Summary, cells: list[CellName], metric: Metric) -> list[CellName]:
    entries = {cell: summary[cell].get(metric.name) or {} for cell in cells}
    means = {cell: number(entry.get("mean")) for cell, entry in entries.items() if int(entry.get("n") or 0) > 1}
    means = {cell: mean for cell, mean in means.items() if mean == mean}
    if not means:
        return []
    best = (max if metric.better == "higher" else min)(means, key=means.get)
    found = {cell: comparison(study, cell, best.arm, metric) for cell in cells if cell != best}
    if not any(of.has_interval for of in found.values()):
        return []
    return [best, *(cell for cell, of in found.items() if of.may_be_zero)]
