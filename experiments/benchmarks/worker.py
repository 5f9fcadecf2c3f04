"""Runs in a process of its own: makes the tasks, or times one system on one of them.

The command lines are ``prepare FOLDER SCALE WORKLOAD ...``, ``time FOLDER JOB``, the job as JSON, ``methods FOLDER
TURNS CORES SCALE``, and ``network FOLDER CASE``, the case as JSON.
"""

import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.benchmarks import SYSTEMS, Round, Setting, network_steps
from experiments.benchmarks.workloads import WORKLOADS, Task, make_task

WARM_UP = 2  # rounds that are not timed: the first compiles, the second may still fill caches


class Job(NamedTuple):
    """What a worker is to time."""

    workload: str
    system: str
    rounds: int
    cores: int
    layout: tuple[int, int] | None
    started: float  # when the process was asked for, in seconds since the epoch


class Measurement(NamedTuple):
    """What a worker found."""

    seconds: list[float]  # of each timed round
    seconds_to_first_round: float
    samples: int  # true samples in a round
    processed: int  # with padding
    steps: int
    loss: float  # of the last round
    layout: str
    peak_memory_mib: float


def prepare(folder: Path, scale: float, workloads: list[str]) -> None:
    """Writes the tasks of the workloads."""
    for name in workloads:
        make_task(WORKLOADS[name], scale).save(folder / f"{name}.npz")


def measure(folder: Path, job: Job) -> Measurement:
    """Times a system, round by round."""
    setting = Setting(job.cores, tuple(job.layout) if job.layout else None)
    rounds = SYSTEMS[job.system].load()(WORKLOADS[job.workload], Task.load(folder / f"{job.workload}.npz"), setting)
    last = next(rounds)
    seconds_to_first_round = time.time() - job.started
    seconds = []
    for _ in range(WARM_UP - 1 + job.rounds):
        start = time.perf_counter()
        last = next(rounds)
        seconds.append(time.perf_counter() - start)
    return _measurement(last, seconds[WARM_UP - 1 :], seconds_to_first_round)


def _measurement(last: Round, seconds: list[float], seconds_to_first_round: float) -> Measurement:
    losses, samples, steps = (np.ravel(np.asarray(x)) for x in last[:3])
    samples = np.where(steps > 0, samples, 0)
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
        prepare(Path(folder), float(rest[0]), list(rest[1:]))
        return
    if command == "methods":
        from experiments.benchmarks import overheads

        measured = overheads.measure(int(rest[0]), int(rest[1]), float(rest[2]))
    elif command == "network":
        measured = network_steps.measure(network_steps.Case(**json.loads(rest[0])))._asdict()
    else:
        measured = measure(Path(folder), Job(**json.loads(rest[0])))._asdict()
    (Path(folder) / "measurement.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
