"""Tables and figures of studies as files for a paper: Markdown, LaTeX, CSV; SVG, PDF, PNG."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedjax_collapse.core import files
from fedjax_collapse.results import tables
from fedjax_collapse.results.annotations import DataFrame
from fedjax_collapse.results.comparing import dead_notes, recommendations
from fedjax_collapse.results.metrics import ACCURACY, Metric
from fedjax_collapse.results.paper import paper_of
from fedjax_collapse.results.plot.contents import figures_of
from fedjax_collapse.results.plot.drawing import for_column, save_figure
from fedjax_collapse.results.study import Results
from fedjax_collapse.results.tables import Table, final_table
from fedjax_collapse.results.writing import csv_text, in_latex, in_markdown, latex, markdown

_WRITERS = {"md": (markdown, in_markdown, "## {}\n"), "tex": (latex, in_latex, "% {}")}
TABLES = (*_WRITERS, "csv")
_LABELS = ("Study", "Setting", "Arm")


def write_tables(
    studies: Mapping[str, Results],
    folder: Path,
    kind: str,
    base: str = "",
    target: str = "",
    columns: Sequence[Metric] = (),
) -> list[Path]:
    """Writes the tables of studies as files of one kind, and returns their paths.

    ``results.md`` and ``results.tex`` have all tables; ``results.csv`` has a row for each finished run, and
    ``means.csv`` means, differences from the base arm, and the numbers of a paper.

    Args:
        studies: by name; several are in one table.
        folder: where to write.
        kind: one of ``TABLES``.
        base: the arm to which differences are taken, within each setting; by default the first of each study.
        target: the arm whose best accuracy is the target; by default that of a study's paper.
        columns: the metrics that are shown; by default all.
    """
    if kind == "csv":
        frames = {
            "results": {name: tables.seeds_frame(study, columns) for name, study in studies.items()},
            "means": {name: tables.means_frame(study, base, columns) for name, study in studies.items()},
        }
        texts = {name: csv_text(_together(of)) for name, of in frames.items()}
    else:
        texts = {"results": _text_of(tables_of(studies, base, target, columns), *_WRITERS[kind])}
    paths = [folder / f"{name}.{kind}" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        with files.shared(path) as file:
            file.write(text.encode(errors="backslashreplace"))
    return paths


def tables_of(
    studies: Mapping[str, Results], base: str = "", target: str = "", columns: Sequence[Metric] = ()
) -> list[Table]:
    """Returns the table of all cells, and for each study differences, arms by settings and rounds to the target."""
    final = {name: final_table(study, columns) for name, study in studies.items()}
    frame = _together({name: table.frame for name, table in final.items()}).fillna({"Setting": ""}).fillna("-")
    about = {
        name: (*recommendations(study, base, columns), *dead_notes(study), tables.unfinished_note(study))
        for name, study in studies.items()
    }
    notes = [note for table in final.values() for note in table.notes]
    notes += [f"{name}: {note}" if len(studies) > 1 else note for name, of in about.items() for note in of if note]
    labels = sum(map(_LABELS.__contains__, frame))
    found = [tables.text_table("", frame.columns, frame.values.tolist(), dict.fromkeys(notes), labels)]
    for name, study in studies.items():
        paper, by_setting = paper_of(study.config), tables.pivot_metrics(study, columns)
        if by_setting and not columns:  # the first, and accuracy unless that is one
            by_setting = [by_setting[0], *([ACCURACY] if by_setting[0].unit != "%" and ACCURACY in by_setting else [])]
        more = tables.difference_tables(study, base, columns)
        more += [tables.pivot(study, metric, paper) for metric in by_setting]
        if (arm := target or (paper.target if paper else "")) in study.arms:
            more.append(tables.target_table(study, arm))
        found += [table._replace(title=f"{name}: {table.title}") for table in more]
    return found


def save_figures(study: Results, folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Saves all figures of finished runs, with a folder for each setting, and returns the files.

    They are as wide as a column of a paper; those that are wide in the report are narrower than two columns.
    """
    study = study.finished()
    if not study.runs:
        return []
    paths = []
    with for_column():
        for setting, plot, part in figures_of(study):
            if (figure := plot.draw(part)) is not None:
                place = folder / os.fsdecode((setting or "").encode())  # names on the disk are UTF-8
                place.mkdir(parents=True, exist_ok=True)
                paths += [save_figure(figure, place / f"{plot.name}.{kind}", dpi=300) for kind in kinds]
    return paths


def _together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Returns one frame, with a column of studies if there are several; cells that a study lacks are NaN."""
    import pandas as pd

    if len(frames) == 1:
        return next(iter(frames.values()))
    frame = pd.concat(frames, names=["Study"]).reset_index("Study")
    labels = [name for name in _LABELS if name in frame]
    return frame[[*labels, *frame.columns.drop(labels)]]


def _text_of(found: Sequence[Table], write: Callable[[Table], str], escape: Callable[[str], str], title: str) -> str:
    parts = ["% \\usepackage{booktabs}"] * (write is latex)
    for table in found:
        parts += [title.format(escape(table.title))] if table.title else []
        parts += [write(table), *(f"{escape(note)}\n" for note in table.notes)]
    return "\n".join(parts)
