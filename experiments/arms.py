"""The config of one arm of a study, in one of its settings, and whether its keys exist."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from experiments.cells import OF_STUDY, arms_of, cell_name, merged, setting_and_arm, settings_of
from experiments.configs import base
from experiments.folder import RESERVED, RESERVED_FILES
from experiments.names import check_key, check_name
from experiments.paper import check_paper
from fedjax_collapse import FedAvg, Participation, engine
from fedjax_collapse.options import Count, Natural, check_value, hints
from fedjax_collapse.records import UserError
from fedjax_collapse.simulation import Schedule

# of keys that are no options of something else; where nothing is said, that of the default
_KINDS = {
    **hints(Schedule),
    "participation": hints(Participation)["fraction"],
    "watch": str,
    "measurements": dict,
    "clients": Count,
}
_LONGEST_NAME = 200  # bytes of a folder's name; most file systems take 255
_SECTIONS = {
    "engine": {
        "layout": Annotated[str, ("auto", "timed", "chunked", "vectorized", "sharded", "loop")],
        "clients_at_once": Natural,
        "devices": Natural,
        "runs": Annotated[str, ("auto", "together", "separate")],
        "storage": Annotated[str, engine.STORAGES],
    },
    "server": {
        "optimizer": dict,
        "optimized": hints(FedAvg)["optimized"],
        "weighting": hints(FedAvg)["weighting"],
        "batch_norm": Annotated[str, ("average", "local", "recalibrate")],
    },
}


def resolve_arm(config: ConfigDict, arm: str | None, setting: str = "") -> ConfigDict:
    """The config of one arm in a setting: what the arm declares, over what the setting does, over the rest.

    Over all of them is what the setting says of that arm in its own ``arms``. ``arm`` None: what all arms of the
    setting have in common.

    Raises:
        UserError: the arm or the setting, or a key that it declares, does not exist, or must be the same for all.
    """
    study = as_declared(config)
    arms, settings = arms_of(study), settings_of(study)
    check_name("setting", setting, settings)
    of_setting, of_arms = _divided(f"settings.{setting}", settings[setting], study["arms"])
    resolved = {key: value for key, value in study.items() if key not in OF_STUDY}
    resolved = _changed(resolved, f"settings.{setting}", of_setting, ("seeds",))
    if arm is not None:
        check_name("arm", arm, arms)
        fixed, declared = ("rounds", "seeds"), arms[arm].declared
        resolved = _changed(resolved, f"arms.{arm}", arms[arm].changes, fixed)
        resolved = _changed(resolved, f"settings.{setting}.arms.{declared}", of_arms.get(declared, {}), fixed)
    try:
        check_keys(resolved)
    except UserError as error:
        raise UserError(f"{described(cell_name(setting, arm or ''))}: {error}") from error
    return ConfigDict(resolved)


def _divided(path, changes, declared):
    """What a setting changes for all arms, and for some of them."""
    check_value(path, changes, dict)
    of_arms = changes.get("arms", {})
    check_value(f"{path}.arms", of_arms, dict)
    for arm in of_arms:
        check_name(f"arm in {path}.arms", arm, declared)
    return {key: value for key, value in changes.items() if key != "arms"}, of_arms


def resolve_cell(config: ConfigDict, cell: str) -> ConfigDict:
    """``resolve_arm`` of the arm and the setting of a cell."""
    setting, arm = setting_and_arm(cell)
    return resolve_arm(config, arm, setting)


def described(cell: str) -> str:
    """The cell in an error."""
    setting, arm = setting_and_arm(cell)
    return ", ".join(f"{what} {name}" for what, name in (("setting", setting), ("arm", arm)) if name)


def _changed(config, path, changes, fixed):
    """The config with the changes, which have none of the keys that are fixed for all."""
    check_value(path, changes, dict)
    for key in changes:
        check_key(f"key in {path}", key, [*config, *OF_STUDY])
        if key in (*fixed, *OF_STUDY):
            what = path.split(".")[0]
            raise UserError(f"{path}.{key}: all {what} of a study have the same {key}; set config.{key}")
    return merged(config, changes)


def check_study(config: ConfigDict) -> None:
    """Raises UserError if settings, arms or seeds cannot be those of a study: folders of their own; or as
    ``check_keys``."""
    check_keys(config)
    for key in OF_STUDY:
        if key not in config:
            raise UserError(f"the config has no {key}: start from experiments.configs.base.get_config()")
    study = as_declared(config)
    _check_declared("arm", str, study["arms"])
    _check_declared("seed", int, study["seeds"])
    for seed in config.seeds:
        if not 0 <= seed < 2**32:
            raise UserError(f"seed {seed}: expected an integer from 0 to {2**32 - 1}")
    if study["settings"]:
        _check_declared("setting", str, study["settings"])
    _check_means(study)
    arms = arms_of(study)
    for what, names in (("arm", arms), ("setting", study["settings"])):
        for name in names:
            _check_folder_name(what, name)
    check_paper(study, arms)


def _check_folder_name(what, name):
    """Raises UserError if runs cannot be in a folder of that name."""
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


def _check_means(study):
    for name, settings in study["means"].items():
        check_value(f"means.{name}", settings, tuple)
        if name in study["settings"] or not settings:
            raise UserError(f"means.{name}: expected at least one setting, and a name that no setting has")
        for setting in settings:
            check_name(f"setting in means.{name}", setting, study["settings"])


def _check_declared(what, kind, declared):
    declared = tuple(declared)
    if not declared:
        raise UserError(f"the config declares no {what}s; expected at least one in config.{what}s")
    if not all(isinstance(item, kind) and not isinstance(item, bool) for item in declared):
        raise UserError(f"config.{what}s {declared}: expected a tuple of {kind.__name__}")
    if len(set(declared)) < len(declared):
        raise UserError(f"config.{what}s {declared}: each is one run, expected no {what} twice")


def as_declared(config: ConfigDict) -> dict:
    """The config as dicts, whose keys are in the order of its file: a ConfigDict iterates by the alphabet."""

    def order(values, declared):
        if not isinstance(values, Mapping):
            return values
        keys = {str(key): key for key in values}
        return {keys[name]: order(values[keys[name]], declared[name]) for name in declared}

    return order(config.to_dict(), json.loads(config.to_json_best_effort()))


def check_keys(config: Mapping) -> None:
    """Raises UserError for a key that ``configs/base.py`` does not know, one that is missing, or a value of another
    kind than it has there."""
    config = as_declared(config) if isinstance(config, ConfigDict) else config
    defaults = as_declared(base.get_config())
    for key in config:
        check_key("config key", key, defaults)
    for key, default in defaults.items():
        if key not in config and key not in OF_STUDY:
            raise UserError(f"the config has no {key}: start from experiments.configs.base.get_config()")
        check_value(f"config.{key}", config.get(key, {}), kind_of_key(key, default))
    for section, kinds in _SECTIONS.items():
        for key, value in config[section].items():
            check_name(f"config key of {section}", key, kinds)
            choices = next(iter(getattr(kinds[key], "__metadata__", ())), None)
            if isinstance(value, str) and isinstance(choices, tuple):
                check_name(f"{section}.{key}", value, choices)
            check_value(f"{section}.{key}", value, kinds[key])
    for key in _SECTIONS["engine"]:
        if key not in config["engine"]:
            raise UserError(f"config.engine has no {key}: change some of its values by config.engine.update(...)")


def kind_of_key(path: str, default: Any) -> Any:
    """The annotation of a key of ``configs/base.py``, dotted where it is in a section."""
    section, _, name = path.partition(".")
    if name in _SECTIONS.get(section, {}):
        return _SECTIONS[section][name]
    return _KINDS.get(path, Any if default is None else type(default))
