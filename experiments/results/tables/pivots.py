"""Tables of arms by settings, with the numbers of a paper."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from experiments.results.metrics import ACCURACY, SECONDS, TO_TARGET, Metric, number
from experiments.results.paper import Paper, paper_of
from experiments.results.study_results import Study, Summary
from experiments.results.tables.agreement import Published, agreement_note, published
from experiments.results.tables.best import best_note, with_best
from experiments.results.tables.seconds import seconds_per_round
from experiments.results.tables.table import headline_of, show_moments, unlike_note
from experiments.results.tables.targets import rounds_to_target
from experiments.results.tables.view import EVERYTHING, View
from fedjax_collapse.config.cells import CellName, means_of

Means = Mapping[str, Sequence[str]]  # by the name of a mean, the settings that it is over
NO_MEANS: Means = MappingProxyType({})
Rows = list[list[str]]


class Pivot(NamedTuple):
    """A metric of all cells, arms by settings, and the paper's numbers in the same places, if there are any."""

    metric: Metric
    ours: Rows
    paper: Rows | None
    comparable: bool
    notes: tuple[str, ...]  # about the paper's numbers
    bold: str  # what is bold; empty if nothing is

    @property
    def is_percent(self) -> bool:
        return self.metric.unit == ACCURACY.unit

    def as_rows(self) -> Rows:
        """Returns one table: comparable numbers of the paper are in the same cells, others in separate rows."""
        if self.paper is None:
            return self.ours
        rows = self.ours[:1]
        for own, (_, *theirs) in zip(self.ours[1:], self.paper[1:], strict=True):
            if self.comparable:
                cells = zip(own[1:], theirs, strict=True)
                rows.append([own[0], *(type(cell)(f"{cell} {their}".rstrip()) for cell, their in cells)])
            else:
                rows += [own, [f"{own[0]} (paper, not comparable)", *theirs]] if any(theirs) else [own]
        return rows


def pivots(study: Study, view: View = EVERYTHING) -> list[Pivot]:
    """Returns a pivot for each metric of the view, by default of all, first the one of the paper's table, or accuracy.

    A study with a paper and without settings has only this one; a study with neither has none.
    """
    paper, has_settings = paper_of(study.config), bool(study.config.get("settings"))
    if paper is None and not has_settings:
        return []
    summary = with_best(study, view.of(summary_for_paper(study)))
    first = paper.metric if paper else headline_of(study.summary)
    metrics = dict.fromkeys([*[first] * (not view.columns), *view.metrics(summary)]) if has_settings else [first]
    return [pivot(summary, metric, paper, means_of(study.config)) for metric in metrics]


def pivot(summary: Summary, metric: Metric = ACCURACY, paper: Paper | None = None, means: Means = NO_MEANS) -> Pivot:
    """Returns mean ± standard deviation (number of seeds) of the metric for each arm and setting.

    Args:
        summary: the study's summary.
        metric: the metric.
        paper: left out if it has another metric. Its further columns, of measured metrics, are shown as this metric is.
        means: further columns, each the mean over some settings, all of which must have the arm.
    """
    settings, arms = (list(dict.fromkeys(getattr(cell, part) for cell in summary)) for part in ("setting", "arm"))
    paper = paper if paper and paper.metric == metric else None
    columns = {setting: (setting, metric.name) for setting in settings}
    columns |= {name: place for name, place in paper.columns.items() if place[0] in settings} if paper else {}
    ours = [["Arm", *(name or metric.heading for name in columns), *means]]
    theirs, found = [["Arm", *columns, *means]], {}
    for arm in arms:
        entries = {
            name: (summary.get(CellName(setting, arm)) or {}).get(key) or {} for name, (setting, key) in columns.items()
        }
        values = [[number(entries.get(of, {}).get("mean")) for of in over] for over in means.values()]
        over_settings = [metric.show(sum(of_mean) / len(of_mean)) for of_mean in values]
        ours.append([arm, *(show_moments(metric, entry) for entry in entries.values()), *over_settings])
        if paper:
            row = {of: published(paper, metric, of, arm, entries.get(of, {})) for of in (*columns, *means)}
            found |= {f"{arm} at {of}" if of else arm: their for of, their in row.items() if their}
            theirs.append([arm, *map(_beside, row.values())])
    bold = best_note({cell: {metric.name: metrics.get(metric.name)} for cell, metrics in summary.items()})
    if paper is None:
        return Pivot(metric, ours, None, False, (), bold)
    notes = paper_note(paper), agreement_note(found), unlike_note(summary, paper.target)
    return Pivot(metric, ours, theirs, paper.comparable, tuple(filter(None, notes)), bold)


def _beside(their: Published | None) -> str:
    """Returns the paper's number for a cell of its own, or, if it is comparable, for the end of a cell of ours."""
    return "" if their is None else f"{their.mark} paper {their}" if their.is_comparable else f"{their}"


def paper_note(paper: Paper) -> str:
    """Returns a sentence that explains the paper's numbers."""
    unit = paper.metric.quantity
    if paper.target:
        unit = f"rounds to the best accuracy of {paper.target} with the same seed; its own are all its rounds"
    of = "" if paper.is_percent else f" ({unit})"
    return f"{paper.source}{of}" + ("." if paper.comparable else f"; not comparable: {paper.why.rstrip('.')}.")


def summary_for_paper(study: Study) -> Summary:
    """Returns the study's summary, with the metric of its paper's table added over finished runs.

    The metric is empty where it is undefined.
    """
    paper = paper_of(study.config)
    if paper and paper.metric == SECONDS:
        found = seconds_per_round(study.finished())
    elif paper and paper.metric == TO_TARGET and paper.target in study.arms:
        found = {cell: reached.rounds for cell, reached in rounds_to_target(study, paper.target).items()}
    else:
        return study.summary
    return {cell: {**metrics, paper.metric.name: found.get(cell, {})} for cell, metrics in study.summary.items()}
