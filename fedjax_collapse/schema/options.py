"""Declares valid values by annotations, and checks the values of records, functions and networks.

``Annotated[float, Interval(0, 1)]`` is a number in an interval; common intervals have names, such as ``Count``. A tuple
instead of the interval lists choices. Numbers of a record are pytree leaves, traced inside compiled code; fields that
are declared with ``option`` are static.
"""

import collections.abc
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

import jax
import numpy as np
from flax import struct

from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.annotations import CUSTOM as CUSTOM
from fedjax_collapse.schema.annotations import PLAIN, as_array, is_array, name_of
from fedjax_collapse.schema.annotations import Interval as Interval
from fedjax_collapse.schema.annotations import OpenChoice as OpenChoice
from fedjax_collapse.schema.annotations import problem as problem
from fedjax_collapse.schema.annotations import shown as shown

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")

Positive = Annotated[float, Interval(0, ends="(]")]
NonNegative = Annotated[float, Interval(0)]
Fraction = Annotated[float, Interval(0, 1)]
Share = Annotated[float, Interval(0, 1, "(]")]
Decay = Annotated[float, Interval(0, 1, "[)")]  # the fraction retained from step to step, such as a momentum
Count = Annotated[int, Interval(1)]
Natural = Annotated[int, Interval(0)]
Seed = Annotated[int, Interval(0, 2**32 - 1)]
# of a network, in the syntax of ``core/masks.py``
Part = Annotated[str, OpenChoice(("none", "all", "batch_norm", "head", "body"), '"path" | "part+part"')]


def option(default: Any, choices: tuple = (), **needed: Any) -> Any:
    """A dataclass field that is static: fixed for the run and part of the program, such as the name of a variant.

    Args:
        default: the default value.
        choices: the valid values; empty if the annotation suffices.
        **needed: fields without which this one has no effect, as in ``only_with``.
    """
    return struct.field(pytree_node=False, default=default, metadata={"choices": choices, "needed": needed})


def only_with(default: Any, **needed: Any) -> Any:
    """A dataclass field that has no effect without others.

    ``only_with(1.0, rule="availability")`` needs that value of ``rule``; ``only_with(0.5, stragglers=...)`` needs any
    value of ``stragglers``. If the condition is not met, only the default is accepted.
    """
    return dataclasses.field(default=default, metadata={"needed": needed})


@dataclasses.dataclass(frozen=True)
class WithOptions:
    """A function with some of its arguments, made by ``with_options``; comparable and hashable."""

    function: Callable
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *arguments: Any, **numbers: Any) -> Any:
        return self.function(*arguments, **numbers, **dict(self.options))


def with_options(function: Callable, **options: Any) -> WithOptions:
    """Binds arguments to a function. Unlike ``functools.partial``, results with equal arguments are equal."""
    return WithOptions(function, tuple(options.items()))


def constructor(function: Callable, **arguments: Any) -> jax.tree_util.Partial:
    """Binds arguments to a constructor, such as ``constructor(optax.sgd, momentum=0.9, nesterov=True)``.

    Numbers are traced, as in a record; flags, names and functions are static.
    """
    check_value("constructor: function", function, Callable[..., Any])
    numbers = {name: value for name, value in arguments.items() if not isinstance(value, (bool, str, Callable))}
    options = {name: value for name, value in arguments.items() if name not in numbers}
    return jax.tree_util.Partial(with_options(function, **options) if options else function, **numbers)


def check_fields(record: Any, what: str = "") -> None:
    """Raises UserError if a field of the dataclass or named tuple violates its annotation or choices.

    Args:
        record: the dataclass or named tuple.
        what: its name in the message; by default the name of its class.
    """
    for name, hint in _hints_of_class(type(record)).items():
        if hasattr(record, name):
            check_value(f"{what or type(record).__name__}: {name}", getattr(record, name), hint)
    check_needed(record)


