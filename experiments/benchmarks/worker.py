"""Runs in a process of its own: makes the tasks, or times one system on one of them.

The command lines are ``prepare FOLDER SCALE ROUNDS WORKLOAD ...``, ``grow FOLDER CLIENTS ROUNDS WORKLOAD``, ``time
FOLDER JOB``, the job as JSON, ``methods FOLDER TURNS CORES SCALE``, ``augmentations`` with the same, and ``network
CASE``, the case as JSON. ``time`` and ``network`` work as ``serve`` says.
"""

import json
import math
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import numpy as np

from experiments.benchmarks import SYSTEMS, Round, Setting, growth, network_steps
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import WORKLOADS, make_task

T = TypeVar("T")
WARM_UP = 2  # rounds that are not timed: the first compiles, the second may still fill caches


class Job(NamedTuple):
    """What a worker is to time."""

    task: str  # name of its file, without the suffix
    workload: str
    system: str
    rounds: int  # timed ones after which its loss is compared with the other systems', at least as many are run
    cores: int
    layout: tuple[int, int] | None
    device: str = "cpu"
    profile: str | None = None  # folder for a trace of a round that is not timed; of fedjax_collapse only


class Measurement(NamedTuple):
    """What is found of a system."""

    seconds: list[float]  # of each timed round
    seconds_to_first_round: float
    samples: int  # true samples in a round
    processed: int  # with padding
    steps: int
    loss: float  # of a round of the same number in all systems
    layout: str
    peak_memory_mib: float  # of this process


def prepare(folder: Path, scale: float, rounds: int, workloads: list[str]) -> None:
    """Writes the tasks of the workloads, for so many timed rounds, or, if that is 0, for as many as each wants."""
    for name in workloads:
        workload = WORKLOADS[name].scaled(scale)
        make_task(workload, WARM_UP + (rounds or workload.rounds)).save(folder / f"{name}.npz")


def measure(folder: Path, job: Job, serve: Callable[[Iterator[Round], int], Round]) -> dict[str, Any]:
    """Serves rounds of a system; what is to be said of them at the end."""
    task_file = folder / f"{job.task}.npz"
    layout = tuple(job.layout) if job.layout else None
    setting = Setting(job.cores, task_file, layout, job.device)
    rounds = SYSTEMS[job.system].load()(WORKLOADS[job.workload], Task.load(task_file), setting)
    measured = _measurement(serve(rounds, job.rounds))
    if job.profile and job.system == "fedjax_collapse":
        _trace(rounds, Path(job.profile, job.task))
    rounds.close()  # waits for what still runs
    return measured


def serve(rounds: Iterator[T], number: int, orders: TextIO, say: Callable[[Mapping[str, Any]], None]) -> T:
    """Runs rounds, of which there is no end, as it is told to until there are no more orders; the one of that number.

    It warms up first, and says when the first round was done. An order is a number of rounds: it runs so many, and
    continues until it reads ``enough``, with a message after every round, and an empty one when it waits again.
    """
    found = next(rounds)
    first_round_at = time.time()
    for _ in range(WARM_UP - 1):
        found = next(rounds)
    say({"first_round_at": first_round_at})
    lines, done = queue.SimpleQueue(), 0
    threading.Thread(target=lambda: [*map(lines.put, orders), lines.put(""), lines.put("")], daemon=True).start()
    for order in iter(lines.get, ""):
        end, is_enough = done + int(order), False
        while done < end or not is_enough:
            start = time.perf_counter()
            last = next(rounds)
            say({"seconds": time.perf_counter() - start, "end": time.monotonic()})
            done += 1
            found = last if done == number else found
            is_enough = is_enough or (not lines.empty() and lines.get() is not None)
        say({})
    return found


def _trace(rounds: Iterator[Round], folder: Path) -> None:
    import jax

    with jax.profiler.trace(str(folder)):
        next(rounds)


def _measurement(found: Round) -> dict[str, Any]:
    losses, samples, steps = (np.ravel(np.asarray(x)) for x in found[:3])
    loss = float(np.average(losses, weights=samples))
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}")
    return dict(
        samples=int(samples.sum()),
        processed=found.processed,
        steps=int(steps.sum()),
        loss=loss,
        layout=found.layout,
        peak_memory_mib=_peak_memory_mib(),
    )


def _peak_memory_mib() -> float:
    """Peak resident memory of this process; not ``ru_maxrss`` on Linux, which starts at the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main(command: str, *rest: str) -> None:
    """Runs a command line; what all methods or augmentations cost goes to ``measurement.json`` in the folder."""
    if command == "prepare":
        prepare(Path(rest[0]), float(rest[1]), int(rest[2]), list(rest[3:]))
    elif command == "grow":
        folder, clients, rounds, workload = Path(rest[0]), int(rest[1]), WARM_UP + int(rest[2]), rest[3]
        growth.make_task(WORKLOADS[workload], clients, rounds).save(folder / f"{workload}-{clients}.npz")
    elif command in ("methods", "augmentations"):
        from experiments.benchmarks import overheads

        measured = overheads.measure(command, int(rest[1]), int(rest[2]), float(rest[3]))
        (Path(rest[0]) / "measurement.json").write_text(json.dumps(measured))
    else:
        _serve_parent(command, *rest)


def _serve_parent(command, *rest):
    """Serves the process that reads this one's output, to which nothing else is written."""
    with os.fdopen(os.dup(1), "w", buffering=1) as output, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)

        def say(message):
            output.write(f"{json.dumps(message)}\n")

        if command == "network":
            serve(network_steps.rounds(network_steps.Case(**json.loads(rest[0]))), 1, sys.stdin, say)
            say({})
        else:
            folder, job = Path(rest[0]), Job(**json.loads(rest[1]))
            say(measure(folder, job, lambda *rounds: serve(*rounds, sys.stdin, say)))


if __name__ == "__main__":
    main(*sys.argv[1:])
