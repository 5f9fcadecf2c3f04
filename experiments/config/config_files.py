"""Where a config file is: where the command line says, or among those that come with the project."""

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.configs import base
from fedjax_collapse.core.records import UserError

CONFIGS = Path(base.__file__).resolve().parent
_MOST = 3  # names that an error suggests
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
        raise UserError(f"{problem}; {_available(name)}")
    options = given, f"--config={given}", f"-config={given}"
    return [a.replace(given, f"{found}{colon}{behind}") if a in options else a for a in arguments]


def _available(name):
    """The configs of that folder; else those whose names are nearest, if any is near, and where all are."""
    by_name = {str(path.relative_to(CONFIGS).with_suffix("")): path for path in config_files()}
    asked = name.removesuffix(".py").removeprefix("experiments/configs/")
    if inside := [Path(short).name for short in by_name if asked and str(Path(short).parent) == asked.rstrip("/")]:
        return f"in {asked.rstrip('/')}/ there are {', '.join(inside)}"
    alike = [short for short in by_name if asked and Path(short).name == Path(asked).name]
    nearest = [*alike, *difflib.get_close_matches(asked, by_name, n=_MOST)]
    guess = f"did you mean {' or '.join(list(dict.fromkeys(nearest))[:_MOST])}? " if nearest else ""
    counts = Counter(str(Path(short).parent) for short in by_name)
    own = [short for short in by_name if "/" not in short]
    folders = [f"{folder}/ ({count})" for folder, count in counts.items() if folder != "."]
    return f"{guess}available: {', '.join(own + folders)}; launch.py --help lists all"


def config_files() -> list[Path]:
    """All configs that come with the project."""
    return sorted(path for path in CONFIGS.rglob("*.py") if path.stem not in ("base", "__init__"))


def relative(path: Path) -> str:
    """The path of one of them, such as ``experiments/configs/quickstart.py``."""
    return str(path.relative_to(_BESIDE))