def check_needed(record: Any) -> None:
    """Raises UserError for a field that has no effect because another one is missing (``only_with``)."""
    for field in dataclasses.fields(record) if dataclasses.is_dataclass(record) else ():
        value, needed = getattr(record, field.name), field.metadata.get("needed")
        for name, expected in needed.items() if needed and not _is_equal(value, field.default) else ():
            found, what = getattr(record, name), f"{type(record).__name__}: {field.name} {shown(value)}"
            if expected is not ... and found != expected:
                raise UserError(f"{what} with {name} {found!r}, expected {name}={expected!r}: it has no effect there")
            if expected is ... and (found is None or (isinstance(found, str) and found == "none")):
                raise UserError(f"{what} without {name}, expected both: on its own it has no effect")


def checked(function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned]:
    """Decorates a function to raise UserError for an argument that violates its annotation."""
    signature, annotations = inspect.signature(function), hints(function)

    @functools.wraps(function)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Returned:
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            if is_array(annotations[name]) and isinstance(value, (list, tuple)):
                bound.arguments[name] = value = as_array(f"{function.__name__}: {name}", value)
            check_value(f"{function.__name__}: {name}", value, annotations[name])
        return function(*bound.args, **bound.kwargs)

    return call


def check_value(what: str, value: Any, hint: Any) -> None:
    """Raises UserError if the value violates the annotation."""
    if reason := problem(value, hint):
        raise UserError(f"{what} {reason}")


def check_key(what: str, key: Any) -> None:
    """Raises UserError unless the value is one JAX key, typed or raw."""
    check_value(what, key, jax.Array)
    raw = jax.random.key_data(jax.random.key(0))
    if (key.dtype, key.shape) not in ((jax.random.key(0).dtype, ()), (raw.dtype, raw.shape)):
        raise UserError(f"{what} {shown(key)}: expected one key, such as jax.random.key(0)")


def _is_equal(value, number):
    """Returns whether the value is that number. Tracers, whose values are unknown, count as equal."""
    is_one = not isinstance(value, (jax.Array, np.ndarray)) or not problem(value, float)
    return is_traced(value) or (is_one and bool(value == number))


def hints(made: Callable) -> dict[str, Any]:
    """Returns the annotation of every argument of a function or class, with the choices of a dataclass's fields."""
    try:
        parameters = inspect.signature(made, eval_str=True).parameters
    except Exception:  # annotations as strings, with names that only type checkers may know
        parameters = inspect.signature(made).parameters
    annotations = {name: parameter.annotation for name, parameter in parameters.items()}
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        if field.name in annotations and (choices := field.metadata.get("choices")):
            annotations[field.name] = Annotated[annotations[field.name], choices]
    return annotations


_hints_of_class = functools.lru_cache(maxsize=256)(hints)  # reading annotations takes longer than all other checks


def listed(hint: Any) -> tuple | None:
    """Returns the names that an annotation lists: valid values, or an ``OpenChoice``; None if it lists none."""
    limits = (of.__metadata__[0] for of in (hint, *get_args(hint)) if get_origin(of) is Annotated)
    return next((limit for limit in limits if isinstance(limit, tuple)), None)


def in_words(hint: Any) -> str:
    """Describes the valid values of an annotation, such as ``float >= 0``; empty if it does not restrict them."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, limit = arguments
        if isinstance(limit, Interval):
            return f"{name_of(kind)} {limit.in_words()}"
        return limit.in_words() if isinstance(limit, OpenChoice) else " | ".join(map(repr, limit))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(filter(None, map(in_words, arguments))))
    if origin is tuple:
        parts = ["..." if a is ... else in_words(a) for a in arguments]
        return f"({', '.join(parts)})" if all(parts) else "tuple"
    if hint in (jax.tree_util.Partial, WithOptions):
        return "dict(name=...)"
    if origin is collections.abc.Callable:
        return '"module:function"'
    if origin is type:
        return '"module:Class"'
    if hint is jax.Array:
        return "array"
    return name_of(hint) if hint in PLAIN or hint is dict else ""
