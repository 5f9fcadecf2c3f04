"""Describes records as JSON, by which a run's folder is recognised and timings are cached."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_collapse.core.hashing import digest
from fedjax_collapse.schema.source_code import hash_code

_LEFT_OUT = ("parent", "name", "target", "timed")  # added by Linen, or affecting no more than rounding


def describe(value: Any) -> Any:
    """Describes a value as JSON: records by field, functions by name, large arrays by hash."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name not in _LEFT_OUT]
        return {name: describe(getattr(value, name)) for name in names} | {"class": type(value).__qualname__}
    if isinstance(value, functools.partial):  # also JAX's
        return {"function": describe(value.func), "args": describe(value.args), "keywords": describe(value.keywords)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Callable):
        return _describe_function(value)
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return np.asarray(value).tolist() if np.size(value) <= 4 else digest(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)


def _describe_function(function):
    """Returns the name of a function, with the closure of an inner function or the bytecode of a lambda."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if "<" not in name:
        return name
    closed = [describe(cell.cell_contents) for cell in function.__closure__ or ()]
    return {"function": name, "closure": closed} | (
        {"code": hash_code(function.__code__)} if "<lambda>" in name else {}
    )
