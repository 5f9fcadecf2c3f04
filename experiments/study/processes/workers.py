"""Several processes on one machine that divide the runs of a study, each with a GPU or a part of the cores.

A worker is the launcher with ``--share``, which trains the next run that no other worker has. The parent leaves the
devices to the workers, reports progress, passes on signals, and replaces a worker that was killed.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import machine
from experiments.startup import STOPPED, STOPPED_EARLY, STOPPING
from experiments.study.failures import read_failure, write_failure
from experiments.study.more_rounds import is_done
from experiments.study.processes.lock import holder, only_process_in
from experiments.study.progress.console import ROUNDS_PER_LINE, Console
from experiments.study.progress.eta import Pace, duration
from experiments.study.resolving import RunSpec, StudySpec
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.config.folder import ERROR_LOG, LOCK, METRICS, TIMING
from fedjax_collapse.core.rows import last_row
from fedjax_collapse.results.metrics import headline_in, number

_PAUSE = 0.5  # seconds between two checks of the workers
_WRONG = 2  # exit status of a worker that could not start
_LAUNCHER = str(Path(__file__).resolve().parents[2] / "launch.py")


class Place(NamedTuple):
    """The part of the machine that a worker uses."""

    cores: list[int]
    variables: dict[str, str]


class Work(NamedTuple):
    """The launcher's arguments, and the study whose runs are divided."""

    arguments: list[str]
    study: StudySpec


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


def train_in_workers(work: Work, count: int, should_stop: Callable[[], bool], console: Console) -> int:
    """Returns the exit status of ``count`` workers.

    It is 0 if they have tried all runs, 2 for invalid input, 75 after a signal.

    Raises:
        UserError: another process runs the study.
    """
    progress = _Progress(work, count, console)
    what = f"training {len(work.study.runs)} runs in {count} processes"
    with (
        contextlib.ExitStack() as inside,
        _Workers(work, places(count)) as workers,
        console.wait(what, sum(progress.left().values())) as advance,
    ):
        is_inside = is_stopping = False
        while workers.are_left():
            time.sleep(_PAUSE)
            if not is_inside and (work.study.folder / LOCK).exists():  # made by the first worker
                inside.enter_context(only_process_in(work.study.folder, shared=True))
                is_inside = True
            advance(progress.show())
            if not is_stopping and (should_stop() or _WRONG in workers.statuses):
                is_stopping = True
                workers.stop()
    progress.show()
    reported = {f"error: {line}" for line in failures(work.study.runs)}  # by the parent, at its end
    for line in dict.fromkeys(workers.errors):
        if line not in reported:
            print(line, file=sys.stderr)
    if _WRONG in workers.statuses:
        return _WRONG
    return STOPPED if is_stopping or STOPPED in workers.statuses else 0


def last_round(run: Path) -> int:
    """Returns the last evaluated round of a run, by its folder; 0 before the first."""
    return last_row(run / METRICS).get("round", 0)


def failures(runs: Iterable[RunSpec]) -> list[str]:
    """Returns a message for every run without a result."""
    lines = []
    for run in runs:
        if not is_done(run):
            line = read_failure(run.folder)
            lines.append(f"{line}; log: {run.folder / ERROR_LOG}" if line else f"{run}: not finished; start it again")
    return lines


