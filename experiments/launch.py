"""Runs a study: python experiments/launch.py --config=experiments/configs/<file>.py[:arg] [--config.key=value]
[--workdir=DIR] [--distributed=host:port,processes,process]

Overrides come after ``--config``; tuples are written ``--config.seeds="(0,1)"``. A second start with the same folder
resumes where the first one stopped; ``--resume=must`` refuses to start new runs, ``--resume=never`` starts all of them
again and moves the earlier ones to the folder ``replaced``. Exit status: 0 done, 1 some runs failed (a message for each
says why; the same command tries them again), there was no space for files, or no report could be written, 2 wrong input
(a one-line message), 75 stopped by a signal after a checkpoint (run the same command to resume).

A config file is code: it is run, with all that it imports and with the rights of who starts it.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that ``experiments`` is found from any folder

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.startup import import_jax

    import_jax()

import jax

from experiments.config import manual
from experiments.config.config_files import with_config_found
from experiments.config.parsing import default_workdir, defined_flags, parse
from experiments.config.resolving import resolve
from experiments.startup import STOPPED, STOPPING
from experiments.study import hosts
from experiments.study.console import Console
from experiments.study.failures import RunsFailed, one_line
from experiments.study.folder import JOBS
from experiments.study.lock import only_process_in
from experiments.study.resuming import check_resume
from experiments.study.sinks import check_sinks
from experiments.study.slurm import submit
from experiments.study.study import run_study
from experiments.study.summaries import finish, overview
from experiments.study.workers import Work, failures, last_round, train_in_workers
from fedjax_collapse.core.files import make_cache
from fedjax_collapse.core.records import UserError


def main(arguments: list[str], should_stop: Callable[[], bool] | None = None) -> int:
    """The exit status. ``should_stop``: asked between rounds; default, whether a signal came."""
    try:
        if (topic := _asked_for_help(arguments)) is not None:
            return _help(topic)
        arguments = with_config_found(arguments)
        options = parse(arguments)
        folder = Path(options.workdir or default_workdir(options.config, arguments)).absolute()
        study = resolve(options.config, folder, options.arm, options.seed, options.setting)
        check_sinks(options.log)
        if options.workers or options.slurm:
            check_resume(options.resume, study)
            return _in_processes(options, arguments, study)
        configure_jax(options.compilation_cache)
        hosts.join(options.distributed, options.distributed_timeout)
        check_devices()
        if should_stop is None:
            should_stop = _or_orphaned(stop_on_signal()) if options.share else stop_on_signal()
        finished = run_study(study, should_stop, options.share, options.log, options.resume)
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
    text = manual.on_screen(topic, defined_flags([]))
    with contextlib.suppress(BrokenPipeError):  # ``| head``
        print(text if topic else f"{__doc__}\n{text}", flush=True)
    return 0


def _in_processes(options, arguments, study):
    """The exit status of a study whose runs are divided among workers or are jobs."""
    if study.config["engine"]["runs"] == "together" or (options.workers and options.slurm):
        raise UserError("--workers, or --slurm, train runs apart: choose engine.runs=separate, and one of the two")
    if options.distributed != "off":
        raise UserError("--workers and --slurm divide runs, --distributed divides clients: choose one of them")
    work = Work([*arguments, f"--workdir={study.folder}", "--workers=0", "--slurm="], study)
    console = Console()
    if told := overview(study.folder, {run.name: last_round(run.folder) for run in study.runs}):
        console.note(told)
    if options.slurm:
        jobs = submit(work, options.slurm)
        console.note(f"jobs {', '.join(job.job_id for job in jobs)}: the last to end writes the report")
        if not all(job.done() for job in jobs):
            return 0
        if not study.folder.exists():
            raise UserError(f"no job has started: their logs in {study.folder}{JOBS} say why")
    elif status := train_in_workers(work, options.workers, stop_on_signal(), console):
        return status
    with only_process_in(study.folder):
        unwritten = finish(study.folder, study.config, console)
    if failed := [*failures(study.runs), *unwritten]:
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
        print(
            f"warning: compiled programs are not cached ({error}); choose another --compilation_cache", file=sys.stderr
        )
        return False
    return True


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


if __name__ == "__main__":
    sys.exit(hosts.until_all_end(main, sys.argv[1:]))
