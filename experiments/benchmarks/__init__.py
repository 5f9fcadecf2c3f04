"""The benchmark: systems that train the same workloads, suites of comparisons, and a runner that times them."""

import asyncio
import importlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.workloads import Task, Workload

PYTORCH = 'pip install -e ".[benchmark]"'
FLOWER = 'pip install -e ".[flower]"'
PFL = "pip install pfl==0.6.0"


class Round(NamedTuple):
    """A system's report of a finished round; the first three fields have an entry for each client of the cohort."""

    losses: Any  # mean training loss over the examples, or tokens with a target, that were seen
    samples: Any  # true samples trained on, in all epochs
    steps: Any  # optimizer steps
    processed: int  # samples computed, with padding
    layout: str
    count: int = 1  # rounds that one request runs


class Setting(NamedTuple):
    """What a system may use of the machine."""

    cores: int
    task_file: Path = Path()  # the task, for systems that run in several processes
    layout: Sequence[int] | None = None  # devices, and clients at once on each, for systems that have a choice
    device: str = "cpu"  # or gpu
    options: tuple[tuple[str, Any], ...] = ()  # of our network: lowering and dtype


class System(NamedTuple):
    """A way to run a workload: ``module.function(workload, task, setting)`` yields a ``Round`` when it is finished.

    The cohorts of the task are repeated without end. A round starts when it is requested.
    """

    module: str  # of ``systems``; imported by the process that runs it, as only that needs its packages
    function: str
    needs: dict[str, str]  # package: how to install it
    devices: tuple[str, ...] = ("cpu",)
    has_methods: bool = False  # besides federated averaging
    fits_one_core: bool = True

    def load(self) -> Callable[[Workload, Task, Setting], Iterator[Round]]:
        """Returns the function."""
        return getattr(importlib.import_module(f"{__name__}.systems.{self.module}"), self.function)


_TORCH, _BOTH = {"torch": PYTORCH}, ("cpu", "gpu")
OURS = "fedjax_collapse"
SYSTEMS = {
    "fedjax_collapse": System("engine_rounds", "run", {}, _BOTH, has_methods=True),
    "pytorch": System("pytorch_loops", "resident", _TORCH, _BOTH, has_methods=True),
    "pytorch-threads": System("pytorch_loops", "threads", _TORCH, has_methods=True),
    "pytorch-graph": System("pytorch_graph", "float32", _TORCH, ("gpu",), has_methods=True),
    "pytorch-graph-bfloat16": System("pytorch_graph", "bfloat16", _TORCH, ("gpu",), has_methods=True),
    "pfl": System("pfl_rounds", "run", {"pfl": PFL} | _TORCH, _BOTH),
    "flower": System("flower_rounds", "run", {"flwr": FLOWER, "ray": FLOWER} | _TORCH, fits_one_core=False),
}
MANY = 10**6  # rounds to ask such a loop for: more than are ever timed


class _Over(BaseException):
    """Raised in the loop to end it when no more rounds are needed."""


def rounds_of(train: Callable[[Callable[[Round], None]], None]) -> Iterator[Round]:
    """Yields the rounds that ``train(report)`` reports; ``report`` blocks until the next round is requested.

    ``train`` runs in a separate thread; its exceptions are raised here. Closing the iterator ends the thread.
    """
    reports, asked = queue.SimpleQueue(), queue.SimpleQueue()

    def report(round):
        reports.put(round)
        if not asked.get():
            raise _Over

    def run():
        asyncio.set_event_loop(asyncio.new_event_loop())  # which only the main thread has by itself
        try:
            train(report)
        except BaseException as error:
            reports.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not isinstance(found := reports.get(), BaseException):
            yield found
            asked.put(True)
        raise found
    finally:
        asked.put(False)
        thread.join()
