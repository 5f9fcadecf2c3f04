"""Finds config files, at the path on the command line or among those that come with the project, and executes them."""

import difflib
import importlib.util
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_collapse.config.base import StudyConfig, get_config
from fedjax_collapse.config.cells import merged
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_keys
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.user_code import explain, one_line

CONFIGS = Path(__file__).resolve().with_name("configs")
_MODULE = "config_config"  # the name of a config file as a module, whatever that of the file
_MOST = 3  # names that a message suggests
_ROOT = CONFIGS.parents[1]  # messages show paths relative to it
_FROM_BASE = ("--compare", "-compare", "--config.methods", "-config.methods")  # options that need no --config


def values_of(option: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yields every value of an option, which may be the argument after it, and may have one dash."""
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if name in (f"--{option}", f"-{option}"):
            yield value if equals else following


def split_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the value of ``--config``, with the path of an existing file, and the other arguments.

    The file may be given by its path, or by the name of one of the project's configs. With ``--compare`` or methods it
    is by default the base config.

    Raises:
        UserError: there is no such file, or several are given.
    """
    given, others, left = [], [], iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name in ("--config", "-config"):
            given.append(value if equals else next(left, ""))
        else:
            others.append(argument)
    if len(given) > 1:
        raise UserError(f"--config is given twice, as {given[0]} and {given[1]}: expected one")
    name, colon, argument = "".join(given).partition(":")
    if not any(given):
        if any(argument.startswith(_FROM_BASE) for argument in others):
            return str(CONFIGS / "base.py"), others
        raise UserError(f"--config is missing: expected --config=NAME or --compare=METHOD,METHOD; {_available('')}")
    return f"{find_config(f'--config={given[0]}', name)}{colon}{argument}", others


def load_config(argument: str) -> ConfigDict:
    """Returns the config of ``--config=argument``: executes the file, and calls its ``get_config``, or reads TOML.

    Raises:
        UserError: its code raises something, or returns something else, or the values in the TOML file are invalid.
    """
    path, *of_config = argument.split(":", 1)
    if path.endswith(".toml"):
        return _load_toml(path, *of_config)
    loader = SourceFileLoader(_MODULE, path)
    sys.modules[_MODULE] = module = importlib.util.module_from_spec(importlib.util.spec_from_loader(_MODULE, loader))
    try:
        loader.exec_module(module)
        config = module.get_config(*of_config)
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError):
            raise UserError(f"{':'.join([Path(path).name, *of_config])}: {error}") from error
        raise UserError(f"--config={argument}: {explain(error)}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{argument}: get_config returned a {type(config).__name__}, expected a ConfigDict")
    return config


def _load_toml(path, argument=""):
    """Returns the base config with the values of the file, whose tables change sections as those of an arm do."""
    if argument:
        raise UserError(f"{path}:{argument}: expected nothing after the name of a TOML file")
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        config = merged(plain(get_config()), plain(values))
        check_keys(config)
    except ValueError as error:  # also of bytes that are not UTF-8
        raise UserError(f"{path}: {one_line(error)}") from error
    return StudyConfig(config)


def find_config(what: str, name: str) -> Path:
    """Returns the path of a config file, given as a path, or as the name of one that comes with the project.

    Raises:
        UserError: there is no such file; the message starts with ``what``.
    """
    for place in (Path(name), _ROOT / name, CONFIGS / name, CONFIGS / f"{name}.py"):
        if place.is_file():
            own = Path(f"{name}.py")
            if place != Path(name) and own.is_file() and not own.samefile(place):
                warnings.warn(f"{what} is {relative(place)}, not your file --config={own}", stacklevel=2)
            return place
    raise UserError(f"{what}: no such file; {_available(name)}")


def _available(name):
    """Lists the configs of that folder; otherwise the nearest names, if any are similar, and all folders."""
    by_name = {str(path.relative_to(CONFIGS).with_suffix("")): path for path in config_files()}
    name = name.removesuffix(".py").removeprefix("experiments/configs/")
    if inside := [Path(short).name for short in by_name if name and str(Path(short).parent) == name.rstrip("/")]:
        return f"in {name.rstrip('/')}/ there are {', '.join(inside)}"
    alike = [short for short in by_name if name and Path(short).name == Path(name).name]
    nearest = [*alike, *difflib.get_close_matches(name, by_name, n=_MOST)]
    guess = f"did you mean {' or '.join(list(dict.fromkeys(nearest))[:_MOST])}? " if nearest else ""
    counts = Counter(str(Path(short).parent) for short in by_name)
    own = [short for short in by_name if "/" not in short]
    folders = [f"{folder}/ ({count})" for folder, count in counts.items() if folder != "."]
    return f"{guess}available: {', '.join(own + folders)}; launch.py --help lists all"


def config_files() -> list[Path]:
    """Returns all configs that come with the project."""
    return sorted(path for path in CONFIGS.rglob("*.py") if path.stem not in ("base", "__init__"))


def relative(path: Path) -> str:
    """Returns the path of one of them, such as ``experiments/configs/quickstart.py``."""
    return str(path.relative_to(_ROOT))
