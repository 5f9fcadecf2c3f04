"""Tables and figures of studies as files for a paper: Markdown, LaTeX, CSV; SVG, PDF, PNG."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import means_of
from experiments.metrics import ACCURACY, Metric, R, number
from experiments.paper import paper_of
from experiments.results.contents import OVERVIEW, PLOTS
from experiments.results.drawing import for_column, save_figure
from experiments.results.formats import csv_text, in_latex, in_markdown, latex, markdown
from experiments.results.paired import paired_difference, why_none
from experiments.results.published import summary_for_paper
from experiments.results.study import Study
from experiments.results.table import (
    accuracy_note,
    columns_of,
    final_table,
    local_note,
    paper_note,
    table_with_paper,
    unfinished_note,
)
from experiments.results.targets import target_note, target_table

Rows = list[list[str]]
Key = tuple[str, ...]  # the labels of a row
_DIFFERENCE = "difference"  # in a row's part of a summary


class Results(NamedTuple):
    """A row for every arm of every setting of every study: its labels, its metrics, and its difference to the base."""

    heading: list[str]  # of the labels
    base: str  # empty for none
    summary: dict[Key, Mapping[str, Any]]  # with the difference in accuracy to the base, if there is one
    why_none: dict[Key, str]  # of the rows without a difference
    unfinished: dict[Key, dict[str, str]]  # how far runs are that are not in a row, by seed
    targets: list[tuple[str, Rows, str]]  # of each study that has the target's arm: title, rounds to it, a note

    @property
    def differences(self) -> tuple[Metric, ...]:
        """The differences that are columns of the table."""
        heading = f"{ACCURACY.quantity.capitalize()} - {self.base}"
        return (ACCURACY._replace(name=_DIFFERENCE, heading=heading, format="+.2f"),) if self.base else ()

    @property
    def notes(self) -> list[str]:
        """What the numbers of the table are of, and what is not in it, in sentences."""
        summary = {"/".join(key): metrics for key, metrics in self.summary.items()}
        without: dict[str, list[str]] = {}
        for key, why in self.why_none.items():
            without.setdefault(why, []).append("/".join(key))
        none = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
        differences = f"No difference to {self.base}: {none}." if none else ""
        unfinished = {f"{'/'.join(key)} {seed}": far for key, of in self.unfinished.items() for seed, far in of.items()}
        notes = accuracy_note(summary), local_note(summary), differences, unfinished_note(unfinished)
        return [note for note in notes if note]


def results_of(studies: Mapping[str, Study], base: str = "", target: str = "") -> Results:
    """The results of studies, by name, in one table; differences are those to the ``base`` arm of the same setting, and
    rounds those to the best accuracy of the ``target`` arm."""
    parts = {(name, setting): s.of_setting(setting) for name, s in studies.items() for setting in s.settings}
    shown = [len(studies) > 1, any(setting for _, setting in parts), True]

    def labels(*names):
        return tuple(name for name, is_shown in zip(names, shown, strict=True) if is_shown)

    results = Results([*labels("Study", "Setting", "Arm")], base, {}, {}, {}, _targets(studies, target))
    for of, part in parts.items():
        for arm, metrics in part.summary.items():
            key = labels(*of, arm)
            difference = paired_difference(part, arm, base) if base and arm != base else {}
            results.summary[key] = {**metrics, _DIFFERENCE: difference}
            if difference and not difference["n"]:
                results.why_none[key] = why_none(part, arm, base)
        for run in part.runs:
            if not run.is_finished:
                results.unfinished.setdefault(labels(*of, run.arm), {})[f"seed {run.seed}"] = part.how_far(run)
    return results


def as_rows(results: Results) -> Rows:
    """Heading and rows as text: mean ± standard deviation."""
    (_, *heading), *rows = final_table(results.summary, results.differences)
    return [[*results.heading, *heading], *([*key, *cells] for key, *cells in rows)]


def as_markdown(results: Results, studies: Mapping[str, Study]) -> str:
    """The table and notes on it, and for each study with settings or a paper its arms by settings."""
    return "\n".join(_parts(results, studies, markdown, in_markdown, "## {}\n"))


def as_latex(results: Results, studies: Mapping[str, Study]) -> str:
    """The same as ``tabular`` environments, with the rules of booktabs."""
    return "\n".join(["% \\usepackage{booktabs}", *_parts(results, studies, latex, in_latex, "% {}")])


def _parts(results, studies, table, escape, title):
    parts = [table(as_rows(results), len(results.heading)), *(f"{escape(note)}\n" for note in results.notes)]
    for name, rows, note in pivots(studies) + results.targets:
        parts.append(f"{title.format(escape(name))}\n{table(rows)}" + (f"\n{escape(note)}\n" if note else ""))
    return parts


def as_csv(results: Results, studies: Mapping[str, Study]) -> str:
    """Numbers: of every metric mean, standard deviation and number of seeds in columns of their own; behind them, in
    words, what they are of, why there is no difference, and how far runs are that are left out."""
    del studies  # all that is in them is in the results
    columns = [*columns_of(results.summary), *results.differences]
    headings = [f"{metric.heading}: {part}" for metric in columns for part in ("mean", "std", "n")]
    words = [
        *(f"{metric.heading}: of" for metric in (ACCURACY, R)),
        *(f"{m.heading}: note" for m in results.differences),
    ]
    rows = [[*results.heading, *headings, *words, "Unfinished"]]
    for key, metrics in results.summary.items():
        numbers = (cell for metric in columns for cell in _numbers(metric, metrics.get(metric.name) or {}))
        unfinished = ", ".join(f"{seed} ({far})" for seed, far in results.unfinished.get(key, {}).items())
        words = [(metrics.get(metric.name) or {}).get("of", "") for metric in (ACCURACY, R)]
        words += [results.why_none.get(key, "") for _ in results.differences]
        rows.append([*key, *numbers, *words, unfinished])
    return csv_text(rows, ".6g")


TABLES: dict[str, Callable[[Results, Mapping[str, Study]], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv}


def pivots(studies: Mapping[str, Study]) -> list[tuple[str, Rows, str]]:
    """Name, arms by settings, and what the numbers are and the paper's, of each study that has one of them."""
    found = []
    for name, study in studies.items():
        paper, means = paper_of(study.config), means_of(study.config)
        if paper or study.config.get("settings"):
            is_accuracy = paper is None or paper.is_percent
            notes = [accuracy_note(study.summary)] if is_accuracy else []
            notes += [f"Paper: {paper_note(paper)}"] if paper else []
            found.append((name, table_with_paper(summary_for_paper(study), paper, means), " ".join(notes)))
            if not is_accuracy:
                accuracies = table_with_paper(study.summary, None, means)
                found.append((f"{name}: accuracy", accuracies, accuracy_note(study.summary)))
    return found


