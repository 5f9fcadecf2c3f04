"""The config with all defaults. A config file starts from it and changes values; other keys are errors.

``docs/configs.md`` lists the keys, which ``keys.py`` reads from records.
"""

import copy
import functools
from typing import Any, get_args

from ml_collections import ConfigDict, config_dict

from fedjax_collapse.config.keys import keys


def get_config(arg: str = "") -> ConfigDict:
    """Returns a config with the default of every key."""
    del arg
    values: dict[str, Any] = {}
    for key in keys().values():
        *sections, name = key.path.split(".")
        section = functools.reduce(lambda of, part: of.setdefault(part, {}), sections, values)
        section[name] = config_dict.placeholder(_type(key.kind)) if key.default is None else copy.copy(key.default)
    return StudyConfig(values)


def _type(kind):
    """Returns the first type of an annotation: int of ``Annotated[int, ...] | None``."""
    return _type(get_args(kind)[0]) if get_args(kind) else kind


class StudyConfig(ConfigDict):
    """A config in which names may have dots, such as the setting alpha 0.1 or the keys of a sweep."""

    def __init__(self, values: Any = None, type_safe: bool = True, convert_dict: bool = True) -> None:
        super().__init__(values, type_safe, convert_dict, allow_dotted_keys=True)

    def __setitem__(self, key: str, value: Any) -> None:
        is_dict = isinstance(value, dict)
        super().__setitem__(key, ConfigDict(value, allow_dotted_keys=True) if is_dict else value)
