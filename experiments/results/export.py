"""Tables and figures of studies as files for a paper: Markdown, LaTeX, CSV; SVG, PDF, PNG."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.config.cells import CellName
from experiments.config.paper import paper_of
from experiments.results.contents import OVERVIEW, PLOTS
from experiments.results.drawing import for_column, save_figure
from experiments.results.formats import csv_text, in_latex, in_markdown, latex, markdown
from experiments.results.metrics import ACCURACY, Metric, R, number
from experiments.results.paired import paired_difference, why_none
from experiments.results.pivots import Rows, pivots
from experiments.results.study_results import Study
from experiments.results.table import (
    accuracy_note,
    columns_of,
    final_table,
    label_columns,
    local_note,
    unfinished_note,
)
from experiments.results.targets import target_note, target_table

_DIFFERENCE = "difference"  # in a cell's part of a summary
_Titled = tuple[str, Rows, str]  # title, table and note


class Results(NamedTuple):
    """The results of all cells of all studies, with their differences to the base arm."""

    base: str  # empty for none
    summary: dict[CellName, Mapping[str, Any]]  # with the difference in accuracy to the base, if there is one
    why_none: dict[CellName, str]  # of cells without a difference
    unfinished: dict[CellName, Mapping[int, str]]  # the progress of runs that are not in the summary, by seed
    targets: list[_Titled]  # rounds to the target, for each study that has its arm

    @property
    def differences(self) -> tuple[Metric, ...]:
        """The differences that are columns of the table."""
        heading = f"{ACCURACY.quantity.capitalize()} - {self.base}"
        return (ACCURACY._replace(name=_DIFFERENCE, heading=heading, format="+.2f"),) if self.base else ()

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the numbers of the table, and what is not in it."""
        without: dict[str, list[str]] = {}
        for cell, why in self.why_none.items():
            without.setdefault(why, []).append(str(cell))
        none = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
        differences = f"No difference to {self.base}: {none}." if none else ""
        notes = accuracy_note(self.summary), local_note(self.summary), differences, unfinished_note(self.unfinished)
        return [note for note in notes if note]


def results_of(studies: Mapping[str, Study], base: str = "", target: str = "") -> Results:
    """Returns the results of studies in one table.

    Args:
        studies: by name.
        base: the arm to which differences are taken, within each setting; empty for none.
        target: the arm whose best accuracy is the target; by default that of a study's paper.
    """
    results = Results(base, {}, {}, {}, _targets(studies, target))
    for name, study in studies.items():
        of = name if len(studies) > 1 else ""
        for cell, metrics in study.summary.items():
            difference = paired_difference(study, cell, base) if base and cell.arm != base else {}
            results.summary[cell._replace(study=of)] = {**metrics, _DIFFERENCE: difference}
            if difference and not difference["n"]:
                results.why_none[cell._replace(study=of)] = why_none(study, cell, base)
        results.unfinished.update({cell._replace(study=of): far for cell, far in study.unfinished.items()})
    return results


def as_markdown(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the table and its notes, and for each study with settings or a paper its arms by settings."""
    return "\n".join(_parts(results, studies, markdown, in_markdown, "## {}\n"))


def as_latex(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the same as ``tabular`` environments, with the rules of booktabs."""
    return "\n".join(["% \\usepackage{booktabs}", *_parts(results, studies, latex, in_latex, "% {}")])


def _parts(results, studies, table, escape, title):
    rows, num_labels = final_table(results.summary, results.differences), len(label_columns(results.summary))
    parts = [table(rows, num_labels), *(f"{escape(note)}\n" for note in results.notes)]
    for name, rows, note in _by_setting(studies) + results.targets:
        parts.append(f"{title.format(escape(name))}\n{table(rows)}" + (f"\n{escape(note)}\n" if note else ""))
    return parts


def as_csv(results: Results, studies: Mapping[str, Study]) -> str:
    """Returns the numbers, with mean, standard deviation and number of seeds of every metric in separate columns.

    The last columns tell in words which model the numbers are of, why there is no difference, and which runs are left
    out.
    """
    del studies  # the results contain all of them
    columns = [*columns_of(results.summary), *results.differences]
    headings = [f"{metric.heading}: {part}" for metric in columns for part in ("mean", "std", "n")]
    words = [
        *(f"{metric.heading}: of" for metric in (ACCURACY, R)),
        *(f"{m.heading}: note" for m in results.differences),
    ]
    labels = label_columns(results.summary)
    rows = [[*map(str.capitalize, labels), *headings, *words, "Unfinished"]]
    for cell, metrics in results.summary.items():
        numbers = (value for metric in columns for value in _numbers(metric, metrics.get(metric.name) or {}))
        unfinished = ", ".join(f"seed {seed} ({far})" for seed, far in results.unfinished.get(cell, {}).items())
        words = [(metrics.get(metric.name) or {}).get("of", "") for metric in (ACCURACY, R)]
        words += [results.why_none.get(cell, "") for _ in results.differences]
        rows.append([*(getattr(cell, name) for name in labels), *numbers, *words, unfinished])
    return csv_text(rows, ".6g")


TABLES: dict[str, Callable[[Results, Mapping[str, Study]], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv}


def _by_setting(studies: Mapping[str, Study]) -> list[_Titled]:
    """Returns arms by settings of each study that has settings or a paper: its paper's metric, and accuracy."""
    found = []
    for name, study in studies.items():
        first, *others = pivots(study) or [None]
        for shown in filter(None, (first, *(it for it in others if it.metric == ACCURACY and not first.is_percent))):
            title = name if shown is first else f"{name}: accuracy"
            notes = [accuracy_note(study.summary)] if shown.is_percent else []
            notes += [f"Paper: {' '.join(shown.notes)}"] if shown.notes else []
            found.append((title, shown.as_rows(), " ".join(notes)))
    return found


def _targets(studies: Mapping[str, Study], target: str) -> list[_Titled]:
    """Returns the rounds to that arm, or to the target of a study's paper."""
    found = []
    for name, study in studies.items():
        paper = paper_of(study.config)
        arm = target or (paper.target if paper else "")
        if arm in study.arms:
            found.append((f"{name}: rounds to {arm}", target_table(study, arm), target_note(study, arm)))
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
