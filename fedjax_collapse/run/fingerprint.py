"""A description of a run as JSON, stored in its folder so that no other run continues there."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import write_json

_FILE = "run.json"
NAME = "name"  # of a private run, which a moved folder keeps
_SHOWN = 3  # the number of differences in a message


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
    folder: Path, description: Mapping[str, Any], is_whole: bool = True, hint: str = "", besides: tuple[str, ...] = ()
) -> None:
    """Checks that the folder's run has this description.

    Args:
        folder: the run's folder.
        description: as made by ``simulation.runs.description``.
        is_whole: whether the description is complete; otherwise only its parts are compared, and of code the modules
            that both have.
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
    here = flatten(here)
    there = flatten(there if is_whole else {name: there[name] for name in there if name in description})
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    names = [name for name in names if not name.startswith(besides) and name != NAME]
    if not is_whole:
        names = [name for name in names if not name.startswith("code.") or (name in here and name in there)]
    if names:
        changes = [_change(name, there.get(name, "absent"), here.get(name, "absent")) for name in names[:_SHOWN]]
        more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UserError(f"{folder} holds another run: {'; '.join(changes)}{more}; {hint}use a new folder")


def _change(name, there, here):
    if name.startswith("code."):
        there, here = there[:12], here[:12]
        return f"the source of {name.removeprefix('code.')} has changed, its SHA-256 is {there} there, {here} here"
    return f"{name} is {there} there, {here} here"


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns values by their dotted names; lists and empty mappings are values."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix.rstrip("."): tree}
    return {name: v for key, item in tree.items() for name, v in flatten(item, f"{prefix}{key}.").items()}
