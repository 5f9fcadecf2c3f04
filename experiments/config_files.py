"""Where a config file is: where the command line says, or among those that come with the project."""

from collections.abc import Sequence
from pathlib import Path

from experiments.configs import base
from fedjax_collapse.records import UserError

CONFIGS = Path(base.__file__).resolve().parent
_BESIDE = CONFIGS.parents[1]  # of which their paths are told


def config_argument(arguments: Sequence[str]) -> str:
    """What follows ``--config``: a file, and perhaps a colon with an argument of its own; empty if nothing does."""
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument in ("--config", "-config"):
            return following
        if argument.startswith(("--config=", "-config=")):
            return argument.split("=", 1)[1]
    return ""


def with_config_found(arguments: Sequence[str]) -> list[str]:
    """The arguments with a config file that exists: as it was given, or one of the project's by its path or name.

    Raises:
        UserError: there is none.
    """
    given = config_argument(arguments)
    name, colon, behind = given.partition(":")
    places = [Path(name), _BESIDE / name, CONFIGS / name, CONFIGS / f"{name}.py"]
    found = next((place for place in places if place.is_file()), None)
    if not given or found is None:
        problem = f"--config={given}: there is no such file" if given else "--config is missing"
        raise UserError(f"{problem}; available: {', '.join(map(relative, config_files()))}")
    options = given, f"--config={given}", f"-config={given}"
    return [a.replace(given, f"{found}{colon}{behind}") if a in options else a for a in arguments]


def config_files() -> list[Path]:
    """All configs that come with the project."""
    return sorted(path for path in CONFIGS.rglob("*.py") if path.stem not in ("base", "__init__"))


def relative(path: Path) -> str:
    """The path of one of them, such as ``experiments/configs/quickstart.py``."""
    return str(path.relative_to(_BESIDE))
