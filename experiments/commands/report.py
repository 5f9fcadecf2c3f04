"""Rewrites reports of studies from their saved arrays, without training, and prints their final tables.

fedjax-collapse report STUDY_FOLDER [STUDY_FOLDER ...] [--headline=FILE]
    [--format=md,tex,csv,svg,pdf,png] [--out=FOLDER] [--base=ARM] [--target=ARM] [--unfinished]
    [--columns=METRIC,METRIC] [--arms=ARM,ARM] [--sort=METRIC] [--absolute]

With --format, --out, --base or --target, the reports are not rewritten. The tables of all studies are written as one,
``results.md``, ``.tex`` and ``.csv`` in the folder (by default ``export`` in the study's folder), with differences from
the arm ``--base``, by default the first, over runs of equal seed and partition; each figure is a file. --target prints,
and adds to ``results.md`` and ``.tex``, how many rounds each arm needs to reach the best accuracy of this arm, and how
much faster that is. Unfinished runs are listed below the tables; with --unfinished they have rows of their own, whose
names tell their progress. --columns, --arms and --sort choose what all tables show, in which order. With --absolute,
spectra in the report are eigenvalues instead of their shares of the variance. --headline draws accuracy, effective rank
and normalised spectra of the first study as one figure, whose title is the finding, as in the README.
"""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiments.parser import Parser, names_option, print_error
from experiments.results.export import TABLES, results_of, save_figures
from experiments.results.page import write_report
from experiments.results.paper import paper_of
from experiments.results.plotting.drawing import FIGURES, save_figure
from experiments.results.plotting.headline import headline
from experiments.results.reading import read_study
from experiments.results.study_results import Study
from experiments.results.tables.best import with_best
from experiments.results.tables.dead import dead_notes
from experiments.results.tables.differences import difference_tables
from experiments.results.tables.pivots import summary_for_paper
from experiments.results.tables.table import unfinished_note
from experiments.results.tables.view import View, view_of
from experiments.results.verdict import verdict
from experiments.study.progress.console import Console
from fedjax_collapse.config.cells import means_of
from fedjax_collapse.config.folder import EXPORT
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.names import check_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a one-line message for every folder that is not a readable study."""
    options, console = command_line().parse_args(arguments), Console()
    shown = dict(columns=options.columns, arms=options.arms, sort=options.sort, absolute=options.absolute)
    look = functools.partial(view_of, **shown)
    folders = list({os.path.realpath(folder): folder for folder in options.folders}.values())

    def read(folder):
        study = read_study(folder, console.wait)
        return study.with_unfinished() if options.unfinished else study

    try:
        if options.format is not None or options.out or options.base or options.target:
            formats = (options.format or ",".join(TABLES)).split(",")
            export(folders, formats, options.out, console, options.base, options.target, read, look)
        elif not _rewrite(folders, console, read, look):
            return 2
        if options.headline:
            console.note(f"wrote {_draw_headline(read(folders[0]), options.headline)}")
    except (UserError, OSError) as error:
        return print_error(error)
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="STUDY_FOLDER")
    parser.add_argument("--headline", type=Path, metavar="FILE", help="an SVG, PDF or PNG file of the first study")
    parser.add_argument("--format", **names_option((*TABLES, *FIGURES), "kinds of files to write, by default tables:"))
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write to")
    parser.add_argument("--base", default="", metavar="ARM", help="the arm to compare the others with")
    parser.add_argument("--target", default="", metavar="ARM", help="the arm whose best accuracy others should reach")
    parser.add_argument("--unfinished", action="store_true", help="show unfinished runs in rows of their own")
    parser.add_argument("--columns", default="", metavar="METRIC,...", help="the columns of tables, in this order")
    parser.add_argument("--arms", default="", metavar="ARM,...", help="the arms in tables, in this order")
    parser.add_argument("--absolute", action="store_true", help="draw spectra of eigenvalues, not of their shares")
    parser.add_argument("--sort", default="", metavar="METRIC", help="the column by which tables are sorted")
    return parser


def export(
    folders: Sequence[Path],
    formats: Sequence[str],
    out: Path | None,
    console: Console,
    base: str,
    target: str,
    read: Callable[[Path], Study] = read_study,
    look: Callable[[Iterable[Study]], View] = view_of,
) -> None:
    """Writes tables and figures of the finished runs of studies.

    ``base`` and ``target`` are the arms to compare with, or empty; ``look`` returns what tables of studies show.

    Raises:
        UserError: a folder is no study, a format or an arm does not exist, or several studies have no ``out``.
        OSError: a file cannot be written.
    """
    for kind in formats:
        check_name("format", kind, (*TABLES, *FIGURES))
    if out is None and len(folders) > 1:
        raise UserError("several studies: give --out=FOLDER for their table")
    out = out or folders[0] / EXPORT
    studies = {name: read(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    for option, arm in (("base", base), ("target", target)):
        if arm:
            check_name(f"arm in --{option}", arm, {name for study in studies.values() for name in study.arms})
    view = look(studies.values())
    out.mkdir(parents=True, exist_ok=True)
    results = results_of(studies, base, target, view)
    for _, rows, note in results.targets:
        console.print_rows(rows)
        console.note(note)
    for study in studies.values():
        _tell(study, console)
    for kind in filter(TABLES.get, formats):
        with files.shared(out / f"results.{kind}") as file:
            file.write(TABLES[kind](results, studies).encode(errors="backslashreplace"))
        console.note(f"wrote {out / f'results.{kind}'}")
    if figures := [kind for kind in formats if kind in FIGURES]:
        for name, study in studies.items():
            with console.wait(f"drawing the figures of {name}"):
                paths = save_figures(study.finished(), out / name if len(studies) > 1 else out, figures)
            console.note(f"wrote {len(paths)} figures of {name} below {out}")


def _draw_headline(study: Study, path: Path) -> Path:
    """Draws the study into the file and returns its path."""
    check_name("suffix of --headline", path.suffix[1:], FIGURES)
    if any(study.settings):
        raise UserError(f"{study.path}: has settings; --headline draws a study without")
    if (figure := headline(study)) is None:
        raise UserError(f"{study.path}: has neither spectra nor effective ranks for --headline")
    return save_figure(figure, path)


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns a file name for each folder, with as many parents as make the names distinct."""
    parts = [folder.resolve().parts[1:] or ("study",) for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["_".join(of[-length:]) for of in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number}_{name}" for number, name in enumerate(names, 1)]


def _rewrite(
    folders: Sequence[Path], console: Console, read: Callable[[Path], Study], look: Callable[[Iterable[Study]], View]
) -> bool:
    """Rewrites the reports, with a message for each that fails; returns whether all are written."""
    is_well = True
    for folder in folders:
        try:
            study = read(folder)
            view = look([study])
            report = write_report(study, view, console.wait)
            summary = with_best(study, view.of(summary_for_paper(study)))
            console.print_table(summary, paper_of(study.config), means_of(study.config), view)
            console.note(verdict(study))
            for table in [] if study.config.get("settings") else difference_tables(study, view=view):
                console.note(f"\n{table.title}")
                console.print_rows(table.rows)
                console.note(table.note)
            _tell(study, console)
            console.note(f"wrote {report}")
        except UserError as error:
            print_error(error)
            is_well = False
    return is_well


def _tell(study: Study, console: Console) -> None:
    """Prints which runs are missing in the tables, and what is damaged."""
    for note in filter(None, (*dead_notes(study), unfinished_note(study.unfinished), *study.notes)):
        console.note(note)
