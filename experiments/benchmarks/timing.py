"""Times the arms of a suite: in pairs, alternately in one process, or, in a given time, one after another."""

import contextlib
import signal
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from experiments import machine
from experiments.benchmarks import OURS, Setting, overheads, runner, tables
from experiments.benchmarks.runner import Failed, Lane, Measurement, Worker
from experiments.benchmarks.suites import SUITES, Arm, Case
from experiments.benchmarks.workloads import Workload
from experiments.waiting import wait

_COMPILING = 0.6  # of the time that is given, at most
_AT_ONCE = 5  # programs that are compiled on a GPU, whose memory XLA's autotuning takes: twelve were too many
_ROUNDS = 9  # of arms in one process, unless asked otherwise
_ENVIRONMENT = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it would hide the cost of a first start
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_CACHED = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
_PLATFORM = {
    "cpu": {"JAX_PLATFORMS": "cpu", "PFL_PYTORCH_DEVICE": "cpu"},
    "gpu": {  # two systems share its memory
        "JAX_PLATFORMS": "cuda,cpu",
        "PFL_PYTORCH_DEVICE": "cuda",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    },
}
_Found = list[tuple[Arm, Measurement, list[float]]]  # with the speeds relative to the baseline


class Timing(contextlib.ExitStack):
    """The measurement of a suite; a context manager that deletes its files.

    Attributes:
        left_out: why arms are not in the rows, by title and name.

    Args:
        asked: see ``arguments.py``.
    """

    def __init__(self, asked: Namespace) -> None:
        super().__init__()
        self.asked, self.left_out, self._started = asked, {}, time.time()
        self._tasks: dict[Workload, Path] = {}
        self._folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self._environment = _ENVIRONMENT | _PLATFORM[asked.device]

    def rows(self) -> Iterator[tables.Row]:
        """Yields the rows of all arms.

        Raises:
            Failed: a system failed, or did other work than another one.
        """
        cases, work = SUITES[self.asked.suite].cases, {}
        if cases is None:
            yield from self._in_one_process()
        for case, found in () if cases is None else self._found(list(cases(self.asked))):
            for arm, measured, ratios in found:
                work.setdefault((case.title, arm.workload), set()).add((measured.samples, measured.steps))
                yield tables.row(case.title, arm.name, measured, case.timed, ratios, self.asked.scale)
        for (title, _), done in work.items():
            if len(done) > 1:
                raise Failed(f"error: {title}: samples and steps differ between systems: {sorted(done)}")

    def _found(self, cases: list[Case]) -> Iterator[tuple[Case, _Found]]:
        if self.asked.seconds:
            yield from self._in_time(cases)
            return
        for case in cases:
            found = list(runner.compare(case.arms, partial(self._lane, case), self.asked.repetitions, case.cores))
            samples = found[-1][1].samples
            found = [(arm, one, [ratio * one.samples / samples for ratio in ratios]) for arm, one, ratios in found]
            yield case, [found[-1], *found[:-1]] if self.asked.suite == "growth" else found

    def _in_one_process(self):
        worker = Worker(f"timing the {self.asked.suite}", _take_turns, [self.asked], self._environment)
        with worker, wait(worker.name) as advance:
            while (message := worker.receive()) is not None:
                if isinstance(message, int):
                    advance(total=message)
                    continue
                title, found = message
                baseline = next(iter(found.values())).seconds
                for name, measured in found.items():
                    pairs = list(zip(measured.seconds, baseline, strict=True))
                    ratios = [base / one for one, base in pairs]
                    row = tables.row(title, name, measured, "by turns", ratios, self.asked.scale)
                    added = statistics.median(one - base for one, base in pairs)
                    yield row | {"microseconds_added": 1e6 * added / measured.samples}

    def _in_time(self, cases: list[Case]) -> Iterator[tuple[Case, _Found]]:
        """Compiles side by side, then times each arm alone; ratios are of medians, and of opposite extremes."""
        self._environment |= _CACHED | {"JAX_COMPILATION_CACHE_DIR": str(self._folder / "cache")}
        arms = {f"{case.title} {arm.name}": (case, arm) for case in cases for arm in case.arms}
        # the lowerings of "timed" are chosen when nothing else runs
        programs = [name for name, (_, arm) in arms.items() if arm.system == OURS and "timed" not in arm.name]
        found, self.left_out = {}, dict.fromkeys(arms, "not compiled in time")
        with self._until(_COMPILING), wait("making tasks and compiling, side by side"):
            tasks = {arm.workload: partial(self._preparation, arm) for _, arm in arms.values()}
            for _, failure in runner.side_by_side(tasks.values(), machine.num_cores()):
                if failure:
                    raise Failed(failure)
            self.left_out |= dict.fromkeys(arms.keys() - programs, "")
            starts = [partial(self._compilation, name, arms[name][1]) for name in programs]
            cores = machine.num_cores()
            at_once = cores if self.asked.device == "cpu" else min(cores, _AT_ONCE)
            self.left_out.update(runner.side_by_side(starts, at_once))
        ready = [name for name, why in self.left_out.items() if not why]
        self.left_out |= dict.fromkeys(ready, "not timed in time")
        with self._until(1.0):
            for name in ready:
                try:
                    with self._lane(*arms[name]) as lane:
                        runner.run([lane])
                        found[name] = lane.finish()
                    del self.left_out[name]
                except Failed as failure:
                    self.left_out[name] = str(failure)
        for case in cases:
            of_case = [(arm, found[name]) for name, (its, arm) in arms.items() if its is case and name in found]
            spreads = [tables.spread(measured.seconds) for _, measured in of_case]
            opposite = (("median", "median"), ("min", "max"), ("max", "min"))
            ratios = [[spreads[0][one] / own[other] for one, other in opposite] for own in spreads]
            rows = [(*each, own) for each, own in zip(of_case, [[], *ratios[1:]], strict=bool(of_case))]
            yield case._replace(timed="alone"), rows

    @contextlib.contextmanager
    def _until(self, part: float) -> Iterator[None]:
        """Ends the body when this part of the given time is over."""

        def stop(*signal):
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        with contextlib.suppress(TimeoutError):
            try:
                signal.setitimer(signal.ITIMER_REAL, max(self._started + part * self.asked.seconds - time.time(), 1e-3))
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)

    def _lane(self, case: Case, arm: Arm) -> Lane:
        if arm.workload not in self._tasks:
            with self._preparation(arm) as worker, wait(worker.name):
                worker.receive()
        setting = self._setting(arm)._replace(cores=1 if case.cores else machine.num_cores())
        arguments = arm.system, arm.workload, setting, arm.rounds
        rounds = -(-arm.rounds // (1 if self.asked.seconds else self.asked.repetitions))
        title, environment = f"{case.title} {arm.name}", self._environment | dict(arm.environment)
        return Lane(title, runner.serve_system, arguments, environment, case.cores[:1], rounds=rounds)

    def _preparation(self, arm: Arm) -> Worker:
        file = self._tasks[arm.workload] = self._folder / f"{len(self._tasks)}.task"
        environment = self._environment | {"JAX_PLATFORMS": "cpu"}
        return Worker("making a task", runner.prepare, (arm.workload, arm.rounds, file), environment)

    def _compilation(self, name: str, arm: Arm) -> Worker:
        return Worker(name, runner.compile_ours, (arm.workload, self._setting(arm)), self._environment)

    def _setting(self, arm: Arm) -> Setting:
        file = self._tasks[arm.workload]
        return Setting(machine.num_cores(), file, arm.layout, self.asked.device, arm.options)


def _take_turns(connection: Connection, asked: Namespace) -> None:
    """Sends the measurements of the arms of a suite by title, and before them the number of rounds, after each."""
    total, rounds = 0, asked.rounds or _ROUNDS
    for title, arms in overheads.arms(asked, machine.num_cores()):
        total += len(arms) * (runner.WARM_UP + rounds)
        connection.send((title, runner.interleave(arms, rounds, partial(connection.send, total), asked.device)))
    connection.send(None)
