"""The base of the configs of this folder: the library's config, and variants, named after the file and a colon."""

from collections.abc import Callable

from ml_collections import ConfigDict

from fedjax_collapse.config.base import StudyConfig as StudyConfig
from fedjax_collapse.config.base import get_config as get_config
from fedjax_collapse.core.records import UserError

Change = Callable[[ConfigDict, str], None]
GetConfig = Callable[..., ConfigDict]


def variants(*names: str, start: Callable[[], ConfigDict] = get_config) -> Callable[[Change], GetConfig]:
    """Returns a decorator that makes ``get_config(arg)`` of a function which changes the config that ``start`` returns.

    ``arg`` is one of the names, by default the first.

    Raises:
        UserError: by ``get_config``, if it is none of them.
    """

    def decorate(change):
        def get_config(arg: str = names[0]) -> ConfigDict:
            if arg not in names:
                *others, last = (name or "nothing" for name in names)
                raise UserError(f"expected {', '.join(others)} or {last} after the file name")
            config = start()
            change(config, arg)
            return config

        return get_config

    return decorate


def methods(**chosen: dict) -> dict:
    """Returns the changes of an arm with these methods, by name with their options."""
    return dict(methods=chosen)
