"""The table of a paper with which a study is compared, ``config.paper``, and whether its numbers agree with ours.

They agree if the intervals mean ± standard deviation overlap.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_collapse.config.cells import CellName
from fedjax_collapse.core.records import MEASURED, UserError
from fedjax_collapse.results import metrics
from fedjax_collapse.results.metrics import ACCURACY, Metric, metric_of, show_number
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.options import check_value

# COUNTED is for fedjax-collapse communication, not for reports
_METRICS = (*metrics.ACCURACIES, metrics.BY_VALIDATION, *metrics.FROM_RUNS, metrics.COUNTED)
_KINDS = {
    **{"source": str, "comparable": bool, "why": str, "metric": str, "target": str, "values": dict, "spreads": dict},
    "columns": dict[str, tuple[str, str]],
}
Numbers = Mapping[str, Mapping[str, float]]  # by column of the table and arm
_NONE: Mapping = MappingProxyType({})
Moments = tuple[float, float, int]  # mean, standard deviation (n - 1), number of runs that have a value
OVERLAP, APART = "≈", "≠"  # what stands between ours and a comparable number of the paper; | where neither is known
_SINGLE = "one seed"


class Paper(NamedTuple):
    """A paper's numbers, accuracies in percent, by column and arm.

    Columns are the study's settings (one with an empty name in a study without settings), its means, and ``columns``.
    """

    source: str
    comparable: bool
    values: Numbers
    spreads: Numbers = _NONE  # standard deviations of the values that the paper prints with one
    columns: Mapping[str, tuple[str, str]] = _NONE  # setting and measured metric of each further column
    why: str = ""  # the reason if they are not comparable
    metric: Metric = ACCURACY  # our metric that corresponds to the numbers
    target: str = ""  # the arm whose best accuracy is the target of rounds

    @property
    def is_percent(self) -> bool:
        return self.metric.unit == ACCURACY.unit


def paper_of(config: Mapping[str, Any], counted: bool = False) -> Paper | None:
    """Returns the paper of the config, or None.

    ``counted`` selects papers with the metric numbers_sent; otherwise these are ignored.
    """
    paper = dict(config.get("paper") or {})
    if paper and (paper.get("metric") == metrics.COUNTED.name) != counted:
        return None
    if "metric" in paper:
        paper["metric"] = metric_of(paper["metric"])
    if paper and not config.get("settings"):
        paper |= {part: {"": paper[part]} for part in ("values", "spreads") if part in paper}
    if "columns" in paper:  # of JSON: lists
        paper["columns"] = {name: tuple(place) for name, place in paper["columns"].items()}
    return Paper(**paper) if paper else None


def check_kinds(paper: Mapping[str, Any], has_settings: bool) -> None:
    """Raises UserError for a key that is unknown or missing, or a value of another kind."""
    for key, value in paper.items():
        check_name("config key of paper", key, _KINDS)
        check_value(f"paper.{key}", value, _KINDS[key])
    for key in ("source", "comparable", "values") if paper else ():
        if key not in paper:
            raise UserError(f"config.paper has no {key}: expected source, comparable and values")
    for part in ("values", "spreads"):
        for name, value in paper.get(part, {}).items():
            check_value(f"paper.{part}.{name}", value, dict[str, float] if has_settings else float)


def check_paper(config: Mapping[str, Any], arms: Iterable[str]) -> None:
    """Raises UserError for an invalid ``config.paper``.

    This is one with an unknown key, metric, setting or arm, with a value that is not a percentage, with a spread that
    is negative or has no value, or without a reason or target.
    """
    check_kinds(config["paper"], bool(config["settings"]))
    paper = paper_of(config) or paper_of(config, counted=True)
    if paper is None:
        return
    if not paper.comparable and not paper.why:
        raise UserError("paper.comparable is False: explain why in paper.why, in one line for below the table")
    _check_metric("paper.metric", paper.metric.name, config["measurements"], [known.name for known in _METRICS])
    settings = [*config["settings"], *config["means"]]
    for name, (setting, metric) in paper.columns.items():
        if name in settings:
            raise UserError(f"paper.columns.{name}: there is a setting or mean of that name; choose another")
        check_name(f"setting in paper.columns.{name}", setting, config["settings"])
        _check_metric(f"metric in paper.columns.{name}", metric, config["measurements"])
    if paper.metric == metrics.TO_TARGET:
        check_name("arm in paper.target", paper.target, arms)
    elif paper.target:
        raise UserError(f"paper.target {paper.target!r} belongs to paper.metric={metrics.TO_TARGET.name!r}; remove one")
    for part, numbers in (("values", paper.values), ("spreads", paper.spreads)):
        for setting, of_arms in numbers.items():
            check_name(f"setting in paper.{part}", setting, [*settings, *paper.columns] or [""])
            path = f"paper.{part}.{setting}".rstrip(".")
            for arm, number in of_arms.items():
                check_name(f"arm in {path}", arm, arms)
                if part == "spreads" and not number >= 0:
                    raise UserError(f"{path}.{arm}: {number}, expected a standard deviation, at least 0")
                if paper.is_percent and not 0 <= number <= 100:
                    raise UserError(f"{path}.{arm}: {number}, expected percent, from 0 to 100")
                if arm not in paper.values.get(setting, {}):
                    raise UserError(f"{path}.{arm}: has no number in paper.values; add it, or remove its spread")


def _check_metric(path, name, measurements, others=()):
    """Raises UserError unless a name is one of the others, or a number of a measurement."""
    measurement, _, of = name.removeprefix(MEASURED).partition("/")
    if not (name.startswith(MEASURED) and measurement in measurements and of):
        check_name(path, name, [*others, *(f"{MEASURED}{known}/..." for known in measurements)])


class Published(NamedTuple):
    """A paper's number for a cell, in the unit of its table."""

    mean: float
    spread: float | None  # None where the paper prints none
    format: str
    word: str  # what ``mark`` stands for, or why it is not compared, in files for programs; empty if nothing is known

    @property
    def mark(self) -> str:
        return {"overlap": OVERLAP, "apart": APART}.get(self.word, "|")

    def __str__(self) -> str:
        shown = show_number(self.mean, self.format)
        return shown if self.spread is None else f"{shown} ± {show_number(self.spread, self.format)}"


