"""Processes on this machine that divide the runs of a study: each has a GPU, or a part of the cores.

A worker is the launcher with ``--worker``: it trains the next run that no other process has, until none is left. Its
parent does not start JAX, which would take the devices; it passes on signals and replaces a worker that was killed.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import machine
from experiments.startup import STOPPED, STOPPED_EARLY, STOPPING

_PAUSE = 0.5  # seconds between two looks at the workers
_WRONG = 2  # exit status of a worker that could not start
_LAUNCHER = str(Path(__file__).resolve().parents[2] / "launch.py")


class Place(NamedTuple):
    """The part of the machine that a worker uses."""

    cores: list[int]
    variables: dict[str, str]


def places(count: int) -> list[Place]:
    """Divides the cores into ``count`` parts and assigns the GPUs in turn.

    Workers that share a GPU also share its memory.
    """
    cores = machine.cores()
    gpus, found = _gpus(), []
    for i in range(count):
        start, end = len(cores) * i // count, len(cores) * (i + 1) // count
        own = cores[start : max(end, start + 1)]
        variables = {"JAX_NUM_CPU_DEVICES": str(len(own))}
        if gpus:
            variables |= {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]}
            if count > len(gpus):
                variables |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.75 / math.ceil(count / len(gpus)):.3f}"}
        chosen = {name: value for name, value in variables.items() if name.startswith("CUDA") or name not in os.environ}
        found.append(Place(own, chosen))
    return found


def train_in_workers(
    arguments: Sequence[str], count: int, should_stop: Callable[[], bool], num_runs: int
) -> tuple[int, list[str]]:
    """Trains the runs of a study in ``count`` workers.

    Args:
        arguments: the launcher's, for a worker.
        count: the number of workers at once.
        should_stop: called twice a second.
        num_runs: the number of runs, and so of workers that are replaced, as each run is tried once.

    Returns:
        The exit status, 0 if all runs were tried, 2 for invalid input, 75 after a signal; and the different lines that
        the workers have written to standard error.
    """
    left, statuses, is_stopping = {}, [], False
    with tempfile.TemporaryFile("w+", errors="replace") as errors:

        def start(place):
            """Starts a worker on the cores of its place, which its child processes inherit."""
            variables = os.environ | place.variables | {"TTY_COMPATIBLE": "0"}  # rich prints lines, as several print
            with machine.on_cores(place.cores):
                command = [sys.executable, _LAUNCHER, *arguments]
                left[subprocess.Popen(command, env=variables, stderr=errors, start_new_session=True)] = place

        def stop():
            for worker in left:
                worker.terminate()

        try:
            for place in places(count):
                start(place)
            while left:
                time.sleep(_PAUSE)
                for worker in [worker for worker in left if worker.poll() is not None]:
                    statuses.append(worker.returncode)
                    place, is_killed = left.pop(worker), worker.returncode not in (0, 1, _WRONG, STOPPED)
                    if is_killed and not is_stopping and len(statuses) + len(left) < count + num_runs:
                        start(place)
                if not is_stopping and (should_stop() or _WRONG in statuses):
                    is_stopping = True
                    stop()
        finally:
            stop()
            for worker in left:
                worker.wait()
        errors.seek(0)
        lines = dict.fromkeys(line for line in errors.read().splitlines() if line not in (STOPPING, STOPPED_EARLY))
    status = STOPPED if is_stopping or STOPPED in statuses else 0
    return _WRONG if _WRONG in statuses else status, list(lines)


def _gpus() -> Sequence[str]:
    """Returns NVIDIA's GPUs by their CUDA names, found without JAX, which would allocate their memory."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return ()
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(filter(None, visible.split(",")))
    return tuple(map(str, range(len(machine.gpus()))))
