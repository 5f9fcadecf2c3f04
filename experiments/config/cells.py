"""The cells of a study, every setting with every arm, and what the config says of them.

A cell is named ``<setting>/<arm>``, as its folder is; where the config has no settings, its name is the arm's. A sweep
makes an arm of every value. Configs are mappings here: as a file declares them, or as ``config.json`` holds them.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_collapse.core.records import UserError

OF_STUDY = ("arms", "settings", "sweep", "means", "paper")  # keys that say which cells there are, and not what one is
_CHOICES = ("name", "source")  # by which a part of the config chooses what its other keys are arguments of


class CellName(NamedTuple):
    """What a cell is called: its setting, empty where the study has none, and its arm; among several studies also the
    study."""

    setting: str
    arm: str
    study: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.study, self.setting, self.arm)))


class Arm(NamedTuple):
    """What an arm changes, and if it is of a sweep: of which arm of the config, and its values by the axes' names."""

    changes: Any
    declared: str
    values: dict[str, Any]


def names_in(text: str, declared: Collection[str]) -> tuple[str, ...]:
    """The names in a text with commas between them; a declared name may have commas itself."""
    found, parts = [], text.split(",")
    while parts:
        joined = {count: ",".join(parts[:count]).strip() for count in range(len(parts), 0, -1)}
        count = next((count for count, name in joined.items() if name in declared), 1)
        found, parts = [*found, joined[count]], parts[count:]
    return tuple(found)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What each setting changes, in the order of the config; one without a name that changes nothing if it has none."""
    return dict(config.get("settings") or {"": {}})


def means_of(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """The settings of which a study also shows the mean, by the name of the mean."""
    return {name: list(settings) for name, settings in (config.get("means") or {}).items()}


def arms_of(config: Mapping[str, Any]) -> dict[str, Arm]:
    """The arms in the order of the config; one that has a key of the sweep is there for each of its values.

    Raises:
        UserError: no arm has a key of the sweep, there are no values, or two that are written alike.
    """
    declared, sweep = config.get("arms") or {}, config.get("sweep") or {}
    arms = {arm: Arm(_at(declared, arm), arm, {}) for arm in declared}
    labels = axis_names(sweep)
    for key, values in sweep.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UserError(f"sweep.{key}: {values!r}, expected a tuple of values")
        over = [name for name, arm in arms.items() if _has(config, arm.changes, key)]
        if not over:
            raise UserError(f"sweep.{key}: no arm has that key; set it in the arms that it is swept over")
        swept = [s for name, arm in arms.items() for s in _sweep(name, arm, key, labels[key], values, name in over)]
        arms = dict(swept)
        if len(arms) < len(swept):
            raise UserError(f"sweep.{key}: {tuple(values)}, expected no value twice")
    return arms


def cells_of(config: Mapping[str, Any]) -> list[CellName]:
    """The names of all cells, one setting after the other."""
    return list(itertools.starmap(CellName, itertools.product(settings_of(config), arms_of(config))))


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these changes; a part that chooses something else loses its arguments."""
    result = dict(config)
    for key, value in changes.items():
        there = result.get(key)
        is_same = isinstance(value, Mapping) and isinstance(there, Mapping)
        is_same = is_same and all(value.get(choice, there.get(choice)) == there.get(choice) for choice in _CHOICES)
        result[key] = merged(there, value) if is_same else value
    return result


def axis_names(sweep: Mapping[str, Any]) -> dict[str, str]:
    """For each key of a sweep as much of its end as tells it from the others: ``strength``, of a single one."""
    paths = {key: key.split(".") for key in sweep}
    for length in range(1, max(map(len, paths.values()), default=0) + 1):
        names = {key: ".".join(path[-length:]) for key, path in paths.items()}
        if len(set(names.values())) == len(names):
            return names
    return {}


def _sweep(name, arm, key, axis, values, is_over):
    """The arm for each of the values, by name; itself if the axis is not its."""
    if not is_over:
        return [(name, arm)]
    return [(f"{name} {axis}={_written(value)}", _changed(arm, key, axis, value)) for value in values]


def _changed(arm, key, axis, value):
    changes = value
    for part in reversed(key.split(".")):
        changes = {part: changes}
    return arm._replace(changes=merged(arm.changes, changes), values={**arm.values, axis: value})


def _written(value):
    """The value in the name of an arm."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(_written, value))
    return str(value)


def _has(config, changes, key):
    """Whether the arm's config has that key."""
    if not isinstance(changes, Mapping):
        return False
    found = merged(config, changes)
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return True


def _at(declared, arm):
    """What the arm changes; nothing is known of it where arms are a list of names, as in a config that is not ours."""
    return declared[arm] if isinstance(declared, Mapping) else {}
