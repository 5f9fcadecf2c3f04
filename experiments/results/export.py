"""Tables and figures of studies as files for a paper: Markdown, LaTeX, CSV; SVG, PDF, PNG."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.results.contents import OVERVIEW, PLOTS
from experiments.results.formats import csv_text, in_latex, in_markdown, latex, markdown
from experiments.results.metrics import ACCURACY, Metric, R, number
from experiments.results.paper import paper_of
from experiments.results.plotting.drawing import for_column, save_figure
from experiments.results.study_results import Study
from experiments.results.tables.agreement import published_for
from experiments.results.tables.best import best_note, with_best
from experiments.results.tables.dead import dead_notes
from experiments.results.tables.differences import base_of, compared_metrics, comparison, difference_tables
from experiments.results.tables.paired import why_none
from experiments.results.tables.pivots import pivots
from experiments.results.tables.significance import Comparison
from experiments.results.tables.table import (
    Titled,
    accuracy_note,
    final_table,
    label_columns,
    local_note,
    unfinished_note,
)
from experiments.results.tables.targets import target_note, target_table
from experiments.results.tables.view import EVERYTHING, View
from fedjax_collapse.config.cells import CellName

_DIFFERENCE = ("from", "mean", "std", "n", "low", "high", "p", "note")  # columns of a CSV file


class Difference(NamedTuple):
    """The differences between a cell and its base arm."""

    base: str
    of: Comparison
    why_none: str  # empty if there is any


class Results(NamedTuple):
    """The results of all cells of all studies that a view shows, with their differences from a base arm."""

    view: View
    summary: dict[CellName, Mapping[str, Any]]
    differences: dict[tuple[CellName, str], Difference]  # by cell and metric
    unfinished: dict[CellName, Mapping[int, str]]  # the progress of runs that are not in the summary, by seed
    compared: list[Titled]  # differences from the base arm, for each study with several arms
    targets: list[Titled]  # rounds to the target, for each study that has its arm
    dead: list[str]  # notes about dead networks and features

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the numbers of the table, and what is not in it."""
        about = (note(self.summary) for note in (accuracy_note, local_note, best_note))
        return [note for note in (*about, *self.dead, unfinished_note(self.unfinished)) if note]


def results_of(studies: Mapping[str, Study], base: str = "", target: str = "", view: View = EVERYTHING) -> Results:
    """Returns the results of studies in one table.

    Args:
        studies: by name.
        base: the arm to which differences are taken, within each setting; by default the first of each study.
        target: the arm whose best accuracy is the target; by default that of a study's paper.
        view: which columns and arms the tables show.
    """
    results = Results(view, {}, {}, {}, [], _targets(studies, target, view), [])
    for name, study in studies.items():
        of, own_base = name if len(studies) > 1 else "", base_of(study, base, view)
        for cell, metrics in with_best(study, view.of(study.summary)).items():
            results.summary[cell._replace(study=of)] = metrics
            for metric in compared_metrics(view, study.summary) if cell.arm != own_base else ():
                found = comparison(study, cell, own_base, metric)
                why = "" if found.n else why_none(study, cell, own_base, metric)
                results.differences[cell._replace(study=of), metric.name] = Difference(own_base, found, why)
        results.unfinished.update({cell._replace(study=of): far for cell, far in study.unfinished.items()})
        results.compared.extend(
            table._replace(title=f"{name}: {table.title}") for table in difference_tables(study, base, view)
        )
        results.dead.extend(f"{of}: {note}".removeprefix(": ") for note in dead_notes(study))
    return results


