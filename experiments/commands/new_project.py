"""Writes a small project of your own: a config, a method with its test, a network, a notebook, and a README.

    fedjax-collapse new FOLDER

The folder must be new or empty; if it is not, nothing is written and the exit status is 2.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.parser import Parser, reports_errors
from fedjax_collapse.core.records import UserError

TEMPLATE = Path(__file__).with_name("template")


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the project and returns the exit status."""
    folder = command_line().parse_args(arguments).folder
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; choose another one")
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in TEMPLATE.iterdir() if path.is_file())
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    print(f"wrote {', '.join(file.name for file in files)} to {folder}; its README.md says how to begin")
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the project's folder, new or empty")
    return parser