def published(paper: Paper, metric: Metric, column: str, arm: str, ours: Moments | None) -> Published | None:
    """Returns the paper's number in a column of its table for an arm; None if it has none.

    Args:
        paper: the paper.
        metric: the metric of the column.
        column: the setting, the mean over settings, or the further column.
        arm: the arm.
        ours: our mean, standard deviation and number of seeds; None if there is none.
    """
    mean, spread = (numbers.get(column, {}).get(arm) for numbers in (paper.values, paper.spreads))
    if mean is None:
        return None
    their = Published(mean, spread, ".2f" if paper.is_percent else ".6g", "" if paper.comparable else "not comparable")
    if not paper.comparable or not (paper.is_percent or paper.spreads):
        return their
    mean, std, n = ours or (math.nan, math.nan, 0)
    if not math.isfinite(mean + std):
        return their._replace(word=_SINGLE * (n == 1))
    own, std = (Decimal(f"{metric.factor * value:{metric.format}}") for value in (mean, std))  # as they are shown
    theirs, margin = (Decimal(f"{value:{their.format}}") for value in (their.mean, spread or 0))
    return their._replace(word="overlap" if abs(own - theirs) <= std + margin else "apart")


def published_for(paper: Paper, cell: CellName, metric: Metric, ours: Moments) -> Published | None:
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
        alike = {name: of.mark for name, of in found.items() if (of.spread is not None) == has_spread}
        compared = [mark for mark in alike.values() if mark in (OVERLAP, APART)]
        if compared:
            apart = ", ".join(name for name, mark in alike.items() if mark == APART)
            counted = f"{test}, in {compared.count(OVERLAP)} of {len(compared)} cells"
            sentences.append(counted + (f"; {APART}: not in {apart}." if apart else "."))
    if single := [name for name, of in found.items() if of.word == _SINGLE]:
        which = f" in {', '.join(single)}" if sentences else ""
        sentences.append(f"One seed has no interval to compare{which}.")
    return " ".join(sentences)
