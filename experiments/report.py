"""Rewrites the reports of studies from their saved arrays, without training, and prints their final tables.

python experiments/report.py STUDY_FOLDER [STUDY_FOLDER ...] [--headline=FILE]

--headline also draws spectra and effective rank of the first study as one small figure, such as that of the README.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone works without being installed

from experiments.console import Console
from experiments.reporting import read_study, write_report
from experiments.reporting.figures import headline
from fedjax_collapse.records import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one line on stderr for every folder that is not a readable study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="STUDY_FOLDER")
    parser.add_argument("--headline", type=Path, metavar="FILE", help="an SVG file to draw the first study into")
    options, console, status = parser.parse_args(arguments), Console(), 0
    for folder in options.folders:
        try:
            report = write_report(folder)
            console.print_table(read_study(folder).summary)
            console.note(f"wrote {report}")
        except UserError as error:
            print(f"report: {error}", file=sys.stderr)
            status = 2
    if options.headline and not status:
        headline(read_study(options.folders[0])).savefig(options.headline, format="svg", metadata={"Date": None})
        console.note(f"wrote {options.headline}")
    return status


if __name__ == "__main__":
    sys.exit(main())
