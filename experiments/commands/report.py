"""Rewrites reports of studies, and of runs of a script, from their saved arrays, and prints their final tables.

fedjax-collapse report FOLDER [FOLDER ...] [--headline=FILE]
    [--format=md,tex,csv,svg,pdf,png] [--out=FOLDER] [--base=ARM] [--target=ARM] [--unfinished]
    [--columns=METRIC,METRIC] [--arms=ARM,ARM] [--sort=METRIC] [--absolute]

A folder is that of a study, or of one run of simulate(folder=...). With --format, --out, --base or --target, the
reports are not rewritten. The tables of all studies are written as one, ``results.md`` and ``.tex`` in the folder (by
default ``export`` in the study's folder), with differences from the arm ``--base``, by default the first, over runs of
equal seed and partition; ``results.csv`` has a row for each run, ``means.csv`` means and differences; each figure is a
file. --target prints, and adds to ``results.md`` and ``.tex``, how many rounds each arm needs to reach the best
accuracy of this arm, and how much faster that is. Unfinished runs are listed below the tables; with --unfinished they
have rows of their own, whose names tell their progress. --columns, --arms and --sort choose what is shown, in which
order. With --absolute, spectra in the report are eigenvalues instead of their shares of the variance. --headline draws
accuracy, effective rank and normalised spectra of the first study as one figure, whose title is the finding, as in the
README.
"""

import os
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.parser import Parser, names_option, print_error, reports_errors
from experiments.study.progress.console import Console
from fedjax_collapse.config.cells import names_in
from fedjax_collapse.config.folder import EXPORT
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results import Results, load, tables
from fedjax_collapse.results.comparing import verdict
from fedjax_collapse.results.export import TABLES, save_figures, write_tables
from fedjax_collapse.results.page import write_report
from fedjax_collapse.results.plot import headline, save_figure
from fedjax_collapse.results.plot.drawing import FIGURES
from fedjax_collapse.schema.names import check_name


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a one-line message for every folder that has no readable results."""
    options, console = command_line().parse_args(arguments), Console()
    folders = list({os.path.realpath(folder): folder for folder in options.folders}.values())
    if options.format is not None or options.out or options.base or options.target:
        export(folders, options, console)
    else:
        written = [_rewrite(folder, options, console) for folder in folders]
        if not all(written):
            return 2
    if options.headline:
        console.note(f"wrote {_draw_headline(_read(folders[:1], options, console)[0], options.headline)}")
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--headline", type=Path, metavar="FILE", help="an SVG, PDF or PNG file of the first study")
    parser.add_argument("--format", **names_option((*TABLES, *FIGURES), "kinds of files to write, by default tables:"))
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write to")
    parser.add_argument("--base", default="", metavar="ARM", help="the arm to compare the others with")
    parser.add_argument("--target", default="", metavar="ARM", help="the arm whose best accuracy others should reach")
    parser.add_argument("--unfinished", action="store_true", help="show unfinished runs in rows of their own")
    parser.add_argument("--columns", default="", metavar="METRIC,...", help="the columns of tables, in this order")
    parser.add_argument("--arms", default="", metavar="ARM,...", help="the arms in tables and figures, in this order")
    parser.add_argument("--absolute", action="store_true", help="draw spectra of eigenvalues, not of their shares")
    parser.add_argument("--sort", default="", metavar="METRIC", help="the metric by which arms are sorted")
    return parser


def export(folders: Sequence[Path], options: Namespace, console: Console) -> None:
    """Writes tables and figures of the finished runs of studies, as the options say.

    Raises:
        UserError: a folder has no results, a format or an arm does not exist, or several studies have no ``out``.
        OSError: a file cannot be written.
    """
    formats = (options.format or ",".join(TABLES)).split(",")
    for kind in formats:
        check_name("format", kind, (*TABLES, *FIGURES))
    if options.out is None and len(folders) > 1:
        raise UserError("several studies: give --out=FOLDER for their table")
    out = options.out or folders[0] / EXPORT
    studies = dict(zip(_names(folders), _read(folders, options, console), strict=True))
    arms = _arms(studies.values())
    for option, arm in (("base", options.base), ("target", options.target)):
        if arm:
            check_name(f"arm in --{option}", arm, arms)
    columns = tables.chosen([*studies.values()], options.columns)
    out.mkdir(parents=True, exist_ok=True)
    for study in studies.values():
        if options.target in study.arms:
            console.print_whole(tables.target_table(study, options.target))
        console.note("\n".join(tables.state_notes(study)))
    for kind in filter(TABLES.__contains__, formats):
        for path in write_tables(studies, out, kind, options.base, options.target, columns):
            console.note(f"wrote {path}")
    if figures := [kind for kind in formats if kind in FIGURES]:
        for name, study in studies.items():
            with console.wait(f"drawing the figures of {name}"):
                paths = save_figures(study, out / name if len(studies) > 1 else out, figures)
            console.note(f"wrote {len(paths)} figures of {name} below {out}")


def _read(folders: Iterable[Path], options: Namespace, console: Console) -> list[Results]:
    """Reads the results of folders, with the arms that the options choose."""
    found = []
    for folder in folders:
        with console.wait(f"reading {folder}"):
            study = load(folder)
        found.append(study.with_unfinished() if options.unfinished else study)
    known = _arms(found)
    arms = names_in(options.arms, known) if options.arms else ()
    for arm in arms:
        check_name("arm in --arms", arm, known)
    chosen = tables.chosen(found, options.sort, "metric in --sort")
    if len(chosen) > 1:
        raise UserError(f"--sort={options.sort}: expected one metric")
    sort = chosen[0].name if chosen else ""
    return [study.select([arm for arm in arms if arm in study.arms], sort) for study in found]


def _arms(studies: Iterable[Results]) -> dict[str, None]:
    return dict.fromkeys(arm for study in studies for arm in study.arms)


def _draw_headline(study: Results, path: Path) -> Path:
    """Draws the study into the file and returns its path."""
    check_name("suffix of --headline", path.suffix[1:], FIGURES)
    if study.has_settings:
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


def _rewrite(folder: Path, options: Namespace, console: Console) -> bool:
    """Rewrites a report, with a message if that fails; returns whether it is written."""
    try:
        (study,) = _read([folder], options, console)
        columns = tables.chosen([study], options.columns)
        with console.wait(f"drawing the figures of {folder}"):
            report = write_report(study, columns, options.absolute)
    except UserError as error:
        print_error(error)
        return False
    console.print_table(study, columns)
    console.note(verdict(study))
    for table in [] if study.has_settings else tables.difference_tables(study, columns=columns):
        console.print_whole(table)
    console.note("\n".join(tables.state_notes(study)))
    console.note(f"wrote {report}")
    return True
