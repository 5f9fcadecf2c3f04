"""Submits the runs of a study as Slurm jobs, through submitit: one job per run, which continues after a timeout."""

import contextlib
import io
import os
import signal
import uuid
from pathlib import Path
from typing import Any

from experiments.startup import configure_devices
from experiments.study.processes.workers import Work
from experiments.study.resolving import RunSpec
from fedjax_collapse.command import import_program
from fedjax_collapse.config.folder import JOBS
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.user_code import one_line

_ROOT = str(Path(__file__).resolve().parents[3])
_LOCAL = "local"
_OF_ANY_CLUSTER = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "name")


class Job:
    """The launcher for one run. When its time is over, submitit submits what ``checkpoint`` returns: the same job."""

    def __call__(self, arguments: list[str]) -> None:
        configure_devices()
        exits = _exits_of_submitit()
        status = import_program("launch").main(
            [*arguments, f"--share={uuid.uuid4().hex}"], should_stop=lambda: bool(exits)
        )
        if exits:
            raise exits[0]
        if status:
            raise RuntimeError(f"{' '.join(arguments)}: exit status {status}")

    def checkpoint(self, arguments: list[str]) -> Any:
        return _submitit().helpers.DelayedSubmission(self, [*arguments, "--resume=auto"])


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


def submit(work: Work, options: str) -> tuple[list[str], bool]:
    """Submits one job for each run, as an array; their logs are in ``<workdir>.jobs``.

    Args:
        work: the study, and the launcher's arguments.
        options: of sbatch, by submitit's names, such as ``partition=gpu,timeout_min=60,array_parallelism=8``; after
            ``local`` those of processes on this machine, which are waited for.

    Returns:
        The jobs' numbers, and whether they have ended.

    Raises:
        UserError: submitit or Slurm is not installed, or an option is unknown.
    """
    arguments = [[*work.arguments, *_only(run)] for run in work.study.runs]
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # inherited by the jobs, which import this module
    cluster, parameters = _parameters(options)
    submitit = _submitit()
    try:
        executor = submitit.AutoExecutor(f"{work.study.folder}{JOBS}", cluster=cluster)
        executor.update_parameters(**parameters)
        with contextlib.redirect_stderr(io.StringIO()):  # where submitit prints what sbatch says, and raises it, too
            jobs = executor.map_array(Job(), arguments)
    except (RuntimeError, NameError, AssertionError, ValueError, submitit.core.utils.FailedJobError) as error:
        raise UserError(f"--slurm={options}: {one_line(error)}") from error
    if cluster == _LOCAL:
        for job in jobs:
            job.wait()
    return [job.job_id for job in jobs], cluster == _LOCAL


def _only(run: RunSpec) -> list[str]:
    """Returns the launcher's arguments that select only this run."""
    setting = [f"--setting={run.cell.setting}"] if run.cell.setting else []
    return [*setting, f"--arm={run.cell.arm}", f"--seed={run.seed}"]


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
    try:
        import submitit
    except ImportError:
        raise UserError('--slurm needs submitit: pip install "fedjax_collapse[slurm]"') from None
    return submitit
