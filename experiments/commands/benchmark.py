"""Throughput of federated learning on this machine, compared with PyTorch loops and other simulators.

    fedjax-collapse benchmark --only=mlp100,cnn100 --json=FILE
    fedjax-collapse benchmark --only=pfl --systems=fedjax_collapse,pytorch,pfl,flower --json=FILE
    fedjax-collapse benchmark --only=table6 --scale=0.02 --turns
    fedjax-collapse benchmark --systems=fedjax_collapse --variant="float32 JAX_DEFAULT_MATMUL_PRECISION=float32"
    fedjax-collapse benchmark --only=mlp100,cnn100,table6 --device=gpu --systems=fedjax_collapse,pytorch,pytorch-graph
    fedjax-collapse benchmark --suite=networks --only=resnet18,mobilenet_v2
    fedjax-collapse benchmark --suite=networks --device=gpu --seconds=200 --lowerings=auto,patches,xla
    fedjax-collapse benchmark --suite=methods --only=ditto
    fedjax-collapse benchmark --suite=growth

Every system runs in a separate process and trains the same network from the same weights, on the same cohorts of the
same split, with the same hyperparameters (``benchmarks/workloads.py``). ``ratio`` is the speed of a round divided by
the speed of the baseline, which is the first PyTorch loop of ``--systems``, else its first system. The speed of a
machine changes from minute to minute; therefore a system and the baseline run at the same time, each pinned to a core,
then with the cores swapped. The ratio is the median over ``--repetitions`` of the geometric mean of the two, with the
smallest and the largest. With ``--turns`` or ``--layout``, on a GPU, with one core, and for a system of several
processes, they run alternately, with all cores. ``--variant`` is our engine with other environment variables.

``--suite=networks`` compares a local step of each network and lowering with PyTorch, and ``growth`` rounds of 10, 100
and 1,000 clients, both alternately, with all cores (``benchmarks/suites.py``). The other suites are interleaved rounds
of one process (``benchmarks/overheads.py``): ``methods`` over federated averaging, ``augmentations`` over none,
``storage`` on disk over memory, and all weights over ``adapters``. ``--only`` chooses some of what a suite measures.

With ``--seconds``, all programs are compiled first, side by side, and then timed one after another, alone, until the
time is over. A ratio is then of medians, from the slowest round over the baseline's fastest to the contrary.
"""

import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any

from experiments.benchmarks import SYSTEMS, arguments, tables
from experiments.benchmarks.runner import Failed
from experiments.benchmarks.suites import SUITES
from experiments.benchmarks.timing import Timing
from experiments.machine import gpus, num_cores, versions
from experiments.parser import Parser


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 for wrong arguments and missing packages, 130 if Ctrl-C ended it."""
    asked = arguments.parse(argv, __doc__)
    asked.systems = available(asked.systems)
    if not asked.systems and not asked.variants:
        print("error: none of the systems can run here; install the packages named above", file=sys.stderr)
        return 2
    try:
        with Timing(asked) as timing:
            rows = list(timing.rows())
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the processes received it, too
        print("stopped; no measurement was saved", file=sys.stderr)
        return 130
    print(tables.table(SUITES[asked.suite].columns, rows))
    if timing.left_out:
        print("left out:", *(f"{name}: {why}" for name, why in timing.left_out.items()), sep="\n")
    if asked.json:
        found = {"environment": environment(asked.device), "rows": rows}
        asked.json.write_text(json.dumps(found | {"left_out": timing.left_out}, indent=2) + "\n")
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    return arguments.command_line(__doc__)


def available(systems: list[str]) -> list[str]:
    """The systems that can run here; reports which are left out and how to install what they need."""
    needs = {package: how for name in systems for package, how in SYSTEMS[name].needs.items()}
    missing = {package: how for package, how in needs.items() if importlib.util.find_spec(package) is None}
    for package, how in missing.items():
        left_out = ", ".join(name for name in systems if package in SYSTEMS[name].needs)
        print(f"{package} is not installed, leaving out {left_out}; install it by {how}", file=sys.stderr)
    return [name for name in systems if not missing.keys() & SYSTEMS[name].needs.keys()]


def environment(device: str) -> dict[str, Any]:
    """Returns the machine, the precision of matrix products, and versions; None for a package that is not installed."""
    cpu = _field("/proc/cpuinfo", "model name") or platform.machine()
    name, products = (cpu, "float32") if device == "cpu" else (", ".join(gpus()), "TF32 of float32")
    machine = {"device": name, "products": products, "cores": num_cores(), "python": platform.python_version()}
    return machine | versions(("jax", "torch", "pfl", "flwr", "ray")) | {"platform": platform.platform()}


def _field(path, name):
    """Returns the first value of this name in a file of ``name: value``; None if there is none."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
