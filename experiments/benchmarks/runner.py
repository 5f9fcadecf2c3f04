"""Times systems: each in its own process, which runs rounds on request, or several in one process.

The speed of a shared machine changes from minute to minute. Therefore two systems run at the same time, each pinned to
a core, and once more with the cores swapped; or alternately, with all cores. One such comparison is a repetition.
Several are summarized by their median, smallest and largest. Systems in one process take turns, round by round.
"""

import contextlib
import math
import multiprocessing.connection
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from unittest import mock

import jax
import numpy as np

from experiments.benchmarks import OURS, SYSTEMS, Round, Setting
from experiments.benchmarks.systems import engine_rounds
from experiments.benchmarks.workloads import Task, Workload, make_task
from experiments.machine import on_cores
from experiments.waiting import wait

T = TypeVar("T")
WARM_UP = 2  # rounds that are not timed: the first compiles, the second may still fill caches
_SPAWN = multiprocessing.get_context("spawn")


class Failed(Exception):
    """A process failed; the message ends with its name and exit status."""


class Measurement(NamedTuple):
    """The measurements of one system."""

    seconds: list[float]  # of each timed round
    seconds_to_first_round: float
    samples: int  # true samples in a round
    processed: int  # with padding
    steps: int
    loss: float  # of a round of the same number in all systems
    layout: str
    peak_memory_mib: float  # of the process, on a GPU of its arrays there


class Worker:
    """A process that calls ``target(connection, *arguments)``; a context manager that ends it.

    Args:
        environment: more environment variables.
        cores: to which the process is pinned; all if empty.
    """

    def __init__(
        self,
        name: str,
        target: Callable[..., None],
        arguments: Sequence[Any],
        environment: Mapping[str, str],
        cores: Collection[int] = (),
    ) -> None:
        self.name, self.start = name, time.time()
        self._errors = tempfile.NamedTemporaryFile("r")  # noqa: SIM115
        self.connection, others = _SPAWN.Pipe()
        arguments = self._errors.name, target, others, *arguments
        self.process = _SPAWN.Process(target=_call, args=arguments, daemon=True)
        path = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
        with on_cores(cores), mock.patch.dict(os.environ, environment), mock.patch.object(sys, "path", path):
            self.process.start()  # which takes the path from this process, not from its environment
        others.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self._errors.close()

    def send(self, message: Any) -> None:
        """Sends a message, unless the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(message)

    def receive(self) -> Any:
        """Returns the next message.

        Raises:
            Failed: if the process has ended; with the end of its standard error.
        """
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            line = f"error: {self.name} failed with exit status {self.process.exitcode}"
            raise Failed("\n".join([*self._errors.read().splitlines()[-20:], line])) from None

    def pin(self, core: int) -> None:
        """Moves all threads of the process to one core."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), {core})


