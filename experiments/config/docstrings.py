"""Reads what docstrings say of arguments and fields."""

import inspect
import re
from collections.abc import Callable

from docstring_parser.google import parse


def described(made: Callable) -> dict[str, str]:
    """Returns the description of each argument of a function or field of a class that has one, on one line.

    They are read from the sections ``Args`` and ``Attributes``: of the module, for arguments that its functions share,
    then of the classes that a class is derived from, then of the function or class, each of which replaces the former.
    """
    owners = reversed(inspect.getmro(made)) if inspect.isclass(made) else [made]
    texts = [inspect.getdoc(inspect.getmodule(made)), *(getattr(owner, "__doc__", "") for owner in owners)]
    parameters = [parameter for text in texts if text for parameter in parse(inspect.cleandoc(text)).params]
    return {parameter.arg_name: _line(parameter.description or "") for parameter in parameters}


def _line(text):
    """The text on one line, without its last period, with code as in Markdown."""
    text = re.sub(":[a-z]+:`(.*?)`", r"`\1`", text.replace("``", "`"))
    return " ".join(text.split()).removesuffix(".")
