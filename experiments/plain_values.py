"""The values of a config as a study's folder keeps them: numbers, text, and tuples and dicts of them."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict, FieldReference

from fedjax_collapse.records import UserError

_ARRAYS = (jax.Array, np.ndarray, np.generic)


def make_plain(config: ConfigDict, path: str = "config") -> None:
    """Turns arrays of the config into numbers and tuples.

    Raises:
        UserError: a value is of another kind; ``path`` is what the line calls the config.
    """
    for key, value in config.items(preserve_field_references=True):
        if isinstance(value, ConfigDict):
            make_plain(value, f"{path}.{key}")
            continue
        plain = _plain(value, f"{path}.{key}")
        if isinstance(value, (*_ARRAYS, tuple, list)):
            with config.ignore_type():
                config[key] = plain


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, FieldReference):
        return _plain(value.get(), path)
    if isinstance(value, _ARRAYS):
        value = _numbers(np.asarray(value))
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item, path) for item in value)
    if isinstance(value, Mapping):
        return {key: _plain(item, path) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UserError(f"{path}: got a {type(value).__name__}, expected numbers, text, and tuples and dicts of them")


def _numbers(array):
    """Floats with as many digits as their type tells apart: 0.1 of a float32, not 0.10000000149."""
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    return (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
