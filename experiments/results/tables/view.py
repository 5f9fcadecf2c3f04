"""Which columns and arms the tables of a report show, in which order, and which spectra its figures have."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.results.metrics import Metric, metric_of, number
from experiments.results.study_results import Study, Summary
from experiments.results.tables.table import columns_of
from fedjax_collapse.config.cells import CellName, names_in
from fedjax_collapse.core.records import MEASURED
from fedjax_collapse.schema.names import check_name


class View(NamedTuple):
    """Metrics and arms in the order of a table's columns and rows; empty for all, in the order of the config."""

    columns: tuple[str, ...] = ()  # names of metrics
    arms: tuple[str, ...] = ()
    sort: str = ""  # the metric by whose means, over a study's settings, arms are sorted: the best, or largest, first
    absolute: bool = False  # whether spectra are of eigenvalues, instead of their shares of the variance

    def of(self, summary: Summary) -> Summary:
        """Returns the cells of a study's summary that are shown, in their order."""
        settings = list(dict.fromkeys(cell.setting for cell in summary))
        cells = [cell for cell in summary if not self.arms or cell.arm in self.arms]
        if self.arms:
            cells.sort(key=lambda cell: self.arms.index(cell.arm))
        if self.sort:
            keys = {arm: self._key(summary, arm) for arm in {cell.arm for cell in cells}}
            cells.sort(key=lambda cell: keys[cell.arm])
        cells.sort(key=lambda cell: settings.index(cell.setting))
        return {cell: summary[cell] for cell in cells}

    def metrics(self, summary: Summary) -> list[Metric]:
        """Returns the metrics that have a column."""
        return [*map(metric_of, self.columns)] or columns_of(summary)

    def _key(self, summary: Summary, arm: str) -> tuple[bool, float]:
        entries = (metrics.get(self.sort) or {} for cell, metrics in summary.items() if cell.arm == arm)
        means = [mean for entry in entries if math.isfinite(mean := number(entry.get("mean")))]
        sign = 1 if metric_of(self.sort).better == "lower" else -1
        return not means, sign * math.fsum(means) / max(1, len(means))


EVERYTHING = View()


def view_of(
    studies: Iterable[Study], columns: str = "", arms: str = "", sort: str = "", absolute: bool = False
) -> View:
    """Returns what options show of these studies: ``columns`` and ``arms`` are names with commas between them.

    Raises:
        UserError: a name is unknown to all of the studies.
    """
    summaries: Sequence[Summary] = [study.summary for study in studies]
    cells: list[CellName] = [cell for summary in summaries for cell in summary]
    entries = (metrics.items() for summary in summaries for metrics in summary.values())
    names = dict.fromkeys(name for of_cell in entries for name, entry in of_cell if "mean" in (entry or ()))
    known = {name.removeprefix(MEASURED): name for name in names}
    chosen = [known.get(name, name) for name in names_in(columns, {*known, *names})] if columns else []
    ordered = known.get(sort, sort)
    shown = names_in(arms, {cell.arm for cell in cells}) if arms else ()
    for option, named, valid in (
        ("column in --columns", chosen, names),
        ("arm in --arms", shown, {cell.arm for cell in cells}),
        ("column in --sort", [ordered] if sort else [], names),
    ):
        for name in named:
            check_name(option, name, valid)
    return View(tuple(dict.fromkeys(chosen)), tuple(dict.fromkeys(shown)), ordered, absolute)
