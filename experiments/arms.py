"""The config of one arm of a study, and whether its keys exist."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from experiments.configs import base
from experiments.names import check_name
from fedjax_collapse import Participation, engine
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
_ENGINE_KINDS = {"clients_at_once": Natural, "devices": Natural}
_ENGINE_CHOICES = {
    "layout": ("auto", "timed", "chunked", "vectorized", "sharded", "loop"),
    "runs": ("auto", "together", "separate"),
    "storage": engine.STORAGES,
}


def resolve_arm(config: ConfigDict, arm: str) -> ConfigDict:
    """The config of one arm: what it declares, over the rest of the config.

    Raises:
        UserError: the arm, or a key that it declares, does not exist, or must be the same for all arms.
    """
    check_name("arm", arm, config.arms)
    resolved = as_declared(config)
    changes = resolved.pop("arms")[arm]
    check_value(f"arms.{arm}", changes, dict)
    for key in ("rounds", "seeds"):
        if key in changes:
            raise UserError(f"arms.{arm}.{key}: all arms of a study have the same {key}; set config.{key}")
    _override(resolved, changes, f"arms.{arm}")
    try:
        check_keys(resolved)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error
    return ConfigDict(resolved)


def check_study(config: ConfigDict) -> None:
    """Raises UserError if arms or seeds cannot be those of a study: folders of their own; or as ``check_keys``."""
    check_keys(config)
    if "arms" not in config:
        raise UserError("the config has no arms: start from experiments.configs.base.get_config()")
    for what, kind, declared in (("arm", str, tuple(as_declared(config.arms))), ("seed", int, tuple(config.seeds))):
        if not declared:
            raise UserError(f"the config declares no {what}s; expected at least one in config.{what}s")
        if not all(isinstance(item, kind) and not isinstance(item, bool) for item in declared):
            raise UserError(f"config.{what}s {declared}: expected a tuple of {kind.__name__}")
        if len(set(declared)) < len(declared):
            raise UserError(f"config.{what}s {declared}: each is one run, expected no {what} twice")
    for seed in config.seeds:
        if not 0 <= seed < 2**32:
            raise UserError(f"seed {seed}: expected an integer from 0 to {2**32 - 1}")
    for arm in config.arms:
        if arm in ("", ".", "..") or set(arm) & set("/\\\0"):
            raise UserError(f"arm {arm!r}: its runs are in a folder of that name, expected one without / and \\")


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
        check_name("config key", key, defaults)
    for key, default in defaults.items():
        if key not in config and key != "arms":
            raise UserError(f"the config has no {key}: start from experiments.configs.base.get_config()")
        check_value(f"config.{key}", config.get(key, {}), kind_of_key(key, default))
    options = config["engine"]
    for key in options:
        check_name("config key of engine", key, defaults["engine"])
    for key in defaults["engine"]:
        if key not in options:
            raise UserError(f"config.engine has no {key}: change some of its values by config.engine.update(...)")
        check_value(f"engine.{key}", options[key], _ENGINE_KINDS.get(key, str))
    for key, choices in _ENGINE_CHOICES.items():
        check_name(f"engine.{key}", options[key], choices)


def kind_of_key(path: str, default: Any) -> Any:
    """The annotation of a key of ``configs/base.py``, dotted where it is in a section."""
    section, _, name = path.partition(".")
    if section == "engine" and name in _ENGINE_CHOICES:
        return Annotated[str, _ENGINE_CHOICES[name]]
    if section == "engine" and name:
        return _ENGINE_KINDS[name]
    return _KINDS.get(path, Any if default is None else type(default))


def _override(target, changes, path):
    for key, value in changes.items():
        check_name(f"key in {path}", key, target) if path.count(".") == 1 else None
        mergeable = isinstance(value, Mapping) and isinstance(target.get(key), Mapping)
        if mergeable and value.get("name", target[key].get("name")) == target[key].get("name"):
            _override(target[key], value, f"{path}.{key}")
        else:
            target[key] = value
