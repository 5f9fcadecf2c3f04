"""Lists what a config can choose by name, one line each.

fedjax-collapse list [methods|networks|data|...]

Without a kind, all kinds are listed. ``fedjax-collapse launch --help=NAME`` prints the options of a name.
"""

import shutil
import textwrap
from collections.abc import Iterator

from experiments.commands import manual
from experiments.config_files import CONFIGS, config_files
from experiments.parser import Parser
from fedjax_collapse.data import augment

_IN_MANUAL = {"data": "data sources", "optimizers": "server optimizers", "schedules": "learning-rate schedules"}
KINDS = (
    *("methods", "networks", "heads", "data", "partitions", "measurements", "optimizers", "schedules", "samplers"),
    *("augmentations", "configs"),
)


def main(arguments: list[str]) -> int:
    """Prints the names and returns the exit status."""
    chosen = command_line().parse_args(arguments).kind
    for kind in [chosen] if chosen else KINDS:
        rows = dict(names(kind))
        indent = max(map(len, rows)) + 4
        print(f"{kind}:")
        for name, text in rows.items():
            print(_filled(f"  {name.ljust(indent - 2)}{text.removesuffix('.')}", indent))
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="what to list; everything by default")
    return parser


def names(kind: str) -> Iterator[tuple[str, str]]:
    """Yields every name of a kind, with its description."""
    if kind == "configs":
        for path in config_files():
            yield path.relative_to(CONFIGS).with_suffix("").as_posix(), manual.first_line(path)
    elif kind == "augmentations":
        yield from ((name, augment.in_words(preset)) for name, preset in augment.PRESETS.items())
    else:
        listed = manual.choices()[_IN_MANUAL.get(kind, kind)]
        yield from ((choice.name, choice.summary.split(". ")[0]) for choice in listed)


def _filled(line, indent):
    width = max(shutil.get_terminal_size().columns, 2 * indent)
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
