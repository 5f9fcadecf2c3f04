"""Systems that are compared while they run, each in a process of its own that runs rounds as it is told to.

A machine that others use changes its speed from minute to minute. So two systems are timed at the same time, pinned to
a core each, and once more with the cores swapped; or, with all cores, by turns. A repetition is one such comparison,
and what is told of several is their median with the smallest and the largest.
"""

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from experiments.study.machine import on_cores

T = TypeVar("T")


class Failed(Exception):
    """A lane's process ended, with the end of what it said."""


class Lane:
    """A process that has warmed up and waits; a context, at whose end it is gone.

    Args:
        command: of a process that works as ``worker.serve`` does.
        rounds: how many it runs in a turn, or more if it is faster than the other one.
        inbox: of all lanes that are compared.
        cores: to which it is pinned; all if there are none.
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
        self._to_first_round = receive(self.inbox)[1]["first_round_at"] - self._start
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def tell(self, line: str) -> None:
        """Sends a line; to a process that has ended, nothing."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def pin(self, core: int) -> None:
        """Moves the process with all its threads to one core."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread), {core})

    def finish(self) -> dict[str, Any]:
        """What it says at its end, and the seconds of its rounds."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        said = receive(self.inbox)[1]
        self._process.kill()
        self.inbox.get()  # that it has ended
        return {**said, "seconds_to_first_round": self._to_first_round, "seconds": self.seconds}

    def failure(self) -> Failed:
        """Why it has ended."""
        status = self._process.wait()
        self._errors.seek(0)
        tail = "\n".join(self._errors.read().splitlines()[-20:])
        return Failed(f"{tail}\nbenchmark.py: {self.name} failed with exit status {status}")

    def _read(self):
        for line in self._process.stdout:
            self.inbox.put((self, json.loads(line)))
        self.inbox.put((self, None))


def receive(inbox: queue.SimpleQueue) -> tuple[Lane, dict[str, Any]]:
    """The next message of a lane.

    Raises:
        Failed: it has ended instead.
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
    """Each of the names with what its lane says at its end, and its ``speeds``; the first name, theirs, comes last.

    ``start``: makes the lane of a name, of that inbox. Two lanes are there at a time.
    """
    inbox = queue.SimpleQueue()
    with start(names[0], inbox) as baseline:
        for name in names[1:]:
            with start(name, inbox) as lane:
                found = speeds(lane, baseline, repetitions, cores)
                yield name, lane.finish(), found
        for _ in range(repetitions if len(names) == 1 else 0):
            run([baseline])
        yield names[0], baseline.finish(), []


def speeds(lane: Lane, baseline: Lane, repetitions: int, cores: Sequence[int] = ()) -> list[float]:
    """In every repetition, how many times as fast as the baseline's the lane's rounds are.

    ``cores``: two, on which both run at the same time; none, and they run by turns, each time the other one first.
    """
    pair, found = (lane, baseline), []
    for repetition in range(repetitions):
        print(f"{lane.name} compared with {baseline.name}, {repetition + 1} of {repetitions} ...", file=sys.stderr)
        if cores:
            ratios = [_at_once(pair, places) for places in (cores, cores[::-1])]
        else:
            done = {each: run([each])[each] for each in pair[:: (-1) ** repetition]}
            ratios = [_ratio(done[lane], done[baseline])]
        found.append(statistics.geometric_mean(ratios))
    return found


def run(lanes: Sequence[Lane]) -> dict[Lane, list[dict[str, float]]]:
    """Rounds of all lanes at the same time, until each has run as many as it is to; the faster ones run more."""
    done, waiting, last = {lane: [] for lane in lanes}, set(lanes), set()
    for lane in lanes:
        lane.tell(str(lane.rounds))
    while waiting:
        behind = {lane for lane in lanes if len(done[lane]) < lane.rounds}
        for lane in waiting - last:
            if behind <= {lane}:  # nobody else needs its company
                lane.tell("enough")
                last.add(lane)
        lane, message = receive(lanes[0].inbox)
        if "seconds" in message:
            done[lane].append(message)
            lane.seconds.append(message["seconds"])
        else:
            waiting.remove(lane)
    return done


def _at_once(pair, cores):
    for lane, core in zip(pair, cores, strict=True):
        lane.pin(core)
    done = run(pair)
    end = min(rounds[-1]["end"] for rounds in done.values())  # after which one of them was alone
    return _ratio(*(_in_company(lane, done[lane], end) for lane in pair))


def _in_company(lane, rounds, end):
    """Those of the lane's rounds that another was there for: as many as it is to run, and more that ended with it."""
    return [each for number, each in enumerate(rounds) if number < lane.rounds or each["end"] <= end]


def _ratio(own, others):
    return statistics.median(each["seconds"] for each in others) / statistics.median(each["seconds"] for each in own)
