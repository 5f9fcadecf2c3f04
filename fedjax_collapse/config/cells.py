"""The cells of a study, every setting with every arm, and their parts of the config.

A cell is named ``<setting>/<arm>``, like its folder, or by its arm if the config has no settings. A sweep makes an arm
for every value. Configs are mappings here, as declared in a file or stored in ``config.json``.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_collapse.config.keys import Data
from fedjax_collapse.core.records import UserError

# keys that define the cells instead of their values
OF_STUDY = ("arms", "settings", "sweep", "means", "paper", "title")
_OF_DATA = ("data", "clients", "partition", "own_tests")  # sections with equal values in all arms of a setting
_CHOICES = ("name", "source")  # keys whose values decide the other keys of a section
OF_ALL_DATA = Data._fields[1:]  # keys of ``data`` that are not options of one source


class CellName(NamedTuple):
    """The setting of a cell, empty if the study has none, and its arm.

    ``study`` names its study, if there are several.
    """

    setting: str
    arm: str
    study: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.study, self.setting, self.arm)))


class RunName(NamedTuple):
    """The name of a run in messages and dicts: its cell and its seed."""

    cell: str
    seed: int

    def __str__(self) -> str:
        return f"{self.cell} seed {self.seed}"


class Arm(NamedTuple):
    """The changes of an arm. In a sweep also its arm in the config, and its values by axis."""

    changes: Any
    declared: str
    values: dict[str, Any]


def names_in(text: str, declared: Collection[str]) -> tuple[str, ...]:
    """Splits a text at commas into names; declared names may contain commas."""
    found, parts = [], text.split(",")
    while parts:
        joined = {count: ",".join(parts[:count]).strip() for count in range(len(parts), 0, -1)}
        count = next((count for count, name in joined.items() if name in declared), 1)
        found, parts = [*found, joined[count]], parts[count:]
    return tuple(found)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes of each setting, in the order of the config; without settings, one unnamed entry."""
    return dict(config.get("settings") or {"": {}})


def means_of(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the settings over which a study also shows a mean, by the name of the mean."""
    return {name: list(settings) for name, settings in (config.get("means") or {}).items()}


def arms_of(config: Mapping[str, Any]) -> dict[str, Arm]:
    """Returns the arms in the order of the config. An arm that has a key of the sweep is repeated for each value.

    Raises:
        UserError: no arm has a key of the sweep, the key has no values, or two values are written alike.
    """
    declared, sweep = config.get("arms") or {}, config.get("sweep") or {}
    arms = {arm: Arm(_at(declared, arm), arm, {}) for arm in declared}
    labels = axis_names(sweep)
    for key, values in sweep.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            hint = "; a key with dots is in quotes" if isinstance(values, Mapping) else ""
            raise UserError(f"sweep.{key}: {values!r}, expected a tuple of values{hint}")
        over = [name for name, arm in arms.items() if _has(config, arm.changes, key)]
        if not over:
            raise UserError(f"sweep.{key}: no arm has that key; set it in the arms that it is swept over")
        swept = [s for name, arm in arms.items() for s in _sweep(name, arm, key, labels[key], values, name in over)]
        arms = dict(swept)
        if len(arms) < len(swept):
            raise UserError(f"sweep.{key}: {tuple(values)}, expected no value twice")
    return arms


def cells_of(config: Mapping[str, Any]) -> list[CellName]:
    """Returns the names of all cells, one setting after the other."""
    return list(itertools.starmap(CellName, itertools.product(settings_of(config), arms_of(config))))


def shown_cells(config: Mapping[str, Any]) -> dict[CellName, tuple[CellName, Arm]]:
    """Returns the setting and arm that tables and figures show for each cell, with the arm's changes and swept values.

    There, swept values that change data or partition belong to the setting, so that its arms have equal data.
    """
    arms, axes = arms_of(config), _axes_of_data(config)
    found = {}
    for cell in cells_of(config):
        arm = arms[cell.arm]
        of_data = [f"{axis}={_written(value)}" for axis, value in arm.values.items() if axis in axes]
        others = [f"{axis}={_written(value)}" for axis, value in arm.values.items() if axis not in axes]
        name = " ".join([arm.declared, *others]) if of_data else cell.arm
        found[cell] = CellName(" ".join(filter(None, (cell.setting, *of_data))), name), arm
    order = {setting: i for i, setting in enumerate(dict.fromkeys(shown.setting for shown, _ in found.values()))}
    return dict(sorted(found.items(), key=lambda item: order[item[1][0].setting]))


def config_of(config: Mapping[str, Any], setting: str) -> Mapping[str, Any]:
    """Returns the config of a setting as ``shown_cells`` names them, without the keys that define settings."""
    found = next((item for item in shown_cells(config).items() if item[1][0].setting == setting), None)
    if found is None:
        return config
    own, (_, arm) = found
    part = merged(config, settings_of(config)[own.setting])
    axes = _axes_of_data(config)
    for axis, key in axes.items():
        if axis in arm.values:
            part = merged(part, _nested(key, arm.values[axis]))
    sweep = {key: values for key, values in (part.get("sweep") or {}).items() if key not in axes.values()}
    return {name: value for name, value in part.items() if name not in OF_STUDY} | {
        "arms": part.get("arms", {}),
        "sweep": sweep,
    }


def _axes_of_data(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the keys of a sweep that change data or partition, by axis.

    There are none if a paper's numbers are by arm.
    """
    if config.get("paper") and not config.get("settings"):
        return {}
    names = axis_names(config.get("sweep") or {})
    return {axis: key for key, axis in names.items() if key.partition(".")[0] in _OF_DATA}


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with these changes. A section that chooses another name loses its old options."""
    result = dict(config)
    for key, value in changes.items():
        there = result.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            is_same = all(value.get(choice, there.get(choice)) == there.get(choice) for choice in _CHOICES)
            kept = OF_ALL_DATA if key == "data" else ()
            value = merged(there if is_same else {name: there[name] for name in kept if name in there}, value)
        result[key] = value
    return result


def axis_names(sweep: Mapping[str, Any]) -> dict[str, str]:
    """Returns, for each key of a sweep, the shortest ends of the keys that differ, such as ``strength``."""
    paths = {key: key.split(".") for key in sweep}
    for length in range(1, max(map(len, paths.values()), default=0) + 1):
        names = {key: ".".join(path[-length:]) for key, path in paths.items()}
        if len(set(names.values())) == len(names):
            return names
    return {}


def _sweep(name, arm, key, axis, values, is_over):
    """Returns the arm for each of the values, by name; the arm itself if it does not have the axis."""
    if not is_over:
        return [(name, arm)]
    return [(f"{name} {axis}={_written(value)}", _changed(arm, key, axis, value)) for value in values]


def _changed(arm, key, axis, value):
    return arm._replace(changes=merged(arm.changes, _nested(key, value)), values={**arm.values, axis: value})


def _nested(key, value):
    """Returns the changes that give a dotted key this value."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _written(value):
    """Returns the value as it is written in the name of an arm."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(_written, value))
    return str(value)


def _has(config, changes, key):
    """Returns whether the arm's config has that key."""
    if not isinstance(changes, Mapping):
        return False
    found = merged(config, changes)
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return True


def _at(declared, arm):
    """Returns the arm's changes; none if arms are a list of names."""
    return declared[arm] if isinstance(declared, Mapping) else {}
