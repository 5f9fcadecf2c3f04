"""The theory of the papers, numerically: dimensional collapse under label imbalance, and classes that clients lack.

    fedjax-collapse theory --out=FOLDER [--steps=200] [--seeds=5]

Writes seven figures, each as SVG, PDF and PNG, and their numbers as CSV, and prints their main results. Of FedDecorr
(Shi et al., ICLR 2023; TPAMI 2023), with deep linear networks (``theory_feddecorr.py``):

    rates         d sigma_k / dt of the features' weight product: exact, by its balanced form, and by theorem 1
    classes       its singular values, and the effective rank of the features, of a client with few or many classes
    alignment     assumption 2 of theorem 1 over steps of gradient descent from random weights
    dirichlet     rank of theorem 1's matrix G and of the trained features against Dirichlet's alpha
    proposition   both sides of proposition 1, and the rank against its right side, FedDecorr's loss

Of FedMR (Fan et al., TMLR 2023; ``theory_fedmr.py``):

    discs         the linear classifiers of section 3.2 of three clients that lack a class each, and their mean
    sphere        features on the unit sphere, of a model trained centrally, by a client of FedAvg, and by one of FedMR

Exit status: 0, or 2 for invalid input (a one-line message).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd

from experiments.parser import Parser, print_error
from experiments.research import theory_feddecorr, theory_fedmr
from experiments.research.theory_records import Columns, Options, Study
from experiments.waiting import wait
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.plot.drawing import FIGURES, save_figure
from fedjax_collapse.results.writing import csv_text
from fedjax_collapse.schema.options import Count, check_value

STUDIES: dict[str, Study] = theory_feddecorr.STUDIES | theory_fedmr.STUDIES


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns the exit status."""
    try:
        folder, options = _parse(arguments)
        for name, study in STUDIES.items():
            with wait(f"computing {name}"):
                columns = study.compute(options)
            _write(folder, name, columns, study.draw(columns))
            print(f"{name}: {study.say(columns)}")
        print(f"wrote {folder}")
    except UserError as error:
        return print_error(error)
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--out", default="", metavar="FOLDER", help="where to write figures and numbers")
    parser.add_argument("--steps", type=int, default=200, help="of integration, by default 200")
    parser.add_argument("--seeds", type=int, default=5, help="repetitions of all that is random, by default 5")
    parser.error = _fail
    return parser


def _parse(arguments):
    given = command_line().parse_args(arguments)
    if not given.out:
        _fail("--out is missing: give the folder to write to, --out=FOLDER")
    for name in ("steps", "seeds"):
        check_value(f"--{name}", getattr(given, name), Count)
    return Path(given.out), Options(given.steps, given.seeds)


def _write(folder: Path, name: str, columns: Columns, figure) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.csv").write_text(csv_text(pd.DataFrame(columns), None), encoding="utf-8")
        for kind in FIGURES:
            save_figure(figure, folder / f"{name}.{kind}")
    except OSError as error:
        raise UserError(f"--out={folder}: cannot be written to ({error.strerror}); choose another folder") from None


def _fail(message: str) -> NoReturn:
    raise UserError(message)
