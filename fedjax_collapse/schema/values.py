"""Builds records from the values of a config, by the annotations of their fields, and reads their docstrings."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from docstring_parser.google import parse

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.names import check_key
from fedjax_collapse.schema.options import check_value, hints, in_words
from fedjax_collapse.schema.user_code import explaining

_OF_LINEN = ("parent", "name")


def from_values(what: str, made: Callable, values: Mapping[str, Any], **given: Any) -> Any:
    """Returns ``made(**values, **given)``, with every value converted to the type that its annotation has.

    Lists become tuples, which are hashable. If the annotation has an array or a record, a tuple of numbers becomes an
    array and a dict a record.

    Args:
        what: names the record or function in messages.
        made: the class or function.
        values: from the config.
        **given: other arguments that the caller passes.

    Raises:
        UserError: a value is unknown, missing or invalid, or the class or function raises any exception.
    """
    check_value(what, values, dict)
    annotations = hints(made) if inspect.isclass(made) or inspect.isfunction(made) else {}
    values = {name: _converted(f"{what}.{name}", value, annotations.get(name)) for name, value in values.items()}
    check_arguments(what, made, values, given)
    with explaining(what):
        return made(**values, **given)


def _converted(what, value, hint):
    kinds = (hint, *get_args(hint))
    if isinstance(value, (tuple, list)):
        if jax.Array in kinds:
            check_value(what, value, tuple[float, ...])
            return np.asarray(value, np.float32)
        return as_tuple(value)
    record = next(filter(is_record, kinds), None)
    return from_values(what, record, value) if record and isinstance(value, Mapping) else value


def is_record(kind: Any) -> bool:
    """Returns whether an annotation is a named tuple or a dataclass."""
    return inspect.isclass(kind) and (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind))


def as_tuple(value: Any) -> Any:
    """Returns a list, and all lists in it, as tuples; other values unchanged."""
    return tuple(map(as_tuple, value)) if isinstance(value, (list, tuple)) else value


def check_arguments(what: str, made: Callable, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises UserError for an argument that is unknown, missing, or violates its annotation; see ``from_values``."""
    try:
        accepted = {name: p for name, p in inspect.signature(made).parameters.items() if name not in given}
    except ValueError:  # some built-in functions
        raise UserError(f"{what}: {made} has no signature to inspect; give a Python function") from None
    accepted = {name: parameter for name, parameter in accepted.items() if name not in _OF_LINEN}
    annotations = hints(made)
    for name, value in values.items():
        check_key(f"option of {what}", name, accepted)
        check_value(f"{what}.{name}", value, annotations[name])
    for name, parameter in accepted.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in values:
            raise UserError(f"{what}.{name} is missing: {getattr(made, '__name__', made)} needs it")


class Option(NamedTuple):
    """An argument of a function, or a field of a record, as ``--help`` and the reference of configs show it."""

    name: str
    default: str  # as written in Python; empty if it is required
    allowed: str  # in words; empty if not restricted
    meaning: str  # from the docstring; empty if it has none


def options(made: Callable, given: set[str] | frozenset[str] = frozenset()) -> list[Option]:
    """Returns the options of a class or function, without ``given``, which a config does not set."""
    annotations, meanings = hints(made), described(made)
    return [
        Option(
            name,
            "" if parameter.default is parameter.empty else written(parameter.default),
            in_words(annotations[name]),
            meanings.get(name, ""),
        )
        for name, parameter in inspect.signature(made).parameters.items()
        if name not in given
    ]


def described(made: Callable) -> dict[str, str]:
    """Returns the descriptions of a function's arguments or a class's fields, on one line each.

    They are read from ``Args`` and ``Attributes`` of the module, for arguments that its functions share, of the base
    classes, and of the function or class. A later description replaces an earlier one.
    """
    owners = reversed(inspect.getmro(made)) if inspect.isclass(made) else [made]
    texts = [inspect.getdoc(inspect.getmodule(made)), *(getattr(owner, "__doc__", "") for owner in owners)]
    parameters = [parameter for text in texts if text for parameter in parse(inspect.cleandoc(text)).params]
    return {parameter.arg_name: _line(parameter.description or "") for parameter in parameters}


def _line(text):
    """Returns the text on one line, without its last period, with code as in Markdown."""
    text = re.sub(":[a-z]+:`(.*?)`", r"`\1`", text.replace("``", "`"))
    return " ".join(text.split()).removesuffix(".")


def written(value: Any) -> str:
    """Returns a default as Python writes it; functions and objects by name."""
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return f"{value:g}" if isinstance(value, float) else repr(value)
