"""Parses the launcher's command line and the config file into plain values; ``ConfigDict`` is not used elsewhere."""

import hashlib
import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.config_files import CONFIGS, config_files, load_config, split_config, values_of
from experiments.parser import Parser, literal
from fedjax_collapse.config.build import ALIASES
from fedjax_collapse.config.cells import OF_STUDY
from fedjax_collapse.config.keys import keys
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.files import cache_folder
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.names import check_key, check_name
from fedjax_collapse.schema.options import Count, Natural, OpenChoice, check_value, hints, in_words, listed
from fedjax_collapse.schema.user_code import one_line
from fedjax_collapse.schema.values import described

RESUME = ("auto", "must", "never")  # what a start does with runs in its folder
_OTHERS = ("config", "worker")  # one is added here, the other set by the launcher itself
_NAMED = ("arms", "settings")  # sections of the config whose keys are names


class Options(NamedTuple):
    """The parsed command line; ``resolve`` makes a study from the config and the selected arms, settings and seeds.

    Args:
        config: the file, or the name of a config of the project; not needed with methods or compare.
        compare: Methods with their published defaults, each an arm, and FedAvg: in place of the config's arms.
        workdir: Folder of the study; default runs/<config>-<hash>.
        arm: Only these arms of the config.
        setting: Only these settings of the config.
        seed: Only these seeds of the config.
        log: Also send rows to tensorboard, wandb while the study runs.
        resume: must: only resume; never: start all again, and set earlier runs aside.
        estimate: Train two rounds of every arm, print the hours of the study, and stop; without it, continue.
        workers: Processes that divide the runs: one for each GPU, or parts of the cores.
        slurm: Workers as jobs, by default one for each run: partition=gpu,timeout_min=60,...; or local.
        worker: Take the runs that no other process has, one by one; set by --workers and --slurm.
        compilation_cache: Folder of compiled programs; empty for none.
        distributed: Several processes: off, auto, or host:port,processes,process.
        distributed_timeout: Seconds to wait for the other processes.
    """

    config: Mapping[str, Any]
    compare: tuple[str, ...] = ()
    workdir: str | None = None
    arm: str | None = None
    setting: str | None = None
    seed: tuple[int, ...] = ()
    log: tuple[str, ...] = ()
    resume: Annotated[str, RESUME] = "auto"
    estimate: bool = False
    workers: Natural = 0
    slurm: str = ""
    worker: bool = False
    compilation_cache: str = str(cache_folder("jax"))
    distributed: str = "off"
    distributed_timeout: Count = 300


def parse(arguments: list[str]) -> Options:
    """Parses the command line.

    Raises:
        UserError: it is invalid.
    """
    file, others = split_config(arguments)
    found = (f"-{given}" if given.startswith("-config.") else given for given in others)
    arguments = [_with_braces(_with_methods(argument)) for argument in found]
    find_own_modules(file)
    try:
        config = load_config(file)
        if compared := _methods(",".join(values_of("compare", arguments))):
            _compare(config, compared)
        new = _new_options(config, arguments)
        command = ["launch.py", *(argument for argument in arguments if argument not in new)]
        config_flags.DEFINE_config_dict("config", config, flag_values=(values := defined_flags()), sys_argv=command)
        _, *rest = values(command)  # which changes the config
        for path, value in new.values():
            _set_option(values.config, path, value)
        config = plain(values.config)
        for name in set(compared) & set(config.get("methods") or ()):
            option = f"--config.arms.{name}.methods.{name}.KEY=VALUE"
            raise UserError(f"--compare: all arms have {name}, as config.methods has it; its options are {option}")
        if config.get("arms") == {}:
            config["arms"] = {"_".join(config.get("methods") or ()) or "fedavg": {}}
    except UserError:
        raise
    except flags.UnrecognizedFlagError as error:
        check_key("option", error.flagname, Options._fields, [f"--config.{path}" for path in keys()])
        raise
    except Exception as error:
        raise UserError(one_line(error)) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}: options start with --, and --config.key=value has no spaces")
    try:
        seed = tuple(map(int, values.seed))
    except ValueError:
        raise UserError(f"--seed={','.join(values.seed)}: expected integers") from None
    options = Options(**{name: values[name].value for name in Options._fields} | dict(config=config, seed=seed))
    for name, hint in hints(Options).items():
        check_value(f"--{name}", getattr(options, name), hint)
    return options


def defined_flags() -> flags.FlagValues:
    """Returns the launcher's flags, but for ``--config``: the fields of ``Options``."""
    values, meanings, annotations = flags.FlagValues(), described(Options), hints(Options)
    define = {tuple: flags.DEFINE_list, int: flags.DEFINE_integer, bool: flags.DEFINE_boolean}
    for name, default in Options._field_defaults.items():
        if names := listed(annotations[name]):
            flags.DEFINE_enum(name, default, names, meanings[name], flag_values=values)
        else:
            define.get(type(default), flags.DEFINE_string)(name, default, meanings[name], flag_values=values)
    return values


def default_workdir(config: Mapping[str, Any], argument: str) -> Path:
    """Returns ``runs/<config file>-<hash of the config>`` in the current folder, which only equal configs share.

    Without a config file it is named after its arms, with at most 100 letters.
    """
    file = Path(argument.split(":")[0])
    name = "-".join(config["arms"])[:100] if file == CONFIGS / "base.py" else file.stem
    digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
    return Path("runs") / f"{name}-{digest[:8]}"


