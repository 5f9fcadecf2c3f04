"""Checks a value against its annotation and describes a mismatch in one line."""

import collections.abc
import dataclasses
import functools
import inspect
import math
import os
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, Union, get_args, get_origin

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.records import UserError

PLAIN = {  # types by annotation
    float: (int, float, np.integer, np.floating),
    int: (int, np.integer),
    str: (str,),
    bool: (bool, np.bool_),
    tuple: (tuple, list),
    Mapping: (Mapping,),
    Path: (Path,),
    os.PathLike: (os.PathLike,),
    type(None): (type(None),),
    jax.Array: (jax.Array, np.ndarray),
    jax.Device: (jax.Device,),
}
CUSTOM = '"module:Name"'
_LARGEST = {int: 2**31 - 1, float: float(np.finfo(np.float32).max)}  # in the default precision


@dataclasses.dataclass(frozen=True)
class Interval:
    """An interval of numbers, ``[least, most]``.

    Args:
        least: the lower end.
        most: the upper end.
        ends: the brackets; a round one excludes its end.
        advice: added to the message about a number outside.
    """

    least: float = -math.inf
    most: float = math.inf
    ends: str = "[]"
    advice: str = ""

    def __contains__(self, number: float) -> bool:
        is_above = number > self.least if self.ends[0] == "(" else number >= self.least
        return is_above and (number < self.most if self.ends[1] == ")" else number <= self.most)

    def in_words(self) -> str:
        """Returns the interval in words, such as ``>= 0`` or ``in (0, 1]``."""
        if self.most < math.inf:
            return f"in {self.ends[0]}{shown(self.least)}, {shown(self.most)}{self.ends[1]}"
        return f"{'>' if self.ends[0] == '(' else '>='} {shown(self.least)}"

    def problem(self, number: float, kind: type) -> str:
        """Returns the error of a number of this kind; empty if it is valid."""
        kind = int if isinstance(number, (int, np.integer)) else kind  # also an integer where a float is expected
        if number in self and (self.most < math.inf or abs(number) <= _LARGEST[kind]):
            return ""
        return f"{shown(number)} {self._reason(number, kind)}" + (f"; {self.advice}" if self.advice else "")

    def _reason(self, number, kind):
        if self.most < math.inf:
            return f"is outside {self.in_words().removeprefix('in ')}"
        if not abs(number) < math.inf:
            return "is not finite"
        if number in self:
            return f"does not fit into 32 bits, expected at most {shown(_LARGEST[kind])}"
        if self.ends[0] == "(" and self.least == 0:
            return "is not positive"
        return f"is {'negative' if self.least == 0 else 'too small'}, expected >= {shown(self.least)}"


class OpenChoice(tuple):
    """Known names of a value that may also have other values, which are checked where it is used.

    Other values are a custom ``module:Name``, or several names with commas between them.

    Args:
        names: the known names.
        other: describes the other values; empty if there are none but lists of names.
    """

    def __new__(cls, names: Iterable[str], other: str = CUSTOM) -> Self:
        """Returns the names as a tuple."""
        made = super().__new__(cls, names)
        made.other = other
        return made

    def __contains__(self, value: object) -> bool:
        return True

    def in_words(self) -> str:
        """Returns all valid values as Python writes them: ``'batch' | 'group'``."""
        return " | ".join([*map(repr, self), *filter(None, [self.other])])


