"""The table of differences between each arm and a baseline, over pairs of runs."""

import math

from experiments.results.metrics import ACCURACY, Metric, show_number
from experiments.results.study_results import Study, Summary
from experiments.results.tables.paired import pairs, why_none
from experiments.results.tables.significance import CONFIDENCE, Comparison, compare, smallest_p
from experiments.results.tables.table import Titled, headline_of, label_columns
from experiments.results.tables.view import EVERYTHING, View
from fedjax_collapse.config.cells import CellName

_NOTE = (
    f"Difference: mean ± standard deviation over pairs of runs with the same seed, partition and round; "
    f"{100 * CONFIDENCE:.0f} % interval of the mean by Student's t; p by Wilcoxon's signed-rank test, two-sided, "
    "not corrected for the number of arms."
)
_SMALL = 0.05  # a note tells if the test can never give a smaller p than this


def comparison(study: Study, cell: CellName, base: str, metric: Metric = ACCURACY) -> Comparison:
    """Returns the differences of a cell from the base arm in the same setting, in the units of ``metrics.jsonl``."""
    both = (
        tuple(study.numbers[of.cell, of.seed].get(metric.name, math.nan) for of in pair)
        for pair in pairs(study, cell, base, metric)
    )
    return compare([first - second for first, second in both if math.isfinite(first - second)])


def compared_metrics(view: View, summary: Summary) -> tuple[Metric, ...]:
    """Returns the metrics whose differences are shown: those that are chosen, by default the headline."""
    return tuple(view.metrics({})) if view.columns else (headline_of(summary),)


def base_of(study: Study, base: str = "", view: View = EVERYTHING) -> str:
    """Returns the arm that others are compared with: ``base`` or, if that is empty, the first that is shown."""
    return base or next(arm for arm in (*view.arms, *study.arms) if arm in study.arms)


def difference_tables(study: Study, base: str = "", view: View = EVERYTHING) -> list[Titled]:
    """Returns a table for each compared metric, without the base arm; none if there is no other arm."""
    base, summary = base_of(study, base, view), view.of(study.summary)
    cells = [cell for cell in summary if cell.arm != base]
    return [_table(study, cells, base, metric) for metric in compared_metrics(view, summary)] if cells else []


def _table(study: Study, cells: list[CellName], base: str, metric: Metric) -> Titled:
    labels = label_columns(dict.fromkeys(cells))
    unit = {"%": " (points)", "": ""}.get(metric.unit, f" ({metric.unit})")
    heading = [f"Difference{unit}", f"{100 * CONFIDENCE:.0f} % interval", "p (Wilcoxon)", "Pairs"]
    found = {cell: comparison(study, cell, base, metric) for cell in cells}
    rows = [[*(getattr(cell, name) for name in labels), *_shown(metric, of)] for cell, of in found.items()]
    without: dict[str, list[str]] = {}
    for cell, of in found.items():
        if not of.n:
            without.setdefault(why_none(study, cell, base, metric), []).append(str(cell))
    notes, most = [_NOTE], max(of.n for of in found.values())
    if most > 1 and smallest_p(most) > _SMALL:
        notes.append(f"With {most} pairs or fewer, p cannot be below {smallest_p(most):.4g}.")
    if most < 2:
        notes.append("With fewer than two pairs there is neither an interval nor p.")
    if without:
        none = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
        notes.append(f"No difference to {base}: {none}.")
    title = f"{metric.quantity.capitalize()}: differences from {base}"
    return Titled(title, [[*map(str.capitalize, labels), *heading], *rows], " ".join(notes))


def _shown(metric: Metric, of: Comparison) -> list[str]:
    """Returns the cells of a row."""
    signed = metric._replace(format=f"+{metric.format}")
    mean = signed.show(of.mean)
    spread = f"{mean} ± {metric.show(of.std)}" if of.has_interval else mean
    interval = f"{signed.show(of.low)} to {signed.show(of.high)}" if of.has_interval else "-"
    return [spread, interval, show_number(of.p, ".2g"), str(of.n)]
