"""Rewrites the reports of studies from their saved arrays, without training, and prints their final tables.

python experiments/report.py STUDY_FOLDER [STUDY_FOLDER ...]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone works without being installed

from experiments.console import Console
from fedjax_collapse.records import UserError
from fedjax_collapse.report import read_study, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one line on stderr for every folder that is not a readable study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="STUDY_FOLDER")
    console, status = Console(), 0
    for folder in parser.parse_args(arguments).folders:
        try:
            report = write_report(folder)
            console.print_table(read_study(folder).summary)
            console.note(f"wrote {report}")
        except UserError as error:
            print(f"report: {error}", file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
