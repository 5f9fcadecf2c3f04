"""Pairs of systems that are timed together, each in a process (a lane) that runs rounds on request.

The speed of a shared machine changes from minute to minute. Therefore two systems run at the same time, each pinned to
a core, and once more with the cores swapped; or alternately, with all cores. One such comparison is a repetition.
Several are summarized by their median, smallest and largest.
"""

import contextlib
import json
import os
import queue
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from experiments.study.machine import on_cores
from experiments.study.waiting import wait

T = TypeVar("T")


class Failed(Exception):
    """A process failed; the message ends with its name and exit status."""


class Lane:
    """A process that has warmed up and waits for requests; a context manager that ends it.

    Args:
        command: of a process that serves rounds (``worker.serve``).
        rounds: to run on each request, or more if it is faster than the other lane.
        inbox: receives the messages of all lanes that are compared.
        cores: to which the process is pinned; all if empty.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        rounds: int,
        inbox: queue.SimpleQueue,
        cores: Collection[int] = (),
    ) -> None:
        self.name, self.rounds, self.inbox, self._start = name, rounds, inbox, time.time()
        self.seconds: list[float] = []  # of all its rounds
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        with on_cores(cores):
            self._process = subprocess.Popen(command, env=environment, **pipes)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        with wait(f"{self.name}: starting and compiling"):
            self._to_first_round = receive(self.inbox)[1]["first_round_at"] - self._start
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def send(self, line: str) -> None:
        """Sends a line, unless the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def pin(self, core: int) -> None:
        """Moves all threads of the process to one core."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), {core})

    def finish(self) -> dict[str, Any]:
        """Ends the process; returns its final message and the seconds of its rounds."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        message = receive(self.inbox)[1]
        self._process.kill()
        self.inbox.get()  # the end of its output
        return {**message, "seconds_to_first_round": self._to_first_round, "seconds": self.seconds}

    def failure(self) -> Failed:
        """Returns the end of the process's stderr, and its exit status."""
        status = self._process.wait()
        self._errors.seek(0)
        return failure(self._errors.read(), self.name, status)

    def _read(self):
        for line in self._process.stdout:
            self.inbox.put((self, json.loads(line)))
        self.inbox.put((self, None))


def failure(errors: str, name: str, status: int) -> Failed:
    """Returns the error of a process, with the last lines of its stderr."""
    return Failed("\n".join([*errors.splitlines()[-20:], f"error: {name} failed with exit status {status}"]))


def receive(inbox: queue.SimpleQueue) -> tuple[Lane, dict[str, Any]]:
    """Returns the next message of a lane.

    Raises:
        Failed: if the process has ended.
    """
    lane, message = inbox.get()
    if message is None:
        raise lane.failure()
    return lane, message


def compare(
    names: Sequence[T],
    start: Callable[[T, queue.SimpleQueue], Lane],
    repetitions: int,
    cores: Sequence[int] = (),
) -> Iterator[tuple[T, dict[str, Any], list[float]]]:
    """Each name with the final message of its lane and its ``speeds``; the first is the baseline, and comes last.

    ``start`` makes the lane of a name, with an inbox. Two lanes exist at a time.
    """
    inbox = queue.SimpleQueue()
    with start(names[0], inbox) as baseline:
        for name in names[1:]:
            with start(name, inbox) as lane:
                found = speeds(lane, baseline, repetitions, cores)
                yield name, lane.finish(), found
        if len(names) == 1:
            with wait(baseline.name, repetitions) as advance:
                for _ in range(repetitions):
                    run([baseline])
                    advance()
        yield names[0], baseline.finish(), []


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


def run(lanes: Sequence[Lane]) -> dict[Lane, list[dict[str, float]]]:
    """Runs rounds of all lanes at the same time, until each has run its number of rounds; faster lanes run more."""
    done, waiting, last = {lane: [] for lane in lanes}, set(lanes), set()
    for lane in lanes:
        lane.send(str(lane.rounds))
    while waiting:
        behind = {lane for lane in lanes if len(done[lane]) < lane.rounds}
        for lane in waiting - last:
            if behind <= {lane}:  # no other lane has rounds left
                lane.send("enough")
                last.add(lane)
        lane, message = receive(lanes[0].inbox)
        if "seconds" in message:
            done[lane].append(message)
            lane.seconds.append(message["seconds"])
        else:
            waiting.remove(lane)
    return done


def _at_once(pair, cores):
    """The ratio of the two on these cores, of the rounds that ran while the other lane was running, too."""
    for lane, core in zip(pair, cores, strict=True):
        lane.pin(core)
    done = run(pair)
    end = min(rounds[-1]["end"] for rounds in done.values())  # after which only one was running
    return _ratio(
        *([each for i, each in enumerate(done[lane]) if i < lane.rounds or each["end"] <= end] for lane in pair)
    )


def _ratio(rounds, others):
    return statistics.median(each["seconds"] for each in others) / statistics.median(each["seconds"] for each in rounds)
