"""Runs a study: python experiments/launch.py --config=experiments/configs/<file>.py[:arg] [--config.key=value]
[--workdir=DIR] [--distributed=host:port,processes,process]

Overrides come after ``--config``; tuples are written ``--config.seeds="(0,1)"``. A second start with the same folder
goes on where the first one stopped; ``--resume=must`` refuses to start new runs, ``--resume=never`` starts all of them
again and moves what there is of them to the folder ``replaced``. Exit status: 0 done, 1 some runs failed (a line for
each says why; the same command tries them again), there was no room for files, or no report could be written, 2 wrong
input (one line says what), 75 stopped by a signal after a checkpoint (the same command goes on).

A config file is code: it is run, with all that it imports and with the rights of who starts it.
"""

import ast
import contextlib
import hashlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that ``experiments`` is found from any folder

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.early import import_jax

    import_jax()

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments import hosts, manual
from experiments.arms import as_declared, check_keys, resolve_cell
from experiments.cells import arms_of, names_in, settings_of
from experiments.config_files import config_argument, with_config_found
from experiments.console import Console
from experiments.early import STOPPED, STOPPING
from experiments.failures import RunsFailed, explain, is_interrupt, one_line
from experiments.folder import JOBS, run_folder
from experiments.lock import only_process_in
from experiments.names import check_key, check_name
from experiments.plain_values import make_plain
from experiments.resuming import CHOICES, check_resume
from experiments.sinks import check_sinks
from experiments.slurm import submit
from experiments.study import choose_runs, run_study
from experiments.summaries import finish, overview
from experiments.workers import Work, failures, last_round, train_in_workers
from fedjax_collapse.records import UserError
from fedjax_collapse.remembered import cache_folder, make_cache

_OPTIONS = ("cohort", "data", "partition", "network", "training", "methods", "server", "measurements")
_NAMED = ("arms", "settings")  # parts of the config that hold others by name


def main(arguments: list[str], should_stop: Callable[[], bool] | None = None) -> int:
    """The exit status. ``should_stop``: asked between rounds; default, whether a signal came."""
    try:
        if (topic := _asked_for_help(arguments)) is not None:
            return _help(topic)
        arguments = with_config_found(arguments)
        options = parse(arguments)
        workdir = Path(options.workdir or default_workdir(options.config, arguments)).absolute()
        names = choose_runs(options.config, options.arm, options.seed, options.setting)
        check_sinks(options.log)
        if options.workers or options.slurm:
            check_resume(options.resume, workdir, names)
            return _in_processes(options, arguments, workdir, names)
        configure_jax(options.compilation_cache)
        hosts.join(options.distributed, options.distributed_timeout)
        check_devices()
        if should_stop is None:
            should_stop = _or_orphaned(stop_on_signal()) if options.share else stop_on_signal()
        finished = run_study(options.config, workdir, names, should_stop, options.share, options.log, options.resume)
    except UserError as error:
        return _told(2, error)
    except RunsFailed as error:
        return _told(1, *error.lines)
    except OSError as error:  # no room, no permission
        return _told(1, one_line(error))
    return 0 if finished else STOPPED


def _asked_for_help(arguments):
    """The topic of ``--help=TOPIC``, empty without one; None if nobody asks."""
    asked = [argument for argument in arguments if argument.split("=")[0] in ("--help", "-help", "-h")]
    return asked[0].partition("=")[2] if asked else None


def _help(topic):
    text = manual.on_screen(topic, _flags([]))
    with contextlib.suppress(BrokenPipeError):  # ``| head``
        print(text if topic else f"{__doc__}\n{text}", flush=True)
    return 0