def find_own_modules(argument: str) -> None:
    """Makes a config's ``my_module:MyClass`` importable, from the config's folder first and the current folder last.

    The folders of the project's configs are left out, whose names your files may have.
    """
    config_folder = Path(argument.split(":")[0]).absolute().parent
    if not config_folder.is_relative_to(CONFIGS):
        sys.path[:] = [str(config_folder), *(folder for folder in sys.path if folder != str(config_folder))]
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def _new_options(config, arguments):
    """Returns path and value of every ``--config.a.b=value`` that the config lacks, by argument.

    Also returns fractions in place of integers, such as epochs, None in place of anything, and anything in place of
    None; whether they are valid is checked later, with all options. Only sections whose keys are options, such as
    ``partition`` or ``network``, may get new keys, which are checked when their objects are built.
    """
    dicts = {path.partition(".")[0] for path, key in keys().items() if "." in path or key.kind is dict}
    new, have_options = {}, dicts - {*OF_STUDY, "engine"}
    for argument in arguments:
        if argument.startswith("--config."):
            name, _, text = argument.removeprefix("--config.").partition("=")
            node, path = config, name.split(".")
            if path[0] == "sweep":
                new[argument] = ["sweep", ".".join(path[1:])], literal(text)
                continue
            if path[0] in _NAMED and len(path) > 1:
                check_name(f"{path[0][:-1]} in --config.{name}:", path[1], config[path[0]])
            part = path[2:] if path[0] in _NAMED else path
            is_open = len(part) > 1 and part[0] in have_options
            for key in path:
                if is_open and isinstance(node, ConfigDict) and key not in node:
                    new[argument] = path, literal(text)
                    break
                valid = node if isinstance(node, ConfigDict) else ()
                check_key(f"config key in --config.{name}:", key, valid, keys())
                node = node[key]
            else:
                value = literal(text)
                if isinstance(node, ConfigDict) and not isinstance(value, dict):
                    chosen = next((key for key in ("source", "name") if key in node), "KEY")
                    raise UserError(
                        f"--config.{name}={text}: expected --config.{name}.{chosen}={text}, or a dict(key=value, ...) "
                        "in quotes"
                    )
                if value is None or node is None or (type(node) is int and isinstance(value, float)):
                    new[argument] = path, value
    return new


def _compare(config, methods):
    """Replaces the arms, and what the config declares for them, by FedAvg and an arm for each of the methods."""
    if config.arms:
        config.sweep, config.paper = {}, {}
        for setting in config.settings.values():
            if "arms" in setting:
                del setting["arms"]
    arms = {key: ALIASES.get(key, {"methods": {key: options}}) for key, options in methods.items()}
    config.arms = {"fedavg": {}} | arms


def _methods(names):
    """Returns methods with their published defaults, as in a config; ``my_module:MyClass`` is named ``MyClass``."""
    names = filter(None, map(str.strip, names.split(",")))
    return {name.rpartition(":")[2]: {"name": name} if ":" in name else {} for name in names}


def _with_methods(argument):
    """Returns ``--config.methods={"a": {}, "b": {}}`` for ``--config.methods=a,b``."""
    name, _, text = argument.partition("=")
    if name != "--config.methods" or text.startswith("dict(") or not isinstance(names := literal(text), str):
        return argument
    return f"{name}={_methods(names)}"


def _with_braces(argument):
    """Returns ``--config.key={...}`` for ``--config.key=dict(...)``, as config files and the documentation write it."""
    name, _, text = argument.partition("=")
    if not (name.startswith("--config.") and text.startswith("dict(")):
        return argument
    if isinstance(value := literal(text), str):
        raise UserError(f"{argument}: expected a dict(key=value, ...) of plain values, in quotes")
    return f"{name}={value}"


def _set_option(config, path, value):
    with config.unlocked(), config.ignore_type():
        for depth, key in enumerate(path[:-1], 1):
            if key not in config:
                config[key] = ConfigDict()
            config = config[key]
            if not isinstance(config, ConfigDict):
                given = f"--config.{'.'.join(path[:depth])}"
                raise UserError(
                    f"{given}={config} has no {path[depth]}: give {given}.name={config} next to its options"
                )
        config[path[-1]] = value


def command_line(docstring: str | None, parents: Sequence[Parser] = (), only: Sequence[str] = ()) -> Parser:
    """Returns a parser with the launcher's flags and every key of a config.

    Args:
        docstring: the program's.
        parents: parsers of other options that the program has.
        only: flags that the program takes; by default all.
    """
    usage = "%(prog)s --config=CONFIG [--config.KEY=VALUE ...] [--OPTION=VALUE ...]"
    parser = Parser(docstring, parents=parents, usage=usage)
    configs = [path.relative_to(CONFIGS).with_suffix("").as_posix() for path in config_files()]
    names = OpenChoice(configs, "a file")
    parser.add_argument("--config", choices=names, metavar="CONFIG", help="a file, or a config of the project")
    for name, meaning in described(Options).items():
        if name not in _OTHERS and (name in only or not only):
            parser.add_argument(f"--{name}", choices=listed(hints(Options)[name]) or None, help=_escaped(meaning))
    for key in keys().values():
        allowed = in_words(key.kind)
        parser.add_argument(f"--config.{key.path}", choices=_names(key.kind), metavar="VALUE", help=_escaped(allowed))
    return parser


def parsed(arguments: Sequence[str], whole: Parser, own: Parser | None = None) -> tuple[Options, Namespace]:
    """Returns the launcher's options and a program's own; ``--help``, which absl does not expect, is of the whole."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        whole.parse_args(["--help"])
    values, rest = (own or Parser(add_help=False)).parse_known_args(arguments)
    return parse(rest), values


def _names(kind):
    """Returns the names that the annotation of a key lists; None if it lists none."""
    names = ("True", "False") if kind is bool else listed(kind)
    return names and OpenChoice(filter(None, names), "")


def _escaped(text):
    return " ".join((text or "").split()).replace("%", "%%")
