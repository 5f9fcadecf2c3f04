"""Runs in a process of its own: makes the tasks, or times one system on one of them.

The command lines are ``prepare FOLDER SCALE ROUNDS WORKLOAD ...``, ``grow FOLDER CLIENTS ROUNDS WORKLOAD``, ``time
FOLDER JOB``, the job as JSON, ``methods FOLDER TURNS CORES SCALE``, ``augmentations`` with the same, and ``network
FOLDER CASE``, the case as JSON.
"""

import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.benchmarks import SYSTEMS, Round, Setting, growth, network_steps
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import WORKLOADS, make_task

WARM_UP = 2  # rounds that are not timed: the first compiles, the second may still fill caches


class Job(NamedTuple):
    """What a worker is to time."""

    task: str  # name of its file, without the suffix
    workload: str
    system: str
    rounds: int  # to time
    cores: int
    layout: tuple[int, int] | None
    started: float  # when the process was asked for, in seconds since the epoch
    device: str = "cpu"
    profile: str | None = None  # folder for a trace of a round that is not timed; of fedjax_collapse only


class Measurement(NamedTuple):
    """What a worker found."""

    seconds: list[float]  # of each timed round
    seconds_to_first_round: float
    samples: int  # true samples in a round
    processed: int  # with padding
    steps: int
    loss: float  # of the last timed round
    layout: str
    peak_memory_mib: float  # of this process


def prepare(folder: Path, scale: float, rounds: int, workloads: list[str]) -> None:
    """Writes the tasks of the workloads, for so many timed rounds, or, if that is 0, for as many as each wants."""
    for name in workloads:
        workload = WORKLOADS[name].scaled(scale)
        make_task(workload, WARM_UP + (rounds or workload.rounds)).save(folder / f"{name}.npz")


def measure(folder: Path, job: Job) -> Measurement:
    """Times a system, round by round."""
    task_file = folder / f"{job.task}.npz"
    layout = tuple(job.layout) if job.layout else None
    setting = Setting(job.cores, WARM_UP + job.rounds, task_file, layout, job.device)
    rounds = SYSTEMS[job.system].load()(WORKLOADS[job.workload], Task.load(task_file), setting)
    last = next(rounds)
    seconds_to_first_round = time.time() - job.started
    seconds = []
    for _ in range(WARM_UP - 1 + job.rounds):
        start = time.perf_counter()
        last = next(rounds)
        seconds.append(time.perf_counter() - start)
    measured = _measurement(last, seconds[WARM_UP - 1 :], seconds_to_first_round)
    if job.profile and job.system == "fedjax_collapse":
        _trace(rounds, Path(job.profile, job.task))
    rounds.close()  # waits for what still runs
    return measured


def _trace(rounds: Iterator[Round], folder: Path) -> None:
    import jax

    with jax.profiler.trace(str(folder)):
        next(rounds)


def _measurement(last: Round, seconds: list[float], seconds_to_first_round: float) -> Measurement:
    losses, samples, steps = (np.ravel(np.asarray(x)) for x in last[:3])
    loss = float(np.average(losses, weights=samples))
    if not math.isfinite(loss):
        raise FloatingPointError(f"the final loss is {loss}")
    return Measurement(
        seconds=seconds,
        seconds_to_first_round=seconds_to_first_round,
        samples=int(samples.sum()),
        processed=last.processed,
        steps=int(steps.sum()),
        loss=loss,
        layout=last.layout,
        peak_memory_mib=_peak_memory_mib(),
    )


def _peak_memory_mib() -> float:
    """Peak resident memory of this process; not ``ru_maxrss`` on Linux, which starts at the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main(command: str, folder: str, *rest: str) -> None:
    """Runs a command line; what is measured goes to ``measurement.json`` in the folder."""
    if command == "prepare":
        prepare(Path(folder), float(rest[0]), int(rest[1]), list(rest[2:]))
        return
    if command == "grow":
        clients, rounds, workload = int(rest[0]), WARM_UP + int(rest[1]), rest[2]
        growth.make_task(WORKLOADS[workload], clients, rounds).save(Path(folder, f"{workload}-{clients}.npz"))
        return
    if command in ("methods", "augmentations"):
        from experiments.benchmarks import overheads

        measured = overheads.measure(command, int(rest[0]), int(rest[1]), float(rest[2]))
    elif command == "network":
        measured = network_steps.measure(network_steps.Case(**json.loads(rest[0])))._asdict()
    else:
        measured = measure(Path(folder), Job(**json.loads(rest[0])))._asdict()
    (Path(folder) / "measurement.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
