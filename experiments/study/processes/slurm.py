"""Submits workers of a study (``workers.py``) as Slurm jobs, through submitit; a job continues after a timeout."""

import contextlib
import io
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.startup import configure_devices
from experiments.study.failures import expect_no_kill
from fedjax_collapse.command import import_program
from fedjax_collapse.core.records import UserError, installed
from fedjax_collapse.schema.user_code import one_line

_ROOT = str(Path(__file__).resolve().parents[3])
_LOCAL = "local"
_OF_ANY_CLUSTER = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "name")


class Job:
    """A worker. When its time is over, submitit submits the job that ``checkpoint`` returns: the same."""

    def __call__(self, arguments: list[str]) -> None:
        configure_devices()
        exits = _exits_of_submitit()
        status = import_program("launch").main(arguments, should_stop=lambda: bool(exits))
        if exits:
            raise exits[0]
        if status:
            raise RuntimeError(f"{' '.join(arguments)}: exit status {status}")

    def checkpoint(self, arguments: list[str]) -> Any:
        expect_no_kill()
        return _submitit().helpers.DelayedSubmission(self, arguments)


def _exits_of_submitit() -> list[SystemExit]:
    """Returns a list that gets submitit's ``SystemExit`` once it has submitted this job again.

    It is raised wherever the signal interrupts the program, and would look like a failure of the run. Here the run
    first stops with a checkpoint, for which Slurm leaves ``KillWait`` (30 seconds by default).
    """
    exits, submit_again = [], signal.getsignal(signal.SIGUSR2)

    def handle(number, frame):
        try:
            submit_again(number, frame)
        except SystemExit as end:
            exits.append(end)

    signal.signal(signal.SIGUSR2, handle)
    return exits


def submit(arguments: Sequence[str], count: int, options: str, logs: Path) -> tuple[list[str], bool]:
    """Submits an array of workers.

    Args:
        arguments: the launcher's, for a worker.
        count: the number of jobs.
        options: of sbatch, by submitit's names, such as ``partition=gpu,timeout_min=60,array_parallelism=8``; after
            ``local`` those of processes on this machine, which are waited for.
        logs: the folder of their logs.

    Returns:
        The jobs' numbers, and whether they have ended.

    Raises:
        UserError: submitit or Slurm is not installed, or an option is unknown.
    """
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # inherited by the jobs, which import this module
    cluster, parameters = _parameters(options)
    submitit = _submitit()
    try:
        executor = submitit.AutoExecutor(logs, cluster=cluster)
        executor.update_parameters(**parameters)
        with contextlib.redirect_stderr(io.StringIO()):  # where submitit prints what sbatch says, and raises it, too
            jobs = executor.map_array(Job(), [list(arguments)] * count)
    except (RuntimeError, NameError, AssertionError, ValueError, submitit.core.utils.FailedJobError) as error:
        raise UserError(f"--slurm={options}: {one_line(error)}") from error
    if cluster == _LOCAL:
        for job in jobs:
            job.wait()
    return [job.job_id for job in jobs], cluster == _LOCAL


def _parameters(options):
    """Returns the cluster, and submitit's parameters."""
    cluster, parameters = "slurm", {}
    for option in options.split(","):
        name, equals, value = option.partition("=")
        if name == _LOCAL and not equals:
            cluster = _LOCAL
        elif not equals:
            raise UserError(f"--slurm={options}: {option!r}, expected name=value pairs such as partition=gpu, or local")
        else:
            name = name if name in _OF_ANY_CLUSTER else f"slurm_{name}"
            parameters[name] = int(value) if value.isdecimal() else value
    return cluster, parameters


def _submitit():
    return installed("submitit", "slurm", "--slurm needs submitit")
