"""The parser of a command line: ``--help`` prints the whole docstring of the program; a wrong argument is one line."""

import argparse
import ast
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import OpenChoice, in_words, problem
from fedjax_collapse.schema.user_code import one_line


class Parser(argparse.ArgumentParser):
    """Like ``argparse.ArgumentParser``, for a program with this docstring."""

    def __init__(self, docstring: str | None = None, **options: Any) -> None:
        options = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False) | options
        super().__init__(description=docstring, **options)

    def error(self, message: str) -> NoReturn:
        """Prints the message and ends the program with exit status 2."""
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def print_error(error: UserError | OSError) -> int:
    """Prints a one-line message about invalid input, or a file that cannot be written; returns the exit status, 2."""
    is_file = isinstance(error, OSError)
    message = f"{error.filename}: cannot be written ({error.strerror})" if is_file else one_line(error)
    print(f"error: {message}", file=sys.stderr)
    return 2


def reports_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Makes a program print a one-line message about invalid input, or a file that cannot be written, and return 2."""

    @functools.wraps(main)
    def run(*arguments: Any) -> int:
        try:
            return main(*arguments)
        except (UserError, OSError) as error:
            return print_error(error)

    return run


def names_option(names: Sequence[str], what: str, other: str = "") -> dict[str, Any]:
    """Returns the options of ``add_argument`` for names with commas between them, which the program checks itself.

    Args:
        names: the known names, for completion.
        what: the words before them in the help.
        other: describes other values; empty if there are none.
    """
    listed = ", ".join(names) + (f", or {other}" if other else "")
    return {"choices": OpenChoice(names, other), "metavar": "NAME,...", "help": f"{what} {listed}"}


def literal(text: str) -> Any:
    """Returns the text as a Python value if it is one, otherwise as text; ``dict(key=value)`` is a dict."""
    try:
        return ast.literal_eval(_Braces().visit(ast.parse(text.strip(), mode="eval")))
    except (ValueError, SyntaxError):
        return text


def of_kind(hint: Any) -> Callable[[str], Any]:
    """Returns the ``type`` of ``add_argument`` for values with this annotation, such as ``Count``."""

    def parse(text):
        if problem(value := literal(text), hint):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {in_words(hint)}")
        return value

    return parse


class _Braces(ast.NodeTransformer):
    """Writes ``dict(key=value)`` as ``{"key": value}``."""

    def visit_Call(self, call):
        if getattr(call.func, "id", "") == "dict" and not call.args and all(entry.arg for entry in call.keywords):
            keys = [ast.Constant(entry.arg) for entry in call.keywords]
            return ast.Dict(keys, [self.visit(entry.value) for entry in call.keywords])
        return call
