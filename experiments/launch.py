"""Runs a study: python experiments/launch.py --config=experiments/configs/<file>.py[:arg] [--config.key=value]
[--compare=method,method] [--workdir=DIR] [--distributed=host:port,processes,process]

Overrides come after ``--config``; tuples are written ``--config.seeds="(0,1)"``. A second start with the same folder
resumes where the first one stopped; ``--resume=must`` starts no new runs, ``--resume=never`` starts all of them again
and moves the earlier ones to the folder ``replaced``. With more rounds, a study goes on to these. Exit status: 0 done,
1 some runs failed (with a message for each; the same command tries them again), there was no space for files, or the
report could not be written, 2 invalid input (a one-line message), 75 stopped by a signal after a checkpoint (run the
same command to resume).

A config file is code: it is executed, with everything that it imports, with the permissions of the user. A TOML file of
plain values, ``--config=FILE.toml``, is not executed; what it names as ``module:Name`` is.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that ``experiments`` is importable from any folder

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.startup import import_jax

    import_jax()


from experiments.commands import manual
from experiments.config_files import split_config
from experiments.devices import check_devices, configure_jax
from experiments.parser import Parser
from experiments.startup import STOPPED, STOPPING, print_line
from experiments.study import parsing
from experiments.study.failures import RunsFailed, forget_failure
from experiments.study.parsing import default_workdir, defined_flags, parse
from experiments.study.preparing import check_privacy
from experiments.study.processes import hosts
from experiments.study.processes.claim import check_free
from experiments.study.processes.lock import only_process_in
from experiments.study.processes.slurm import submit
from experiments.study.processes.workers import train_in_workers
from experiments.study.progress.console import Console
from experiments.study.progress.sinks import check_sinks
from experiments.study.resolving import resolve
from experiments.study.resuming import check_resume, done_runs, set_aside
from experiments.study.study import run_study
from experiments.study.summaries import failures_of, finish, overview
from fedjax_collapse.config.folder import CONFIG, JOBS
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.user_code import one_line


def main(arguments: list[str], should_stop: Callable[[], bool] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        arguments: of the command line.
        should_stop: called between rounds; by default returns whether a signal was received.
    """
    try:
        if (topic := _help_topic(arguments)) is not None:
            return _help(topic)
        file, others = split_config(arguments)
        arguments = [f"--config={file}", *others]
        options = parse(arguments)
        folder = Path(options.workdir or default_workdir(options.config, file)).absolute()
        with Console().wait("checking the config of every arm and setting"):
            study = resolve(options.config, folder, options.arm, options.seed, options.setting)
        check_sinks(options.log)
        if (options.workers or options.slurm) and not options.worker:
            check_resume(options.resume, study)
            _check_processes(options, study)
            if options.resume == "never" or len(done_runs(study)) < len(study.runs):
                return _in_processes(options, arguments, study)
        configure_jax(options.compilation_cache)
        hosts.join(options.distributed, options.distributed_timeout)
        check_devices()
        if should_stop is None:
            should_stop = _or_orphaned(stop_on_signal()) if options.worker else stop_on_signal()
        finished = run_study(study, should_stop, options)
    except UserError as error:
        return _report_errors(2, error)
    except RunsFailed as error:
        return _report_errors(1, *error.lines)
    except OSError as error:  # no room, no permission
        return _report_errors(1, one_line(error))
    return 0 if finished else STOPPED


def command_line() -> Parser:
    """Returns a parser of the options, for completion; ``parse`` reads them."""
    return parsing.command_line(__doc__)


def _help_topic(arguments):
    """Returns the topic of ``--help=TOPIC``, empty without one; None without ``--help``."""
    given = [argument for argument in arguments if argument.split("=")[0] in ("--help", "-help", "-h")]
    return given[0].partition("=")[2] if given else None


def _help(topic):
    text = manual.on_screen(topic, defined_flags())
    with contextlib.suppress(BrokenPipeError):  # ``| head``
        print(text if topic else f"{__doc__}\n{text}", flush=True)
    return 0


def _check_processes(options, study):
    """Raises UserError for options that exclude each other."""
    if study.config["engine"]["runs"] == "together":
        raise UserError("--workers and --slurm train runs separately: choose engine.runs=separate")
    if options.distributed != "off":
        raise UserError("--workers and --slurm divide runs, --distributed divides clients: choose one of them")
    if options.estimate:
        raise UserError("--estimate is of one process: leave out --workers and --slurm")


def _in_processes(options, arguments, study):
    """Trains a study in workers, here or as jobs, and returns the exit status."""
    check_privacy(study.cells)
    count = options.workers or len(study.runs)
    arguments = [*arguments, f"--workdir={study.folder}", "--worker", f"--workers={count}", "--resume=auto"]
    console, logs = Console(), Path(f"{study.folder}{JOBS}")
    with only_process_in(study.folder):
        check_free(study.folder, json.loads(json.dumps(study.config)))
        if options.resume == "never":
            set_aside(study.folder, study.runs)
        console.note(overview(study.runs, {run.name: run.last_round for run in study.runs}))
        forget_failure(*(run.folder for run in study.runs))
        if options.slurm:
            jobs, have_ended = submit(arguments, count, options.slurm, logs)
            console.note(f"jobs {', '.join(jobs)}, logs in {logs}: the last to end writes the report")
            if not have_ended:
                return 0
            if not (study.folder / CONFIG).exists():
                raise UserError(f"no job has started: see their logs in {logs}")
            status, lines = 0, []
        else:
            status, lines = train_in_workers(arguments, count, stop_on_signal(), len(study.runs))
        failed = [] if status else [*failures_of(study.runs), *finish(study.folder, study.config, console)]
    known = {f"error: {line}" for line in failures_of(study.runs)}  # printed at the end
    _print_lines(line for line in lines if line not in known)
    if failed:
        raise RunsFailed(failed)
    return status


def _or_orphaned(should_stop):
    """Extends ``should_stop`` to return True when the parent process, which would write the report, has ended."""
    parent = os.getppid()
    return lambda: should_stop() or os.getppid() != parent


def _report_errors(status, *lines):
    """Prints the errors to stderr and returns the exit status."""
    _print_lines(f"error: {line}" for line in lines)
    return status


def _print_lines(lines):
    for line in lines:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)


def stop_on_signal():
    """Returns a function that returns whether SIGINT or SIGTERM was received; a second signal ends the process."""
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        print_line(STOPPING)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return lambda: bool(received)


if __name__ == "__main__":
    sys.exit(hosts.until_all_end(main, sys.argv[1:]))