def _targets(studies: Mapping[str, Study], target: str) -> list[tuple[str, Rows, str]]:
    """To that arm, or to the one that a study's paper has as its target."""
    found = []
    for name, study in studies.items():
        paper = paper_of(study.config)
        arm = target or (paper.target if paper else "")
        if arm in study.arms:
            found.append((f"{name}: rounds to {arm}", target_table(study, arm), target_note(study, arm)))
    return found


def save_figures(study: Study, folder: Path, kinds: Sequence[str]) -> list[Path]:
    """The files of all figures that the study has the data for, those of a setting in a folder of its own.

    They are of the width of a paper's column, and those that are wide in the report less than two columns.
    """
    settings = study.settings
    drawn = [(folder, plot, study) for plot in OVERVIEW] if len(settings) > 1 else []
    places = {setting: folder / os.fsdecode(setting.encode()) for setting in settings}  # on a disk, names are UTF-8
    drawn += [(places[setting], plot, study.of_setting(setting)) for setting in settings for plot in PLOTS]
    paths = []
    with for_column():
        for place, plot, part in drawn:
            if (figure := plot.draw(part)) is not None:
                place.mkdir(parents=True, exist_ok=True)
                paths += [save_figure(figure, place / f"{plot.name}.{kind}", dpi=300) for kind in kinds]
    return paths


def _numbers(metric, entry):
    """Mean, standard deviation and number; NaN where undefined."""
    return [*(metric.factor * number(entry.get(part)) for part in ("mean", "std")), int(entry.get("n") or 0)]
