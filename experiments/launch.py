"""Runs a study: python experiments/launch.py --config=experiments/configs/<file>.py[:arg] [--config.key=value]
[--workdir=DIR] [--distributed=host:port,processes,process]

Overrides come after ``--config``; tuples are written ``--config.seeds="(0,1)"``. A second start with the same folder
goes on where the first one stopped. Exit status: 0 done, 2 wrong input (one line says what), 75 stopped by a signal
after a checkpoint (the same command goes on).
"""

import ast
import hashlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that ``experiments`` is found from any folder

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments import hosts
from experiments.machine import num_cores
from experiments.names import check_name
from experiments.study import run_study
from fedjax_collapse.records import UserError
from fedjax_collapse.remembered import cache_folder

STOPPED = 75
_OPTIONS = ("data", "partition", "network", "training", "algorithm", "server_optimizer", "regularizers", "methods",
            "measurements")  # fmt: skip
_CONFIGS = Path(__file__).resolve().parent / "configs"


def main(arguments: list[str]) -> int:
    """The exit status."""
    try:
        _find_own_modules(arguments)
        options = parse(arguments)
        configure_jax(options.compilation_cache)
        hosts.join(options.distributed, options.distributed_timeout)
        workdir = Path(options.workdir or default_workdir(options.config, arguments)).absolute()
        finished = run_study(options.config, workdir, options.arm, options.seed, should_stop=stop_on_signal())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if finished else STOPPED


def parse(arguments: list[str]) -> flags.FlagValues:
    """The parsed command line.

    Raises:
        UserError: whatever is wrong with it, in one line.
    """
    _check_config_file(arguments)
    try:
        plain, _ = _parse_flags([f"--config={_config_argument(arguments)}"])
        new = _new_options(plain.config, arguments)
        values, rest = _parse_flags([argument for argument in arguments if argument not in new])
        for path, value in new.values():
            _set_option(values.config, path, value)
    except UserError:
        raise
    except Exception as error:  # of the command line, or anything that the config file does
        raise UserError(_one_line(error)) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}: options start with --, and --config.key=value has no spaces")
    try:
        values.seed = tuple(map(int, values.seed)) if values.seed else None
    except ValueError:
        raise UserError(f"--seed={','.join(values.seed)}: expected integers") from None
    values.arm = tuple(values.arm) if values.arm else None
    return values


def _parse_flags(arguments):
    """Flag values, and what is left of the arguments."""
    values, command = flags.FlagValues(), ["launch.py", *arguments]
    config_flags.DEFINE_config_file("config", None, "The config file.", flag_values=values, sys_argv=command)
    flags.DEFINE_string("workdir", None, "Folder of the study; default runs/<config>-<hash>.", flag_values=values)
    flags.DEFINE_list("arm", None, "Only these arms of the config.", flag_values=values)
    flags.DEFINE_list("seed", None, "Only these seeds of the config.", flag_values=values)
    flags.DEFINE_string(
        "compilation_cache",
        str(cache_folder("jax")),
        "Folder of compiled programs; empty for none.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "distributed", "off", "Several processes: off, auto, or host:port,processes,process.", flag_values=values
    )
    flags.DEFINE_integer(
        "distributed_timeout", 300, "Seconds to wait for the other processes.", lower_bound=1, flag_values=values
    )
    return values, values(command)[1:]


def configure_jax(cache: str) -> None:
    """One CPU device per core, as one client rarely keeps several busy; and compiled programs kept between runs."""
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", num_cores())
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def default_workdir(config: ConfigDict, arguments: list[str]) -> Path:
    """``runs/<config file>-<hash of the config>`` in the current folder: only equal configs share it."""
    name = Path(_config_argument(arguments).split(":")[0]).stem
    return Path("runs") / f"{name}-{hashlib.sha256(config.to_json_best_effort().encode()).hexdigest()[:8]}"


def _find_own_modules(arguments):
    """So that a config's ``my_module:MyClass`` is found beside the config and in the current folder."""
    beside = Path(_config_argument(arguments).split(":")[0]).absolute().parent
    sys.path += [folder for folder in map(str, (beside, Path.cwd())) if folder not in sys.path]


def stop_on_signal():
    """A function that says whether SIGINT or SIGTERM came; a second one ends the process at once."""
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return lambda: bool(received)


def _config_argument(arguments):
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument in ("--config", "-config"):
            return following
        if argument.startswith(("--config=", "-config=")):
            return argument.split("=", 1)[1]
    return ""


def _check_config_file(arguments):
    given = _config_argument(arguments)
    if not given or not Path(given.split(":")[0]).is_file():
        available = sorted(
            str(p.relative_to(_CONFIGS.parents[1]))
            for p in _CONFIGS.rglob("*.py")
            if p.stem not in ("base", "__init__")
        )
        problem = f"--config={given}: there is no such file" if given else "--config is missing"
        raise UserError(f"{problem}; available: {', '.join(available)}")


def _new_options(config, arguments):
    """Path and value of every ``--config.a.b=value`` that the config lacks, by argument.

    Only parts whose keys are options may get new ones, as ``partition`` or ``network``: building them checks the names.
    """
    new = {}
    for argument in arguments:
        if argument.startswith("--config."):
            name, _, text = argument.removeprefix("--config.").partition("=")
            node, path = config, name.split(".")
            if path[0] == "arms" and len(path) > 1:
                check_name(f"arm in --config.{name}:", path[1], config.arms)
            part = path[2:] if path[0] == "arms" else path
            is_open = len(part) > 1 and part[0] in _OPTIONS
            for key in path:
                if is_open and isinstance(node, ConfigDict) and key not in node:
                    new[argument] = path, _literal(text)
                    break
                check_name(f"config key in --config.{name}:", key, node if isinstance(node, ConfigDict) else ())
                node = node[key]
    return new


def _literal(text):
    """The Python value that the text is, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _set_option(config, path, value):
    with config.unlocked():
        for key in path[:-1]:
            if key not in config:
                config[key] = ConfigDict()
            config = config[key]
        config[path[-1]] = value


def _one_line(error):
    """The message without line breaks, and without what is in a traceback before its last line."""
    head, *traceback = str(error).split("Traceback (most recent call last):")
    last = traceback[-1].strip().splitlines()[-1] if traceback else ""
    return " ".join(f"{head} {last}".split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(hosts.until_all_end(main, sys.argv[1:]))
