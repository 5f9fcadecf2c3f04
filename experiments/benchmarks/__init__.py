"""The benchmark: the systems that are compared, the workloads that they train, and how a system is timed."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import Workload

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


class Setting(NamedTuple):
    """What a system may use of the machine."""

    cores: int
    task_file: Path  # the task, for systems that run in several processes
    layout: Sequence[int] | None = None  # devices, and clients at once on each, for systems that have a choice
    device: str = "cpu"  # or gpu, for systems of ``ON_GPU``


class System(NamedTuple):
    """A way to run a workload: ``module.function(workload, task, setting)`` yields a ``Round`` when it is finished.

    The cohorts of the task are repeated without end. A round starts when it is requested.
    """

    module: str  # in this package; imported by the worker only, so that no other process loads JAX or PyTorch
    function: str
    needs: dict[str, str]  # package: how to install it
    fits_one_core: bool = True

    def load(self) -> Callable[[Workload, Task, Setting], Iterator[Round]]:
        """The function."""
        return getattr(importlib.import_module(f"{__name__}.{self.module}"), self.function)


_TORCH = {"torch": PYTORCH}
OURS = "fedjax_collapse"
ON_GPU = ("fedjax_collapse", "pytorch", "pfl")
WITH_METHODS = ("fedjax_collapse", "fedjax_collapse-timed", "pytorch", "pytorch-threads")  # besides federated averaging
SYSTEMS = {
    "fedjax_collapse": System("engine_rounds", "run", {}),
    "fedjax_collapse-timed": System("engine_rounds", "timed", {}),
    "pytorch": System("pytorch_loops", "resident", _TORCH),
    "pytorch-dataloader": System("pytorch_loops", "dataloader", _TORCH),
    "pytorch-threads": System("pytorch_loops", "threads", _TORCH),
    "pfl": System("pfl_rounds", "run", {"pfl": PFL} | _TORCH),
    "flower": System("flower_rounds", "run", {"flwr": FLOWER, "ray": FLOWER} | _TORCH, fits_one_core=False),
}
