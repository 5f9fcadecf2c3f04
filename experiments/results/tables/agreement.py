"""Whether a paper's numbers agree with ours: whether the intervals mean ± standard deviation overlap."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from experiments.results.metrics import Metric, number, show_number
from experiments.results.paper import Paper
from fedjax_collapse.config.cells import CellName

OVERLAP, APART, UNKNOWN = "≈", "≠", "|"  # what stands between ours and a comparable number of the paper


class Published(NamedTuple):
    """A paper's number for a cell, in the unit of its table."""

    mean: float
    spread: float | None  # None where the paper prints none
    format: str
    is_comparable: bool
    agrees: bool | None = None  # None if it is not compared, or cannot be
    is_of_one_seed: bool = False  # so that it cannot be

    @property
    def mark(self) -> str:
        return {True: OVERLAP, False: APART, None: UNKNOWN}[self.agrees]

    @property
    def word(self) -> str:
        """What ``mark`` stands for, in files for programs."""
        if not self.is_comparable:
            return "not comparable"
        return {True: "overlap", False: "apart", None: "one seed" * self.is_of_one_seed}[self.agrees]

    def __str__(self) -> str:
        shown = show_number(self.mean, self.format)
        return shown if self.spread is None else f"{shown} ± {show_number(self.spread, self.format)}"


def published(paper: Paper, metric: Metric, column: str, arm: str, ours: Mapping[str, Any]) -> Published | None:
    """Returns the paper's number in a column of its table for an arm; None if it has none.

    Args:
        paper: the paper.
        metric: the metric of the column.
        column: the setting, the mean over settings, or the further column.
        arm: the arm.
        ours: our mean, standard deviation and number of seeds, as in a summary; empty if there is none.
    """
    mean, spread = (numbers.get(column, {}).get(arm) for numbers in (paper.values, paper.spreads))
    if mean is None:
        return None
    their = Published(mean, spread, ".2f" if paper.is_percent else ".6g", paper.comparable)
    if not paper.comparable or not (paper.is_percent or paper.spreads):
        return their
    own, std = (metric.factor * number(ours.get(part)) for part in ("mean", "std"))
    if not math.isfinite(own + std):
        return their._replace(is_of_one_seed=ours.get("n") == 1)
    own, std = (Decimal(f"{value:{metric.format}}") for value in (own, std))  # as they are shown
    theirs, margin = (Decimal(f"{value:{their.format}}") for value in (mean, spread or 0))
    return their._replace(agrees=abs(own - theirs) <= std + margin)


def published_for(paper: Paper, cell: CellName, metric: Metric, ours: Mapping[str, Any]) -> Published | None:
    """Returns the paper's number for a metric of a cell, in the unit of the metric; None if it has none."""
    columns = {place: name for name, place in paper.columns.items()}
    column = cell.setting if metric == paper.metric else columns.get((cell.setting, metric.name))
    if column is None:
        return None
    unit = metric.factor / paper.metric.factor
    their = published(paper, paper.metric, column, cell.arm, ours)
    return their and their._replace(mean=unit * their.mean, spread=their.spread and unit * their.spread)


def agreement_note(found: Mapping[str, Published]) -> str:
    """Says where our intervals and the paper's overlap, of comparable numbers by the names of their cells.

    A number without a spread is compared with our interval alone.
    """
    sentences = []
    for has_spread, test in (
        (True, f"{OVERLAP}: the intervals mean ± standard deviation overlap"),
        (False, f"Without a spread of the paper, {OVERLAP}: its mean is in our interval mean ± standard deviation"),
    ):
        alike = {name: of.agrees for name, of in found.items() if (of.spread is not None) == has_spread}
        compared = {name: agrees for name, agrees in alike.items() if agrees is not None}
        if compared:
            apart = ", ".join(name for name, agrees in compared.items() if not agrees)
            counted = f"{test}, in {sum(compared.values())} of {len(compared)} cells"
            sentences.append(counted + (f"; {APART}: not in {apart}." if apart else "."))
    if single := [name for name, of in found.items() if of.is_of_one_seed]:
        which = f" in {', '.join(single)}" if sentences else ""
        sentences.append(f"One seed has no interval to compare{which}.")
    return " ".join(sentences)