def _call(errors, target, *arguments):
    """Calls the target in a process whose standard error is a file and whose output is discarded."""
    with open(errors, "w") as file, open(os.devnull, "w") as nowhere:
        os.dup2(file.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
    target(*arguments)


class Lane(Worker):
    """A process that serves rounds (``serve_system``); as a context manager, it waits until they are warm.

    Args:
        rounds: to run on each request, or more if it is faster than the other lane.
    """

    def __init__(self, *arguments: Any, rounds: int) -> None:
        super().__init__(*arguments)
        self.rounds = rounds
        self.seconds: list[float] = []  # of all its rounds

    def __enter__(self) -> Self:
        with wait(f"{self.name}: starting and compiling"), contextlib.ExitStack() as stack:
            stack.push(self)
            self._to_first_round = self.receive() - self.start
            stack.pop_all()
        return self

    def finish(self) -> Measurement:
        """Ends the process; returns its report and the seconds of its rounds."""
        self.send(None)
        return Measurement(self.seconds, self._to_first_round, **self.receive())


def prepare(connection: Connection, workload: Workload, rounds: int, file: Path) -> None:
    """Writes the task of a workload, for this many timed rounds."""
    make_task(workload, WARM_UP + rounds).save(file)
    connection.send(None)


def compile_ours(connection: Connection, workload: Workload, setting: Setting) -> None:
    """Compiles a round of our engine, which stays in JAX's cache."""
    engine_rounds.compile_rounds(workload, Task.load(setting.task_file), setting)
    connection.send(None)


def serve_system(connection: Connection, system: str, workload: Workload, setting: Setting, rounds: int) -> None:
    """Serves rounds of a system, then reports what is known here of its ``Measurement``.

    ``rounds`` are the timed rounds after which its loss is compared with that of the other systems.
    """
    running = SYSTEMS[system].load()(workload, Task.load(setting.task_file), setting)
    found = report_of(serve(running, rounds, connection), peak_memory_mib(system, setting.device))
    if not math.isfinite(found["loss"]):
        raise FloatingPointError(f"the loss is {found['loss']}")
    running.close()  # waits for unfinished work
    connection.send(found)


def serve(rounds: Iterator[T], number: int, connection: Connection) -> T:
    """Runs rounds on request until None is received; returns the timed round of this number, counted from 1.

    It warms up first, and reports when the first round was finished. A request is a number of rounds: at least this
    many run, and more until another message is received. The seconds and the time follow every round; None ends them.
    """
    found, first_round_at = next(rounds), time.time()
    for _ in range(WARM_UP - 1):
        found = next(rounds)
    connection.send(first_round_at)
    done = 0
    while (order := connection.recv()) is not None:
        end, is_enough = done + order, False
        while done < end or not is_enough:
            start = time.perf_counter()
            last = next(rounds)
            connection.send((time.perf_counter() - start, time.monotonic()))
            done += 1
            found = last if done == number else found
            is_enough = is_enough or (connection.poll() and bool(connection.recv()))
        connection.send(None)
    return found


def report_of(found: Round, peak_memory_mib: float) -> dict[str, Any]:
    """Returns the fields of ``Measurement`` that a round reports."""
    losses, samples, steps = (np.ravel(np.asarray(x)) for x in found[:3])
    loss = float(np.average(losses, weights=samples))
    sums = dict(samples=samples.sum(), processed=found.processed, steps=steps.sum())
    rest = dict(loss=loss, layout=found.layout, peak_memory_mib=peak_memory_mib)
    return {name: int(number) // found.count for name, number in sums.items()} | rest


def peak_memory_mib(system: str, device: str) -> float:
    """Peak memory on a GPU, or resident memory; not ``ru_maxrss`` on Linux, which starts at the parent's."""
    if device == "gpu" and system != OURS:
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    if device == "gpu":
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def interleave(
    arms: Mapping[str, Iterator[Round]], rounds: int, advance: Callable[[], None], device: str = "cpu"
) -> dict[str, Measurement]:
    """Returns the measurements of rounds of all arms, alternately, in this process."""
    seconds, last = {name: [] for name in arms}, {}
    for _ in range(WARM_UP + rounds):
        for name, running in arms.items():
            start = time.perf_counter()
            last[name] = next(running)
            seconds[name].append((time.perf_counter() - start) / last[name].count)
            advance()
    reports = {name: report_of(found, peak_memory_mib(OURS, device)) for name, found in last.items()}
    return {name: Measurement(taken[WARM_UP:], taken[0], **reports[name]) for name, taken in seconds.items()}


def side_by_side(starts: Iterable[Callable[[], Worker]], at_once: int) -> Iterator[tuple[str, str]]:
    """Runs processes to their first message, several at the same time; yields each's name, and why it failed or ""."""
    waiting, running = list(starts), {}
    with contextlib.ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < at_once:
                worker = stack.enter_context(waiting.pop(0)())
                running[worker.connection] = worker
            for connection in multiprocessing.connection.wait(list(running)):
                with running.pop(connection) as worker:
                    try:
                        yield worker.name, worker.receive() or ""
                    except Failed as failure:
                        yield worker.name, str(failure)


def compare(
    arms: Sequence[T], start: Callable[[T], Lane], repetitions: int, cores: Sequence[int] = ()
) -> Iterator[tuple[T, Measurement, list[float]]]:
    """Yields each arm with its measurement and its ``speeds``; the first is the baseline, and comes last.

    ``start`` makes the lane of an arm. Two lanes exist at a time.
    """
    with start(arms[0]) as baseline:
        for arm in arms[1:]:
            with start(arm) as lane:
                found = speeds(lane, baseline, repetitions, cores)
                yield arm, lane.finish(), found
        for _ in range(0 if arms[1:] else repetitions):
            run([baseline])
        yield arms[0], baseline.finish(), []


def speeds(lane: Lane, baseline: Lane, repetitions: int, cores: Sequence[int] = ()) -> list[float]:
    """The speed of the lane divided by that of the baseline, in every repetition.

    ``cores``: two, on which both run at the same time. Without, they run alternately, and take turns in being first.
    """
    pair, found = (lane, baseline), []
    with wait(f"{lane.name} compared with {baseline.name}", repetitions) as advance:
        for repetition in range(repetitions):
            if cores:
                ratios = [_at_once(pair, places) for places in (cores, cores[::-1])]
            else:
                done = {each: run([each])[each] for each in pair[:: (-1) ** repetition]}
                ratios = [_ratio(done[lane], done[baseline])]
            found.append(statistics.geometric_mean(ratios))
            advance()
    return found


def run(lanes: Sequence[Lane]) -> dict[Lane, list[tuple[float, float]]]:
    """Runs rounds of all lanes at the same time, until each has run its number of rounds; faster lanes run more."""
    done, waiting, last = {lane: [] for lane in lanes}, {lane.connection: lane for lane in lanes}, set()
    for lane in lanes:
        lane.send(lane.rounds)
    while waiting:
        behind = {lane for lane in lanes if len(done[lane]) < lane.rounds}
        for lane in set(waiting.values()) - last:
            if behind <= {lane}:  # no other lane has rounds left
                lane.send("enough")
                last.add(lane)
        connection = multiprocessing.connection.wait(list(waiting))[0]
        lane = waiting[connection]
        if (message := lane.receive()) is None:
            del waiting[connection]
        else:
            done[lane].append(message)
            lane.seconds.append(message[0])
    return done


def _at_once(pair, cores):
    """The ratio of the two on these cores, of the rounds that ran while the other lane was running, too."""
    for lane, core in zip(pair, cores, strict=True):
        lane.pin(core)
    done = run(pair)
    over = min(rounds[-1][1] for rounds in done.values())  # after which only one was running
    return _ratio(*([each for i, each in enumerate(done[lane]) if i < lane.rounds or each[1] <= over] for lane in pair))


def _ratio(rounds, others):
    return statistics.median(seconds for seconds, _ in others) / statistics.median(seconds for seconds, _ in rounds)
