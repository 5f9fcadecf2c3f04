"""The parser of a command line: ``--help`` prints the whole docstring of the program; a wrong argument is one line."""

import argparse
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Like ``argparse.ArgumentParser``, for a program with this docstring."""

    def __init__(self, docstring: str | None = None, **options: Any) -> None:
        options = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False) | options
        super().__init__(description=docstring, **options)

    def error(self, message: str) -> NoReturn:
        """Prints the message and ends the program with exit status 2."""
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