def _in_processes(options, arguments, workdir, names):
    """The exit status of a study whose runs are divided among workers or are jobs."""
    config = options.config
    if config.engine.runs == "together" or (options.workers and options.slurm):
        raise UserError("--workers, or --slurm, train runs apart: choose engine.runs=separate, and one of the two")
    if options.distributed != "off":
        raise UserError("--workers and --slurm divide runs, --distributed divides clients: choose one of them")
    arguments = [*arguments, f"--workdir={workdir}", "--workers=0", "--slurm="]
    runs = {f"{cell} seed {seed}": run_folder(workdir, (cell, seed)) for cell, seed in names}
    rounds = {f"{cell} seed {seed}": resolve_cell(config, cell).rounds for cell, seed in names}
    work, console = Work(arguments, runs, workdir, rounds), Console()
    if told := overview(workdir, {name: last_round(run) for name, run in zip(names, runs.values(), strict=True)}):
        console.note(told)
    if options.slurm:
        jobs = submit(work, options.slurm)
        console.note(f"jobs {', '.join(job.job_id for job in jobs)}: the last to end writes the report")
        if not all(job.done() for job in jobs):
            return 0
        if not workdir.exists():
            raise UserError(f"no job has started: their logs in {workdir}{JOBS} say why")
    elif status := train_in_workers(work, options.workers, stop_on_signal(), console):
        return status
    with only_process_in(workdir):
        unwritten = finish(workdir, config, console)
    if failed := [*failures(work), *unwritten]:
        raise RunsFailed(failed)
    return 0


def _or_orphaned(should_stop):
    """Also when the process that started this one is gone, and with it who would write the report."""
    parent = os.getppid()
    return lambda: should_stop() or os.getppid() != parent


def _told(status, *lines):
    """The exit status, after a line on stderr for each thing that is wrong."""
    for line in lines:
        with contextlib.suppress(OSError):
            print(f"error: {line}", file=sys.stderr)
    return status


def parse(arguments: list[str]) -> flags.FlagValues:
    """The parsed command line.

    Raises:
        UserError: whatever is wrong with it, in one line.
    """
    arguments = with_config_found(arguments)
    find_own_modules(arguments)
    try:
        plain, _ = _parse_flags([f"--config={config_argument(arguments)}"])
        if not isinstance(plain.config, ConfigDict):
            found = type(plain.config).__name__
            raise UserError(f"{config_argument(arguments)}: get_config returned a {found}, expected a ConfigDict")
        new = _new_options(plain.config, arguments)
        values, rest = _parse_flags([argument for argument in arguments if argument not in new])
        for path, value in new.values():
            _set_option(values.config, path, value)
        make_plain(values.config)
        check_keys(values.config)
    except UserError:
        raise
    except BaseException as error:  # of the command line, or anything that the config file does
        if is_interrupt(error):
            raise
        raise UserError(one_line(error) if isinstance(error, Exception) else explain(error)) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}: options start with --, and --config.key=value has no spaces")
    try:
        values.seed = tuple(map(int, values.seed)) if values.seed else None
    except ValueError:
        raise UserError(f"--seed={','.join(values.seed)}: expected integers") from None
    study = as_declared(values.config)
    values.arm = names_in(values.arm, arms_of(study)) if values.arm else None
    values.setting = names_in(values.setting, settings_of(study)) if values.setting else None
    if values.workers < 0:
        raise UserError(f"--workers={values.workers}: expected a number of processes, 0 for none but this one")
    return values


def _parse_flags(arguments):
    """Flag values, and what is left of the arguments."""
    command = ["launch.py", *arguments]
    values = _flags(command)
    return values, values(command)[1:]


