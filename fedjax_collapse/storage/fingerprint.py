"""A description of a run as JSON, stored in its folder so that no other run continues there."""

import dataclasses
import functools
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.source_code import hash_code
from fedjax_collapse.storage.history import write_json

_FILE = "run.json"
_LEFT_OUT = ("parent", "name", "target", "timed")  # added by Linen, or affecting no more than rounding
_NEW = ("normalization", "domains", "code")  # not described by earlier versions
NAME = "name"  # of a private run, which a moved folder keeps
_SHOWN = 3  # the number of differences in a message


class _Fields(dict):
    """A record's fields by name; ``usual`` are the names of those that have their default."""

    usual: frozenset[str]


def describe(value: Any) -> Any:
    """Describes a value as JSON: records by field, functions by name, large arrays by hash."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.name not in _LEFT_OUT]
        described = _Fields({field.name: describe(getattr(value, field.name)) for field in fields})
        described.usual = frozenset(f.name for f in fields if described[f.name] == describe(_default(f)))
        described["class"] = type(value).__qualname__
        return described
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


def _default(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _describe_function(function):
    """Returns its name; for an inner function also what it closes over, for a lambda its bytecode."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if "<" not in name:
        return name
    closed = [describe(cell.cell_contents) for cell in function.__closure__ or ()]
    return {"function": name, "closure": closed} | (
        {"code": hash_code(function.__code__)} if "<lambda>" in name else {}
    )


def claim(runs: Mapping[Path, tuple[Mapping[str, Any], bool]]) -> None:
    """Makes each folder its run's.

    ``runs`` maps folders to the run's description and whether the folder has rounds already.

    Raises:
        UserError: a folder has rounds of another run; then no folder is changed.
    """
    for folder, (description, is_started) in runs.items():
        if is_started:
            check_same(folder, description)
    for folder, (description, _) in runs.items():
        write_json(folder / _FILE, description)


def name_in(folder: Path) -> str | None:
    """Returns the name that the run in the folder was started with; None if it has none, or none that can be read."""
    try:
        return json.loads(files.read(folder / _FILE)).get(NAME)
    except (OSError, ValueError, AttributeError):
        return None


def check_same(
    folder: Path,
    description: Mapping[str, Any],
    is_whole: bool = True,
    hint: str = "",
    besides: tuple[str, ...] = (),
) -> None:
    """Checks that the folder's run has this description.

    Args:
        folder: the run's folder.
        description: as made by ``simulation.runs.description``.
        is_whole: whether the description is complete; otherwise only its parts are compared.
        hint: advice besides using a new folder.
        besides: prefixes of names that may differ.

    Raises:
        UserError: the folder belongs to another run.
    """
    path, here = folder / _FILE, json.loads(json.dumps(description))
    if not path.exists():
        warnings.warn(f"{path}: is missing, so it is not checked whether this run is the folder's", stacklevel=2)
    try:
        there = dict(json.loads(files.read(path))) if path.exists() else here
    except (OSError, ValueError, TypeError) as error:
        hint = "restore it, remove it if you know that the run is the same, or use a new folder"
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); {hint}") from error
    here = flatten({name: here[name] for name in here if name in there or name not in _NEW})
    there = flatten(there if is_whole else {name: there[name] for name in there if name in description})
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    usual = tuple(_usual(description))  # options that the folder's version did not know yet and the run does not use
    names = [name for name in names if name in there or not f"{name}.".startswith(usual)]
    names = [name for name in names if not name.startswith(besides) and name != NAME]
    if names:
        changes = [_change(name, there.get(name, "absent"), here.get(name, "absent")) for name in names[:_SHOWN]]
        more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UserError(f"{folder} holds another run: {'; '.join(changes)}{more}; {hint}use a new folder")


def _change(name, there, here):
    if name.startswith("code."):
        there, here = there[:12], here[:12]
        return f"the source of {name.removeprefix('code.')} has changed, its SHA-256 is {there} there, {here} here"
    return f"{name} is {there} there, {here} here"


def _usual(tree, prefix=""):
    """Yields the dotted names of all fields that have their default, each followed by a dot."""
    for key, item in tree.items() if isinstance(tree, Mapping) else ():
        if isinstance(tree, _Fields) and key in tree.usual:
            yield f"{prefix}{key}."
        else:
            yield from _usual(item, f"{prefix}{key}.")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns values by their dotted names; lists and empty mappings are values."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix.rstrip("."): tree}
    return {name: v for key, item in tree.items() for name, v in flatten(item, f"{prefix}{key}.").items()}
