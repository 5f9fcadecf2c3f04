"""Makes tasks, or times one system or network: ``python -m experiments.benchmarks.worker COMMAND OPTIONS``.

The options are the keyword arguments of the command's function (``COMMANDS``) as JSON.
"""

import contextlib
import json
import math
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import numpy as np

from experiments.benchmarks import OURS, SYSTEMS, Round, Setting, growth, network_steps
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import WORKLOADS, make_task

T = TypeVar("T")
WARM_UP = 2  # rounds that are not timed: the first compiles, the second may still fill caches


class Measurement(NamedTuple):
    """The measurements of one system."""

    seconds: list[float]  # of each timed round
    seconds_to_first_round: float
    samples: int  # true samples in a round
    processed: int  # with padding
    steps: int
    loss: float  # of a round of the same number in all systems
    layout: str
    peak_memory_mib: float  # of this process, on a GPU of its arrays there


def prepare(task: str, workload: str, rounds: int, scale: float = 1.0, clients: int = 0) -> None:
    """Writes the task of a workload, for this many timed rounds, to the file ``task``.

    Args:
        clients: if given, the task is one of ``growth.py`` with this number of clients.
    """
    chosen, rounds = WORKLOADS[workload].scaled(scale), WARM_UP + rounds
    (growth.make_task(chosen, clients, rounds) if clients else make_task(chosen, rounds)).save(Path(task))


def measure_overheads(
    kind: str,
    rounds: int,
    cores: int,
    scale: float,
    file: str,
    names: Sequence[str] | None = None,
    like: str | None = None,
    device: str = "cpu",
) -> None:
    """Writes the costs of ``methods``, all or some, or ``augmentations`` to a JSON file; messages count its steps."""
    from experiments.benchmarks import overheads

    with _messages() as say:
        rows = overheads.measure(kind, rounds, cores, scale, lambda total: say({"total": total}), names, like, device)
    Path(file).write_text(json.dumps(rows))


def time_network(network: str, system: str, cores: int, device: str = "cpu") -> None:
    """Serves rounds of one network on one system."""
    with _messages() as say:
        serve(network_steps.rounds(network, system, cores, device), 1, sys.stdin, say)
        say({})


def time_system(
    task: str,
    workload: str,
    system: str,
    rounds: int,
    cores: int,
    layout: Sequence[int] | None = None,
    device: str = "cpu",
    profile: str | None = None,
) -> None:
    """Serves rounds of a system, then reports the fields of ``Measurement`` that are known here.

    Args:
        task: file that ``prepare`` wrote.
        rounds: timed rounds after which its loss is compared with that of the other systems.
        profile: folder for a trace of one more round; for ``fedjax_collapse`` only.
    """
    setting = Setting(cores, Path(task), layout, device)
    with _messages() as say:
        running = SYSTEMS[system].load()(WORKLOADS[workload], Task.load(setting.task_file), setting)
        measured = _measurement(serve(running, rounds, sys.stdin, say), _peak_memory_mib(system, device))
        if profile and system == "fedjax_collapse":
            import jax

            with jax.profiler.trace(profile):
                next(running)
        running.close()  # waits for unfinished work
        say(measured)


def serve(rounds: Iterator[T], number: int, orders: TextIO, say: Callable[[Mapping[str, Any]], None]) -> T:
    """Runs rounds on request until there are no more requests; returns the timed round of this number, counted from 1.

    It warms up first, and reports when the first round is finished. A request is a number of rounds: at least this many
    run, and more until the line ``enough`` is read. A message follows every round; an empty one ends the request.
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


def _measurement(found: Round, peak_memory_mib: float) -> dict[str, Any]:
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
        peak_memory_mib=peak_memory_mib,
    )


def _peak_memory_mib(system: str, device: str) -> float:
    """Peak memory on a GPU, or resident memory; not ``ru_maxrss`` on Linux, which starts at the parent's."""
    if device == "gpu" and system != OURS:
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    if device == "gpu":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@contextlib.contextmanager
def _messages() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Returns a function that sends messages to standard output, from which all other output is diverted."""
    with os.fdopen(os.dup(1), "w", buffering=1) as output, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield lambda message: output.write(f"{json.dumps(message)}\n")
        finally:
            os.dup2(output.fileno(), 1)


COMMANDS = {"prepare": prepare, "overheads": measure_overheads, "network": time_network, "system": time_system}


def main(command: str, options: str) -> None:
    """Runs a command with its options."""
    COMMANDS[command](**json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
