"""What a value may be is said once, in its annotation, and checked here: of records, functions and networks alike.

``Annotated[float, Interval(0, 1)]`` is a number in an interval, of which the usual ones have names, such as ``Count``;
a tuple in the place of the interval holds choices. Numbers of a record are pytree leaves, traced inside compiled code;
what is declared by ``option`` is part of the program.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.records import UserError

_PLAIN = {
    float: (int, float, np.integer, np.floating),
    int: (int, np.integer),
    str: (str,),
    bool: (bool, np.bool_),
    tuple: (tuple, list),
    Path: (Path,),
    type(None): (type(None),),
    jax.Array: (jax.Array, np.ndarray),
}
_LARGEST = {int: 2**31 - 1, float: float(np.finfo(np.float32).max)}  # in the default precision


@dataclasses.dataclass(frozen=True)
class Interval:
    """Of numbers, ``[least, most]``; an end with a round bracket is outside. ``advice`` for a number that is not in."""

    least: float = -math.inf
    most: float = math.inf
    ends: str = "[]"
    advice: str = ""

    def __contains__(self, number: float) -> bool:
        is_above = number > self.least if self.ends[0] == "(" else number >= self.least
        return is_above and (number < self.most if self.ends[1] == ")" else number <= self.most)

    def in_words(self) -> str:
        """Such as ``>= 0`` or ``in (0, 1]``."""
        if self.most < math.inf:
            return f"in {self.ends[0]}{shown(self.least)}, {shown(self.most)}{self.ends[1]}"
        return f"{'>' if self.ends[0] == '(' else '>='} {shown(self.least)}"

    def problem(self, number: float, kind: type) -> str:
        """What is wrong with a number of that kind; empty where nothing is."""
        kind = int if isinstance(number, (int, np.integer)) else kind  # also one that stands for a float
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


Positive = Annotated[float, Interval(0, ends="(]")]
NotNegative = Annotated[float, Interval(0)]
Fraction = Annotated[float, Interval(0, 1)]
Share = Annotated[float, Interval(0, 1, "(]")]
Decay = Annotated[float, Interval(0, 1, "[)")]  # of what is kept from step to step, such as a momentum
Count = Annotated[int, Interval(1)]
Natural = Annotated[int, Interval(0)]
Seed = Annotated[int, Interval(0, 2**32 - 1)]


def option(default: Any, choices: tuple = (), **needed: Any) -> Any:
    """A dataclass field that is fixed for the run and part of the compiled program, such as the name of a variant.

    ``needed``: other fields without which it does nothing, as of ``only_with``.
    """
    return struct.field(pytree_node=False, default=default, metadata={"choices": choices, "needed": needed})


def only_with(default: Any, **needed: Any) -> Any:
    """A dataclass field that does nothing without others: ``only_with(1.0, rule="availability")`` needs that rule, and
    ``only_with(0.5, stragglers=...)`` any number of them. Other values than the default are refused then."""
    return dataclasses.field(default=default, metadata={"needed": needed})


@dataclasses.dataclass(frozen=True)
class WithOptions:
    """A function with some of its arguments, as ``with_options`` makes it; equal for equal ones."""

    function: Callable
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *arguments: Any, **numbers: Any) -> Any:
        return self.function(*arguments, **numbers, **dict(self.options))


def with_options(function: Callable, **options: Any) -> WithOptions:
    """The function with some of its arguments; unlike those of ``functools.partial``, equal ones are equal."""
    return WithOptions(function, tuple(options.items()))


def constructor(function: Callable, **arguments: Any) -> jax.tree_util.Partial:
    """The function with its arguments, such as ``constructor(optax.sgd, momentum=0.9, nesterov=True)``.

    Numbers are traced, as those of a record; flags, names and functions are part of the program.
    """
    numbers = {name: value for name, value in arguments.items() if not isinstance(value, (bool, str, Callable))}
    options = {name: value for name, value in arguments.items() if name not in numbers}
    return jax.tree_util.Partial(with_options(function, **options) if options else function, **numbers)


def check_fields(record: Any) -> None:
    """Raises UserError if a field of the dataclass or named tuple is not what its annotation and choices say."""
    for name, hint in hints(type(record)).items():
        if hasattr(record, name):
            check_value(f"{type(record).__name__}: {name}", getattr(record, name), hint)
    check_needed(record)


def check_needed(record: Any) -> None:
    """Raises UserError for a field that does nothing without another one, which is not there (``only_with``)."""
    for field in dataclasses.fields(record) if dataclasses.is_dataclass(record) else ():
        value = getattr(record, field.name)
        for name, expected in field.metadata.get("needed", {}).items() if not _is_equal(value, field.default) else ():
            found, what = getattr(record, name), f"{type(record).__name__}: {field.name} {shown(value)}"
            if expected is not ... and found != expected:
                raise UserError(f"{what} with {name} {found!r}, expected {name}={expected!r}: it does nothing there")
            if expected is ... and found in (None, "none"):
                raise UserError(f"{what} without {name}, expected both: it does nothing alone")


def checked(function: Callable) -> Callable:
    """The function, whose arguments are checked: UserError for one that is not what its annotation says."""
    signature, annotations = inspect.signature(function), hints(function)

    @functools.wraps(function)
    def call(*arguments, **named):
        for name, value in signature.bind(*arguments, **named).arguments.items():
            check_value(f"{function.__name__}: {name}", value, annotations[name])
        return function(*arguments, **named)

    return call


def check_value(what: str, value: Any, hint: Any) -> None:
    """Raises UserError if the value is not what the annotation says."""
    if wrong := problem(value, hint):
        raise UserError(f"{what} {wrong}")


def hints(made: Callable) -> dict[str, Any]:
    """The annotation of every argument of a function or class; the choices of a dataclass's fields are part of it."""
    try:
        parameters = inspect.signature(made, eval_str=True).parameters
    except Exception:  # of annotations that are text, of names that may be there for type checkers alone
        parameters = inspect.signature(made).parameters
    annotations = {name: parameter.annotation for name, parameter in parameters.items()}
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        if field.name in annotations and (choices := field.metadata.get("choices")):
            annotations[field.name] = Annotated[annotations[field.name], choices]
    return annotations


