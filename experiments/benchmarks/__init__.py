"""The parts of ``experiments/benchmark.py``: what is trained, by which systems, and how one of them is timed."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from experiments.benchmarks.workloads import Task, Workload


class Round(NamedTuple):
    """What a system reports of a round that is finished; the first three have one entry a client."""

    losses: Any  # mean training cross-entropy over the examples seen
    samples: Any  # true samples trained on
    steps: Any  # optimizer steps
    processed: int  # samples computed, padding included
    layout: str


class Setting(NamedTuple):
    """What a system may use of the machine."""

    cores: int
    layout: tuple[int, int] | None  # devices and clients at once on each, for systems that have a choice


class System(NamedTuple):
    """A way to run a workload: ``module.function(workload, task, setting)`` yields a ``Round`` as each is finished."""

    module: str  # in this package; imported by the worker only, so that nobody else loads JAX or PyTorch
    function: str
    needs_torch: bool = False

    def load(self) -> Callable[[Workload, Task, Setting], Iterator[Round]]:
        """The function itself."""
        return getattr(importlib.import_module(f"{__name__}.{self.module}"), self.function)


SYSTEMS = {
    "fedjax_collapse": System("engine_rounds", "run"),
    "pytorch": System("pytorch_loops", "resident", needs_torch=True),
    "pytorch-dataloader": System("pytorch_loops", "dataloader", needs_torch=True),
    "pytorch-threads": System("pytorch_loops", "threads", needs_torch=True),
}