def problem(value: Any, hint: Any) -> str:
    """Returns the error of a value with this annotation; empty if it is valid.

    A concrete array of one number is checked as that number. The contents of other arrays, and values of unknown
    annotations, are not checked.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    value = _number_of(value, arguments[0] if origin is Annotated else hint)
    if origin is Annotated:
        kind, limit = arguments
        return _type_problem(value, kind) or _limit_problem(value, kind, limit)
    if origin in (Union, types.UnionType):
        problems = [problem(value, kind) for kind in arguments]
        return "" if "" in problems else problems[0]
    if origin is tuple:
        return _type_problem(value, tuple) or _items_problem(value, arguments)
    if origin in (dict, Mapping):
        return _type_problem(value, origin) or _entries_problem(value, *arguments)
    if origin is collections.abc.Sequence:
        return _type_problem(value, tuple) or _items_problem(value, (*arguments, ...))
    if is_array(hint):
        return _array_problem(value, hint)
    if hint is jax.tree_util.Partial:
        return _type_problem(value, hint) or next(filter(None, map(_traced_problem, jax.tree.leaves(value))), "")
    if origin is type:
        is_class = inspect.isclass(value) and issubclass(value, arguments[0])
        return "" if is_class else f"{shown(value)}: expected a class derived from {name_of(arguments[0])}"
    if origin is collections.abc.Callable:
        return "" if callable(value) else f"{shown(value)}: expected a function, got {type(value).__name__}"
    return _type_problem(value, origin or hint) or _limit_problem(value, hint, Interval())


def _number_of(value, kind):
    """Returns the number in an array without dimensions, if a number is expected; other values unchanged."""
    if kind not in _LARGEST or not isinstance(value, (jax.Array, np.ndarray)) or is_traced(value):
        return value
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return value if value.ndim or is_key else value.item()


def _type_problem(value, kind):
    expected = PLAIN.get(kind) or ((kind,) if _is_record(kind) else None)
    if expected is None:
        return ""
    if kind in _LARGEST and isinstance(value, (jax.Array, np.ndarray)):
        if not jnp.issubdtype(value.dtype, jnp.integer if kind is int else jnp.number):
            return f"{shown(value)}: expected {name_of(kind)}, got an array of {value.dtype}"
        is_one = value.ndim == 0 or is_traced(value)
        return "" if is_one else f"{shown(value)}: expected {name_of(kind)}, got an array of shape {value.shape}"
    if isinstance(value, expected) and not (isinstance(value, bool) and kind in _LARGEST):
        return ""
    return f"{shown(value)}: expected {name_of(kind)}, got {type(value).__name__}"


def _traced_problem(value):
    """Returns the error of an argument of a ``jax.tree_util.Partial``; empty if it is a number."""
    reason = problem(value, float)
    return reason and f"{reason}; pass what is not a number with options.constructor"


def _is_record(kind):
    """Returns whether values of this annotation have to be instances of the class."""
    return inspect.isclass(kind) and (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, (tuple, functools.partial, Mapping, flax.linen.Module))
        or kind.__module__.startswith("fedjax_collapse.")
    )


def is_array(hint: Any) -> bool:
    """Returns whether the annotation is one of jaxtyping's array types."""
    return hasattr(hint, "dtypes") and hasattr(hint, "dims")


def _array_problem(value, hint):
    """Checks an array's dtype and number of axes against its annotation."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        return f"{shown(value)}: expected an array, got {type(value).__name__}"
    kinds = {str(dtype).rstrip("0123456789").removeprefix("u") for dtype in hint.dtypes}
    names = " or ".join(sorted(kinds & {"float", "int", "bool"})) or "numbers"
    if not any(str(value.dtype) in str(dtype) for dtype in hint.dtypes):
        return f"an array of {value.dtype}, expected {names}"
    is_fixed = hint.index_variadic is None
    if value.ndim != len(hint.dims) if is_fixed else value.ndim < len(hint.dims) - 1:
        return f"an array of shape {value.shape}, expected [{', '.join(hint.dim_str.split())}]"
    return ""


def _limit_problem(value, kind, limit):
    if isinstance(limit, Interval):
        is_number = kind in _LARGEST and not isinstance(value, (jax.Array, np.ndarray))
        return limit.problem(value, kind) if is_number else ""
    return "" if value in limit else f"{shown(value)}: expected one of {', '.join(map(str, limit))}"


def _entries_problem(values, name_kind, kind):
    for name, value in values.items():
        if reason := problem(name, name_kind):
            return reason
        if reason := problem(value, kind):
            return f"{name}: {reason}"
    return ""


def _items_problem(values, kinds):
    """Checks the items of a tuple; ``kinds`` are the arguments of its annotation."""
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        return f"{shown(values)}: expected {len(kinds)} values, got {len(values)}"
    reason = next(filter(None, map(problem, values, kinds)), "")
    return reason and f"{shown(values)}: {reason}"


def as_array(name: str, values: Any) -> np.ndarray:
    """Returns the values as an array of numbers.

    Raises:
        UserError: they are not numbers, are complex, or some of them are masked.
    """
    try:
        array = np.asarray(values)
    except Exception as error:  # ragged nested sequences, keys, tracers
        raise UserError(f"{name}: {type(values).__name__} is no array ({' '.join(str(error).split())[:80]})") from None
    if array.dtype.kind not in "biu" and not jnp.issubdtype(array.dtype, jnp.floating):
        got = {"O": type(values).__name__, "U": "text", "S": "text"}.get(array.dtype.kind, array.dtype)
        raise UserError(f"{name}: expected numbers, got {got}")
    if np.ma.is_masked(values):
        raise UserError(f"{name}: some values are masked; fill them, or leave their examples out")
    return array


def shown(value: Any) -> str:
    """Returns the value as one short line of text."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return f"{value:g}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # from a class of the user
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def name_of(kind: Any) -> str:
    """Returns the name of a type."""
    return "None" if kind is type(None) else kind.__name__.rpartition(".")[2]