def problem(value: Any, hint: Any) -> str:
    """What is wrong with a value of that annotation; empty where nothing is.

    An array of one number is as that number, unless it is traced; the values of other arrays are not looked at, nor is
    any value of an annotation of another kind.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    value = _number_of(value, arguments[0] if origin is Annotated else hint)
    if origin is Annotated:
        kind, limit = arguments
        wrong = _type_problem(value, kind)
        return wrong or _limit_problem(value, kind, limit)
    if origin in (Union, types.UnionType):
        problems = [problem(value, kind) for kind in arguments]
        return "" if "" in problems else problems[0]
    if origin is tuple:
        return _type_problem(value, tuple) or _items_problem(value, arguments)
    if origin is dict:
        wrong = {key: problem(item, arguments[1]) for key, item in value.items()} if isinstance(value, dict) else {}
        return _type_problem(value, dict) or next((f"{key}: {text}" for key, text in wrong.items() if text), "")
    if hint is jax.tree_util.Partial:
        return _type_problem(value, hint) or next(filter(None, map(_traced_problem, jax.tree.leaves(value))), "")
    if origin is type:
        is_class = inspect.isclass(value) and issubclass(value, arguments[0])
        return "" if is_class else f"{shown(value)}: expected a class derived from {_name(arguments[0])}"
    if origin is collections.abc.Callable:
        return "" if callable(value) else f"{shown(value)}: expected a function, got {type(value).__name__}"
    return _type_problem(value, origin or hint) or _limit_problem(value, hint, Interval())


def _number_of(value, kind):
    """What is in an array without dimensions, where a number is expected; anything else as it is."""
    is_known = isinstance(value, (jax.Array, np.ndarray)) and not isinstance(value, jax.core.Tracer)
    return value.item() if is_known and kind in _LARGEST and value.ndim == 0 else value


def _is_equal(value, number):
    """Whether it is that number; of what is traced nobody knows."""
    return isinstance(value, jax.core.Tracer) or (np.ndim(value) == 0 and bool(value == number))


def _type_problem(value, kind):
    expected = _PLAIN.get(kind) or ((kind,) if _is_record(kind) else None)
    if expected is None:
        return ""
    if kind in _LARGEST and isinstance(value, (jax.Array, np.ndarray)):
        is_fine = jnp.issubdtype(value.dtype, jnp.integer if kind is int else jnp.number)
        return "" if is_fine else f"{shown(value)}: expected {_name(kind)}, got an array of {value.dtype}"
    if isinstance(value, expected) and not (isinstance(value, bool) and kind in _LARGEST):
        return ""
    return f"{shown(value)}: expected {_name(kind)}, got {type(value).__name__}"


def _traced_problem(value):
    """Of an argument of a ``jax.tree_util.Partial``."""
    wrong = problem(value, float)
    return wrong and f"{wrong}; what is no number is given by options.constructor"


def _is_record(kind):
    """Whether it is a class whose objects nothing else can stand for."""
    return inspect.isclass(kind) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, (tuple, functools.partial, Mapping))
    )


def _limit_problem(value, kind, limit):
    if isinstance(limit, Interval):
        is_number = kind in _LARGEST and not isinstance(value, (jax.Array, np.ndarray))
        return limit.problem(value, kind) if is_number else ""
    return "" if value in limit else f"{shown(value)}: expected one of {', '.join(map(str, limit))}"


def _items_problem(values, kinds):
    """Of a tuple, ``kinds`` as in its annotation."""
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        return f"{shown(values)}: expected {len(kinds)} values, got {len(values)}"
    wrong = next(filter(None, map(problem, values, kinds)), "")
    return wrong and f"{shown(values)}: {wrong}"


def shown(value: Any) -> str:
    """The value in one short line."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return f"{value:g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name(kind):
    return "None" if kind is type(None) else kind.__name__


def in_words(hint: Any) -> str:
    """What a value of that annotation may be, such as ``float >= 0``; empty for an annotation that says nothing."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, limit = arguments
        return f"{_name(kind)} {limit.in_words()}" if isinstance(limit, Interval) else " | ".join(map(repr, limit))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(filter(None, map(in_words, arguments))))
    if origin is tuple:
        return "()" if not arguments else f"({', '.join('...' if a is ... else in_words(a) for a in arguments)})"
    if hint in (jax.tree_util.Partial, WithOptions):
        return "dict(name=...)"
    if origin is collections.abc.Callable:
        return '"module:function"'
    if origin is type:
        return '"module:Class"'
    if hint is jax.Array:
        return "array"
    return _name(hint) if hint in _PLAIN or hint is dict else ""