def as_markdown(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the table and its notes, and for each study with settings or a paper its arms by settings."""
    return "\n".join(_parts(results, studies, markdown, in_markdown, "## {}\n"))


def as_latex(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the same as ``tabular`` environments, with the rules of booktabs."""
    return "\n".join(["% \\usepackage{booktabs}", *_parts(results, studies, latex, in_latex, "% {}")])


def _parts(results, studies, table, escape, title):
    rows = final_table(results.summary, results.view.metrics(results.summary))
    num_labels = len(label_columns(results.summary))
    parts = [table(rows, num_labels), *(f"{escape(note)}\n" for note in results.notes)]
    for name, rows, note in [*results.compared, *_by_setting(studies, results.view), *results.targets]:
        labels = 1 + (rows[0][0] == "Setting")
        parts.append(f"{title.format(escape(name))}\n{table(rows, labels)}" + (f"\n{escape(note)}\n" if note else ""))
    return parts


def as_csv(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the numbers, with mean, standard deviation and number of seeds of every metric in separate columns.

    Differences have the base arm, the interval and p, too. The paper's numbers follow, with how they compare with ours.
    The last columns tell in words which model the numbers are of, why there is no difference, and which runs are left
    out.
    """
    papers = {name if len(studies) > 1 else "": paper_of(study.config) for name, study in studies.items()}
    columns, compared = results.view.metrics(results.summary), compared_metrics(results.view, results.summary)
    headings = [f"{metric.heading}: {part}" for metric in columns for part in ("mean", "std", "n")]
    headings += [f"{metric.heading} difference: {part}" for metric in compared for part in _DIFFERENCE]
    theirs = {
        (cell, metric): their
        for cell, metrics in results.summary.items()
        for metric in columns
        if (paper := papers.get(cell.study))
        and (their := published_for(paper, cell, metric, metrics.get(metric.name) or {}))
    }
    published = [metric for metric in columns if any(of == metric for _, of in theirs)]
    headings += [f"{metric.heading} paper: {part}" for metric in published for part in ("mean", "std", "note")]
    words = [f"{metric.heading}: of" for metric in (ACCURACY, R)]
    labels = label_columns(results.summary)
    rows = [[*map(str.capitalize, labels), *headings, *words, "Unfinished"]]
    for cell, metrics in results.summary.items():
        numbers = [value for metric in columns for value in _numbers(metric, metrics.get(metric.name) or {})]
        for metric in compared:
            numbers += _differences(metric, results.differences.get((cell, metric.name)))
        for metric in published:
            their = theirs.get((cell, metric))
            numbers += [their.mean, number(their.spread), their.word] if their else [""] * 3
        unfinished = ", ".join(f"seed {seed} ({far})" for seed, far in results.unfinished.get(cell, {}).items())
        words = [(metrics.get(metric.name) or {}).get("of", "") for metric in (ACCURACY, R)]
        rows.append([*(getattr(cell, name) for name in labels), *numbers, *words, unfinished])
    return csv_text(rows, ".6g")


TABLES: dict[str, Callable[[Results, Mapping[str, Study]], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv}


def _by_setting(studies: Mapping[str, Study], view: View) -> list[Titled]:
    """Returns arms by settings of each study that has settings or a paper: its paper's metric, and accuracy."""
    found = []
    for name, study in studies.items():
        first, *others = pivots(study, view) or [None]
        others = [it for it in others if view.columns or (it.metric == ACCURACY and not first.is_percent)]
        for shown in filter(None, (first, *others)):
            title = f"{name}: {shown.metric.quantity}" if shown is not first or view.columns else name
            notes = [accuracy_note(study.summary)] if shown.is_percent else []
            notes += [f"Paper: {' '.join(shown.notes)}"] if shown.notes else []
            found.append(Titled(title, shown.as_rows(), " ".join(notes)))
    return found


def _targets(studies: Mapping[str, Study], target: str, view: View) -> list[Titled]:
    """Returns the rounds to that arm, or to the target of a study's paper."""
    found = []
    for name, study in studies.items():
        paper = paper_of(study.config)
        arm = target or (paper.target if paper else "")
        if arm in study.arms:
            rows = target_table(study, arm, view)
            found.append(Titled(f"{name}: rounds to {arm}", rows, target_note(study, arm)))
    return found


def save_figures(study: Study, folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Saves all figures for which the study has data, those of a setting in a separate folder, and returns the files.

    They are as wide as a column of a paper; those that are wide in the report are narrower than two columns.
    """
    settings = study.settings
    drawn = [(folder, plot, study) for plot in OVERVIEW] if len(settings) > 1 else []
    places = {setting: folder / os.fsdecode(setting.encode()) for setting in settings}  # names on the disk are UTF-8
    drawn += [(places[setting], plot, study.of_setting(setting)) for setting in settings for plot in PLOTS]
    paths = []
    with for_column():
        for place, plot, part in drawn:
            if (figure := plot.draw(part)) is not None:
                place.mkdir(parents=True, exist_ok=True)
                paths += [save_figure(figure, place / f"{plot.name}.{kind}", dpi=300) for kind in kinds]
    return paths


def _numbers(metric, entry):
    """Returns mean, standard deviation and number; NaN where undefined."""
    return [*(metric.factor * number(entry.get(part)) for part in ("mean", "std")), int(entry.get("n") or 0)]


def _differences(metric: Metric, difference: Difference | None) -> list[Any]:
    """Returns the columns of a difference; empty ones for the base arm."""
    if difference is None:
        return [""] * len(_DIFFERENCE)
    base, of, why_none = difference
    mean, std, low, high = (metric.factor * value for value in (of.mean, of.std, of.low, of.high))
    return [base, mean, std, of.n, low, high, of.p, why_none]