def _flags(command):
    """What can be said on the command line."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "The config file.", flag_values=values, sys_argv=command)
    flags.DEFINE_string("workdir", None, "Folder of the study; default runs/<config>-<hash>.", flag_values=values)
    flags.DEFINE_string("arm", None, "Only these arms of the config.", flag_values=values)
    flags.DEFINE_string("setting", None, "Only these settings of the config.", flag_values=values)
    flags.DEFINE_list("seed", None, "Only these seeds of the config.", flag_values=values)
    flags.DEFINE_list("log", [], "Also to tensorboard, wandb: rows while they come.", flag_values=values)
    flags.DEFINE_enum(
        "resume",
        "auto",
        CHOICES,
        "must: only go on; never: start all again, and keep what there is.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "workers", 0, "Processes that divide the runs: one for each GPU, or parts of the cores.", flag_values=values
    )
    flags.DEFINE_string(
        "slurm", "", "A job for each run: partition=gpu,timeout_min=60,...; or local.", flag_values=values
    )
    flags.DEFINE_string("share", "", "Name under which they divide them; --workers gives it.", flag_values=values)
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
    return values


def configure_jax(cache: str) -> None:
    """Compiled programs are kept between runs, and Orbax is quiet."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs what it raises, a thousand lines of a full disk
    if cache and _is_writable(Path(cache)):
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def check_devices() -> None:
    """Raises UserError if JAX finds no devices, as those of a ``JAX_PLATFORMS`` that this machine lacks."""
    try:
        jax.devices()
    except Exception as error:  # of whichever plugin there is; where none is installed, an assertion without a word
        asked = os.environ.get("JAX_PLATFORMS")
        problem = one_line(error) if str(error) else "none of what is asked for is installed and finds its device"
        hint = f"JAX_PLATFORMS={asked}; unset it for the devices that there are" if asked else "see JAX's installation"
        raise UserError(f"JAX has no devices to run on: {problem} ({hint})") from error


def _is_writable(cache):
    """Whether compiled programs can be kept there; a line says so if not."""
    try:
        make_cache(cache)
    except OSError as error:
        print(f"warning: compiled programs are not kept ({error}); choose another --compilation_cache", file=sys.stderr)
        return False
    return True


def default_workdir(config: ConfigDict, arguments: list[str]) -> Path:
    """``runs/<config file>-<hash of the config>`` in the current folder: only equal configs share it."""
    name = Path(config_argument(arguments).split(":")[0]).stem
    return Path("runs") / f"{name}-{hashlib.sha256(config.to_json_best_effort().encode()).hexdigest()[:8]}"


def find_own_modules(arguments: list[str]) -> None:
    """So that a config's ``my_module:MyClass`` is found beside the config first, at last in the current folder."""
    beside = str(Path(config_argument(arguments).split(":")[0]).absolute().parent)
    sys.path[:] = [beside, *(folder for folder in sys.path if folder != beside)]
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def stop_on_signal():
    """A function that says whether SIGINT or SIGTERM came; a second one ends the process at once."""
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.write(2, f"{STOPPING}\n".encode())

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return lambda: bool(received)


def _new_options(config, arguments):
    """Path and value of every ``--config.a.b=value`` that the config lacks, by argument; also of a fraction where the
    config has a whole number, as of epochs: whether it may be one is checked with all options.

    Only parts whose keys are options may get new ones, as ``partition`` or ``network``: building them checks the names.
    """
    new = {}
    for argument in arguments:
        if argument.startswith("--config."):
            name, _, text = argument.removeprefix("--config.").partition("=")
            node, path = config, name.split(".")
            if path[0] == "sweep":
                new[argument] = ["sweep", ".".join(path[1:])], _literal(text)
                continue
            if path[0] in _NAMED and len(path) > 1:
                check_name(f"{path[0][:-1]} in --config.{name}:", path[1], config[path[0]])
            part = path[2:] if path[0] in _NAMED else path
            is_open = len(part) > 1 and part[0] in _OPTIONS
            for key in path:
                if is_open and isinstance(node, ConfigDict) and key not in node:
                    new[argument] = path, _literal(text)
                    break
                check_key(f"config key in --config.{name}:", key, node if isinstance(node, ConfigDict) else ())
                node = node[key]
            if type(node) is int and isinstance(value := _literal(text), float):
                new[argument] = path, value
    return new


def _literal(text):
    """The Python value that the text is, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _set_option(config, path, value):
    with config.unlocked(), config.ignore_type():
        for depth, key in enumerate(path[:-1], 1):
            if key not in config:
                config[key] = ConfigDict()
            config = config[key]
            if not isinstance(config, ConfigDict):
                given = f"--config.{'.'.join(path[:depth])}"
                raise UserError(f"{given}={config} has no {path[depth]}: give {given}.name={config} beside its options")
        config[path[-1]] = value


if __name__ == "__main__":
    sys.exit(hosts.until_all_end(main, sys.argv[1:]))