class _Workers:
    """The worker processes, one in each place; killed ones are replaced. All have ended when the context ends."""

    def __init__(self, work: Work, own: Sequence[Place]) -> None:
        self._runs, self._places, self._worker_group = work.study.runs, own, uuid.uuid4().hex
        self._command = [sys.executable, _LAUNCHER, *work.arguments, f"--share={self._worker_group}"]
        self._is_stopping = False
        self._left: dict[int, subprocess.Popen] = {}
        self._readers: list[threading.Thread] = []
        self._shown = {STOPPING, STOPPED_EARLY}  # printed by the parent instead
        self.statuses: list[int] = []  # exit statuses of ended workers
        self.errors: list[str] = []  # their error messages

    def __enter__(self) -> "_Workers":
        for i in range(len(self._places)):
            self._start(i)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        for worker in self._left.values():
            worker.wait()
        for reader in self._readers:
            reader.join(timeout=_PAUSE)

    def are_left(self) -> bool:
        """Returns whether any worker is left, after replacing those that were killed."""
        for i, worker in list(self._left.items()):
            if worker.poll() is None:
                continue
            self.statuses.append(self._left.pop(i).returncode)
            is_crash = worker.returncode not in (0, 1, _WRONG, STOPPED)
            if is_crash and not self._is_stopping:
                self._blame(worker)
                if len(self.statuses) < len(self._places) + len(self._runs):
                    self._start(i)
        return bool(self._left)

    def stop(self) -> None:
        """Makes each worker stop after a checkpoint."""
        for worker in () if self._is_stopping else self._left.values():
            worker.terminate()
        self._is_stopping = True

    def _start(self, i):
        """Starts a worker on the cores of its place, which its child processes inherit."""
        cores, variables = self._places[i]
        options = dict(
            text=True, errors="replace", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        with machine.on_cores(cores):
            self._left[i] = subprocess.Popen(self._command, env=os.environ | variables, **options)
        self._readers.append(threading.Thread(target=self._read, args=(self._left[i].stderr,), daemon=True))
        self._readers[-1].start()

    def _read(self, lines):
        """Prints what a worker writes to stderr, but no line twice; collects errors."""
        for line in map(str.rstrip, lines):
            if line.startswith("error: "):
                self.errors.append(line)
            elif line not in self._shown:
                self._shown.add(line)
                print(line, file=sys.stderr)

    def _blame(self, worker):
        """Records why the run of a killed worker is not finished; no worker of this group takes it again."""
        number = -worker.returncode
        known = {int(number) for number in signal.Signals}
        how = f"by {signal.Signals(number).name}" if number in known else f"with status {worker.returncode}"
        for run in self._runs:
            is_open = not is_done(run) and read_failure(run.folder) is None
            if is_open and holder(run.folder, self._worker_group) == worker.pid:
                write_failure(
                    run.folder, f"{run}: its process was ended {how}; SIGKILL may mean that memory was exhausted"
                )


def _gpus() -> Sequence[str]:
    """Returns NVIDIA's GPUs by their CUDA names, found without JAX, which would allocate their memory."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return ()
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(filter(None, visible.split(",")))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(str(i) for i, line in enumerate(line for line in listed.splitlines() if line.startswith("GPU ")))


class _Progress:
    """Reports the progress of runs that processes divide, from the files in their folders."""

    def __init__(self, work: Work, processes: int, console: Console) -> None:
        self._runs, self._processes, self._console, self._pace = work.study.runs, processes, console, Pace()
        self._rounds = {run.name: last_round(run.folder) for run in self._runs}
        self._start, self._shown, self._timed = (dict(self._rounds) for _ in range(3))  # their last rounds that were
        self._done = {run.name for run in self._runs if is_done(run)}
        self._failed = {run.name for run in self._runs if read_failure(run.folder)} - self._done  # of an earlier start

    def left(self) -> dict[RunName, int]:
        """Returns the remaining rounds of each run, 0 if it has ended."""
        rounds = {run.name: run.cell.values["rounds"] for run in self._runs}
        return {name: 0 if name in self._done else rounds[name] - done for name, done in self._rounds.items()}

    def show(self) -> int:
        """Prints new lines; returns the number of rounds that are new."""
        before = sum(self._rounds.values())
        for run in self._runs:
            if run.name in self._done:
                continue
            line = read_failure(run.folder)
            if line and run.name not in self._failed:
                self._console.note(f"failed: {line}")
            self._failed = self._failed | {run.name} if line else self._failed - {run.name}
            self._show_round(run)
        return sum(self._rounds.values()) - before

    def _show_round(self, run):
        row, is_over = last_row(run.folder / METRICS), is_done(run)
        round, rounds, shown = row.get("round", 0), run.cell.values["rounds"], self._shown[run.name]
        self._rounds[run.name] = round
        self._time(run)
        if is_over:
            self._done.add(run.name)
        if is_over or round >= shown + ROUNDS_PER_LINE or round > 0 == shown:
            self._shown[run.name] = round
            metric = headline_in(row)
            score = metric.say([row.get(metric.name)])
            ended = f"  finished, {len(self._done)} of {len(self._runs)}" * is_over
            left = self.left()
            own = duration(self._pace.seconds({run.name: left[run.name]}, is_compiled=True))
            study = duration(self._pace.seconds_divided(left, self._processes))
            self._console.note(f"{run}  round {round}/{rounds}  {score}{ended}  left {own} (study {study})")

    def _time(self, run):
        """Takes the seconds of the run's last evaluated rounds, unless they are known."""
        timing, every, last = last_row(run.folder / TIMING), run.cell.values["evaluate_every"], self._timed[run.name]
        if (round := timing.get("round", 0)) <= last:
            return
        self._timed[run.name] = round
        train, evaluate = (number(timing.get(phase)) for phase in ("train", "evaluate"))
        seconds = train + (evaluate if math.isfinite(evaluate) else 0)
        is_first = last == self._start[run.name]
        self._pace.add(run.cell.name, seconds, (round - 1) % every + 1, is_first)
        self._pace.add_compiling(run.name, number(timing.get("compile")))
