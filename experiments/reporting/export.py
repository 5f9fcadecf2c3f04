"""Tables and figures of studies as files for a paper: Markdown, LaTeX, CSV; SVG, PDF, PNG."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import means_of
from experiments.paper import paper_of
from experiments.reporting.contents import OVERVIEW, PLOTS
from experiments.reporting.drawing import for_column, save_figure
from experiments.reporting.paired import paired_difference
from experiments.reporting.published import summary_for_paper
from experiments.reporting.study import Study, number
from experiments.reporting.table import columns_of, final_table, paper_note, show_moments, table_with_paper
from experiments.reporting.targets import target_note, target_table

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "|": "$|$"},
}

Rows = list[list[str]]


class Results(NamedTuple):
    """A row for every arm of every setting of every study: its labels, its metrics, and its difference to the base."""

    heading: list[str]  # of the labels
    base: str  # empty for none
    summary: dict[tuple[str, ...], Mapping[str, Any]]
    differences: dict[tuple[str, ...], Mapping[str, Any]]
    targets: list[tuple[str, Rows, str]]  # of each study that has the target's arm: title, rounds to it, a note


def results_of(studies: Mapping[str, Study], base: str = "", target: str = "") -> Results:
    """The results of studies, by name, in one table; differences are those to the ``base`` arm of the same setting, and
    rounds those to the best accuracy of the ``target`` arm."""
    parts = {(name, setting): s.of_setting(setting) for name, s in studies.items() for setting in s.settings}
    shown = [len(studies) > 1, any(setting for _, setting in parts), True]
    results = Results([what for what, is_shown in zip(("Study", "Setting", "Arm"), shown, strict=True) if is_shown],
                      base, {}, {}, _targets(studies, target))  # fmt: skip
    for of, part in parts.items():
        for arm, metrics in part.summary.items():
            key = tuple(name for name, is_shown in zip((*of, arm), shown, strict=True) if is_shown)
            results.summary[key] = metrics
            results.differences[key] = paired_difference(part, arm, base) if base and arm != base else {}
    return results


def as_rows(results: Results) -> Rows:
    """Heading and rows as text: mean ± standard deviation."""
    heading, *rows = final_table(results.summary)
    difference = [f"Accuracy - {results.base}"] if results.base else []
    table = [[*results.heading, *heading[1:-1], *difference, heading[-1]]]
    for key, *cells, seeds in rows:
        difference = [show_moments(results.differences[key], 100, "+.2f")] if results.base else []
        table.append([*key, *cells, *difference, seeds])
    return table


def as_markdown(results: Results, studies: Mapping[str, Study]) -> str:
    """The table, and for each study with settings or a paper its arms by settings."""
    parts = [markdown(as_rows(results), len(results.heading))]
    for name, rows, note in pivots(studies) + results.targets:
        parts.append(f"## {name}\n\n{markdown(rows)}" + (f"\n{note}\n" if note else ""))
    return "\n".join(parts)


def as_latex(results: Results, studies: Mapping[str, Study]) -> str:
    """The same as ``tabular`` environments, with the rules of booktabs."""
    parts = ["% \\usepackage{booktabs}", _latex(as_rows(results), len(results.heading))]
    for name, rows, note in pivots(studies) + results.targets:
        parts.append(f"% {name}\n{_latex(rows)}" + (f"\n{_escaped(note)}\n" if note else ""))
    return "\n".join(parts)


def as_csv(results: Results, studies: Mapping[str, Study]) -> str:
    """Numbers: of every metric mean, standard deviation and number of seeds in columns of their own."""
    del studies  # all that is in them is in the results
    columns = columns_of(results.summary)
    headings = [heading for _, heading, _, _ in columns] + ([f"Accuracy - {results.base}"] if results.base else [])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*results.heading, *(f"{h}: {part}" for h in headings for part in ("mean", "std", "n"))])
    for key, metrics in results.summary.items():
        entries = [(metrics.get(metric) or {}, factor) for metric, _, factor, _ in columns]
        entries += [(results.differences[key], 100)] if results.base else []
        writer.writerow([*key, *(cell for entry, factor in entries for cell in _numbers(entry, factor))])
    return out.getvalue()


TABLES: dict[str, Callable[[Results, Mapping[str, Study]], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv}


def pivots(studies: Mapping[str, Study]) -> list[tuple[str, Rows, str]]:
    """Name, arms by settings, and what is said of the paper, of each study that has one of them."""
    found = []
    for name, study in studies.items():
        paper = paper_of(study.config)
        if paper or study.config.get("settings"):
            note = f"Paper: {paper_note(paper)}" if paper else ""
            found.append((name, table_with_paper(summary_for_paper(study), paper, means_of(study.config)), note))
            if paper and not paper.is_percent:
                found.append((f"{name}: accuracy", table_with_paper(study.summary, None, means_of(study.config)), ""))
    return found


def _targets(studies: Mapping[str, Study], target: str) -> list[tuple[str, Rows, str]]:
    """To that arm, or to the one that a study's paper has as its target."""
    found = []
    for name, study in studies.items():
        paper = paper_of(study.config)
        arm = target or (paper.target if paper else "")
        if arm in study.arms:
            found.append((f"{name}: rounds to {arm}", target_table(study, arm), target_note(arm)))
    return found


def save_figures(study: Study, folder: Path, kinds: Sequence[str]) -> list[Path]:
    """The files of all figures that the study has the data for, those of a setting in a folder of its own.

    They are of the width of a paper's column, and those that are wide in the report less than two columns.
    """
    settings = study.settings
    drawn = [(folder, plot, study) for plot in OVERVIEW] if len(settings) > 1 else []
    drawn += [(folder / setting, plot, study.of_setting(setting)) for setting in settings for plot in PLOTS]
    paths = []
    with for_column():
        for place, plot, part in drawn:
            if (figure := plot.draw(part)) is not None:
                place.mkdir(parents=True, exist_ok=True)
                paths += [save_figure(figure, place / f"{plot.name}.{kind}", dpi=300) for kind in kinds]
    return paths


def markdown(rows: Rows, num_labels: int = 1) -> str:
    """Heading and rows as a table whose first columns are labels, and the others numbers."""
    heading, *rest = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [heading, [*["---"] * num_labels, *["---:"] * (len(heading) - num_labels)], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(rows, num_labels=1):
    heading, *rest = (" & ".join(map(_escaped, row)) + " \\\\" for row in rows)
    columns = "l" * num_labels + "r" * (len(rows[0]) - num_labels)
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", heading, "\\midrule", *rest, "\\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}", ""])


def _escaped(text):
    return "".join(_LATEX.get(character, character) for character in text)


def _numbers(entry, factor):
    """Mean, standard deviation and number, empty where undefined."""
    values = [factor * number(entry.get(part)) for part in ("mean", "std")]
    return [*("" if value != value else f"{value:.6g}" for value in values), int(entry.get("n") or 0)]
