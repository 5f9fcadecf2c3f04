"""Choices and numbers of a record of hyper-parameters, and their checks.

Numbers are pytree leaves, traced inside compiled code; what is declared by ``option`` is part of the program.
"""

import dataclasses
from typing import Any

from flax import struct

from fedjax_collapse.records import UserError


def option(default: Any, choices: tuple = ()) -> Any:
    """A dataclass field that is fixed for the run and part of the compiled program, such as the name of a variant."""
    return struct.field(pytree_node=False, default=default, metadata={"choices": choices})


def check_options(record: Any) -> None:
    """Raises UserError if a field with choices has another value."""
    for field in dataclasses.fields(record):
        choices, value = field.metadata.get("choices"), getattr(record, field.name)
        if choices and value not in choices:
            expected = ", ".join(map(str, choices))
            raise UserError(f"{type(record).__name__}: {field.name} {value!r}: expected one of {expected}")


def check_at_least(least: float, record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is smaller or not a number."""
    for name in names:
        if not getattr(record, name) >= least:
            value = f"{type(record).__name__}: {name} {getattr(record, name):g}"
            raise UserError(f"{value} is {'negative' if least == 0 else 'too small'}, expected >= {least}")


def check_not_negative(record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is negative or not a number."""
    check_at_least(0, record, *names)


def check_positive(record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is not above 0."""
    for name in names:
        if not getattr(record, name) > 0:
            raise UserError(f"{type(record).__name__}: {name} {getattr(record, name):g} is not positive")


def check_fraction(record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is not in [0, 1]."""
    for name in names:
        if not 0 <= getattr(record, name) <= 1:
            raise UserError(f"{type(record).__name__}: {name} {getattr(record, name):g} is outside [0, 1]")
