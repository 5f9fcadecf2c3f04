"""Converts the values of a config to numbers, text, tuples and dicts, which a study's folder stores."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict, FieldReference

from fedjax_collapse.core.records import UserError

_ARRAYS = (jax.Array, np.ndarray, np.generic)


def plain(config: ConfigDict | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config as dicts in the order of its file, with tuples and numbers in place of lists and arrays.

    A ``ConfigDict`` iterates in alphabetical order.

    Raises:
        UserError: a value is of another kind.
    """
    if isinstance(config, ConfigDict):
        config = _as_declared(config.to_dict(), json.loads(config.to_json_best_effort()))
    return _plain(config, "config")


def _as_declared(values, declared):
    """Returns the values with their keys in the order of ``declared``, in which keys are text."""
    if not isinstance(values, Mapping):
        return values
    keys = {str(key): key for key in values}
    return {keys[name]: _as_declared(values[keys[name]], declared[name]) for name in declared}


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, FieldReference):
        return _plain(value.get(), path)
    if isinstance(value, _ARRAYS):
        value = _numbers(np.asarray(value))
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item, path) for item in value)
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UserError(f"{path}: got a {type(value).__name__}, expected numbers, text, and tuples and dicts of them")


def _numbers(array):
    """Returns floats with the digits of their type: 0.1 for a float32, not 0.10000000149."""
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    return (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
