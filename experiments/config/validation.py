"""Checks the keys and values of a config, and its arms, settings and seeds."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any

from experiments.config.cells import OF_STUDY, arms_of
from experiments.config.names import check_key, check_name
from experiments.config.paper import check_paper
from experiments.config.plain_values import plain
from experiments.configs import base
from experiments.folder import RESERVED, RESERVED_FILES
from fedjax_collapse import FedAvg, Participation, engine
from fedjax_collapse.core.records import UserError
from fedjax_collapse.run.simulation import Schedule
from fedjax_collapse.schema.options import Count, Decay, Natural, check_value, hints

# annotations of keys that are not options of something else; other keys have the type of their default
_KINDS = {
    **hints(Schedule),
    "participation": hints(Participation)["fraction"],
    "watch": str,
    "measurements": dict,
    "own_tests": dict,
    "finetuning": dict,
    "privacy": dict,
    "clients": Count,
    "data.folder": str,
    "data.validation_fraction": Decay,
}
_LONGEST_NAME = 200  # bytes of a folder's name; most file systems allow 255
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


def check_study(config: Mapping[str, Any]) -> None:
    """Raises UserError if settings, arms or seeds are invalid or cannot be folders, or as ``check_keys`` does."""
    check_keys(config)
    for key in OF_STUDY:
        if key not in config:
            raise UserError(f"the config has no {key}: start from experiments.configs.base.get_config()")
    _check_declared("arm", str, config["arms"])
    _check_declared("seed", int, config["seeds"])
    for seed in config["seeds"]:
        if not 0 <= seed < 2**32:
            raise UserError(f"seed {seed}: expected an integer from 0 to {2**32 - 1}")
    if config["settings"]:
        _check_declared("setting", str, config["settings"])
    _check_means(config)
    arms = arms_of(config)
    for what, names in (("arm", arms), ("setting", config["settings"])):
        for name in names:
            _check_folder_name(what, name)
    check_paper(config, arms)


def _check_folder_name(what, name):
    """Raises UserError if the name cannot be that of a folder of runs."""
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
    """Raises UserError for a key that ``configs/base.py`` does not have, a missing key, or a value of another kind."""
    defaults = _defaults()
    for key in config:
        check_key("config key", key, defaults)
    for key, default in defaults.items():
        if key not in config and key not in OF_STUDY:
            raise UserError(f"the config has no {key}: start from experiments.configs.base.get_config()")
        check_value(f"config.{key}", config.get(key, {}), kind_of_key(key, default))
    for section, kinds in _SECTIONS.items():
        for key, value in config[section].items():
            check_key(f"config key of {section}", key, kinds)
            choices = next(iter(getattr(kinds[key], "__metadata__", ())), None)
            if isinstance(value, str) and isinstance(choices, tuple):
                check_name(f"{section}.{key}", value, choices)
            check_value(f"{section}.{key}", value, kinds[key])
    for key in _SECTIONS["engine"]:
        if key not in config["engine"]:
            raise UserError(f"config.engine has no {key}: change some of its values by config.engine.update(...)")


def kind_of_key(path: str, default: Any) -> Any:
    """Returns the annotation of a key of ``configs/base.py``, dotted if it is in a section."""
    section, _, name = path.partition(".")
    if name in _SECTIONS.get(section, {}):
        return _SECTIONS[section][name]
    return _KINDS.get(path, Any if default is None else type(default))


@functools.cache
def _defaults():
    return plain(base.get_config())
