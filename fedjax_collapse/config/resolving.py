"""Resolves the cells of a study, each to a value for every key of the config, and checks them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_collapse.config.cells import OF_STUDY, CellName, arms_of, merged, settings_of
from fedjax_collapse.config.folder import RESERVED, RESERVED_FILES
from fedjax_collapse.config.keys import entries, fields_of, keys
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.names import check_key, check_name
from fedjax_collapse.schema.options import check_value, listed
from fedjax_collapse.schema.user_code import naming

_LONGEST_NAME = 200  # bytes of a folder's name; most file systems allow 255
_CLOSED = ("server", "engine")  # sections without options of something chosen by name


class Cell(NamedTuple):
    """An arm in a setting, and the common values of its runs."""

    setting: str  # empty if the study has none
    arm: str
    values: Mapping[str, Any]  # of every key of the config, except for those that define the cells

    @property
    def name(self) -> str:
        return str(CellName(self.setting, self.arm))

    def __str__(self) -> str:
        return _described(self.setting, self.arm)


def resolve_arm(config: Mapping[str, Any], arm: str | None, setting: str = "") -> dict[str, Any]:
    """Returns the values of one arm in a setting.

    The arm's changes override the setting's changes, which override the config. Changes for the arm in the setting's
    own ``arms`` override all of them.

    Args:
        config: the config as declared.
        arm: None for the common values of all arms of the setting.
        setting: empty without settings.

    Raises:
        UserError: the arm, the setting, or a key that it changes does not exist, or the key must be equal in all cells.
    """
    arms, settings = arms_of(config), settings_of(config)
    check_name("setting", setting, settings)
    of_setting, of_arms = _divided(f"settings.{setting}", settings[setting], config["arms"])
    values = {key: value for key, value in config.items() if key not in OF_STUDY}
    values = _changed(values, f"settings.{setting}", of_setting, ("seeds",))
    if arm is not None:
        check_name("arm", arm, arms)
        fixed, declared = ("rounds", "seeds"), arms[arm].declared
        values = _changed(values, f"arms.{arm}", arms[arm].changes, fixed)
        values = _changed(values, f"settings.{setting}.arms.{declared}", of_arms.get(declared, {}), fixed)
    with naming(_described(setting, arm)):
        check_keys(values)
    return values


def _described(setting, arm):
    """Returns the name of the cell for a message."""
    return ", ".join(f"{what} {name}" for what, name in (("setting", setting), ("arm", arm)) if name)


def _divided(path, changes, declared):
    """Returns the changes of a setting for all arms, and its changes for single arms."""
    check_value(path, changes, dict)
    of_arms = changes.get("arms", {})
    check_value(f"{path}.arms", of_arms, dict)
    for arm in of_arms:
        check_name(f"arm in {path}.arms", arm, declared)
    return {key: value for key, value in changes.items() if key != "arms"}, of_arms


def _changed(values, path, changes, fixed):
    """Returns the changed values; keys that are ``fixed`` must not change."""
    check_value(path, changes, dict)
    for key in changes:
        check_key(f"key in {path}", key, [*values, *OF_STUDY], keys())
        if key in (*fixed, *OF_STUDY):
            what = path.split(".")[0]
            raise UserError(f"{path}.{key}: all {what} of a study have the same {key}; set config.{key}")
    return merged(values, changes)


def check_study(config: Mapping[str, Any]) -> None:
    """Raises UserError if settings, arms or seeds are invalid or cannot name folders; see also ``check_keys``."""
    check_keys(config)
    for key in OF_STUDY:
        if key not in config:
            raise UserError(f"the config has no {key}: start from base.get_config()")
    _check_declared("arm", str, config["arms"])
    _check_declared("seed", int, config["seeds"])
    for seed in config["seeds"]:
        if not 0 <= seed < 2**32:
            raise UserError(f"seed {seed}: expected an integer from 0 to {2**32 - 1}")
    if config["settings"]:
        _check_declared("setting", str, config["settings"])
    _check_means(config)
    for what, names in (("arm", arms_of(config)), ("setting", config["settings"])):
        for name in names:
            check_folder_name(what, name)


def check_folder_name(what, name):
    """Raises UserError if a folder of runs cannot have this name."""
    size = len(name.encode(errors="replace"))
    if not name.isprintable() or name != name.strip() or set(name) & set("/\\") or name in ("", ".", ".."):
        problem = "expected printable characters, without / and \\ and without spaces at its ends"
    elif size > _LONGEST_NAME:
        problem = f"it has {size} bytes, expected at most {_LONGEST_NAME}"
    elif name.casefold() in RESERVED or name.casefold().startswith(RESERVED_FILES):
        problem = "the study's folder has a file or folder of that name, choose another one"
    else:
        return
    shown = repr(name) if len(name) <= _LONGEST_NAME else f"{name[:40]!r}..."
    raise UserError(f"{what} {shown}: its runs are in a folder of that name; {problem}")


def _check_means(config):
    for name, settings in config["means"].items():
        check_value(f"means.{name}", settings, tuple)
        if name in config["settings"] or not settings:
            raise UserError(f"means.{name}: expected at least one setting, and a name that no setting has")
        for setting in settings:
            check_name(f"setting in means.{name}", setting, config["settings"])


def _check_declared(what, kind, declared):
    declared = tuple(declared)
    if not declared:
        raise UserError(f"the config declares no {what}s; expected at least one in config.{what}s")
    if not all(isinstance(item, kind) and not isinstance(item, bool) for item in declared):
        raise UserError(f"config.{what}s {declared}: expected a tuple of {kind.__name__}")
    if len(set(declared)) < len(declared):
        raise UserError(f"config.{what}s {declared}: each is one run, expected no {what} twice")


def check_keys(config: Mapping[str, Any]) -> None:
    """Raises UserError for a key that a config does not have, a missing key, or a value of another kind."""
    tops = dict.fromkeys(path.partition(".")[0] for path in keys())
    for key in config:
        check_key("config key", key, tops, keys())
    for key in tops:
        if key in config:
            check_value(f"config.{key}", config[key], keys()[key].kind if key in keys() else dict)
        elif key not in OF_STUDY:
            raise UserError(f"the config has no {key}: start from base.get_config()")
    for section in _CLOSED:
        for key in config[section]:
            check_key(f"config key of {section}", key, fields_of(section), keys())
    for key in fields_of("engine"):
        if key not in config["engine"]:
            raise UserError(f"config.engine has no {key}: change some of its values by config.engine.update(...)")
    for key, value in entries(config):
        if "." in key.path:
            choices = listed(key.kind)
            if isinstance(value, str) and type(choices) is tuple:
                check_name(key.path, value, choices)
            check_value(key.path, value, key.kind)
