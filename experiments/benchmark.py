"""Throughput of federated learning, side by side with PyTorch loops and other simulators, on this machine.

    python experiments/benchmark.py --workloads=mlp100,cnn100 --json=FILE
    python experiments/benchmark.py --workloads=pfl --systems=fedjax_collapse,pytorch,pfl,flower --figure=FILE.svg
    python experiments/benchmark.py --workloads=table6 --scale=0.02
    python experiments/benchmark.py --methods
    python experiments/benchmark.py --augmentations
    python experiments/benchmark.py --networks=resnet18,mobilenet_v2
    python experiments/benchmark.py --growth
    python experiments/benchmark.py --workloads=mlp100,cnn100,table6 --device=gpu

Every system trains the same networks from the same weights on the same cohorts of the same split with the same
hyper-parameters (``benchmarks/workloads.py``), each in a fresh process, one after another. ``ratio`` compares true
samples per second with the best PyTorch loop that was run on the same workload. ``--methods`` times every method
against federated averaging instead, ``--augmentations`` every augmentation against none (``benchmarks/overheads.py``),
``--networks`` a local step of each network and lowering beside PyTorch (``benchmarks/network_steps.py``), ``--growth``
rounds of 10, 100 and 1,000 clients (``benchmarks/growth.py``). Machines are noisy: compare rows of one call only.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)  # so that ``experiments`` is found from any folder

if __name__ == "__main__":  # before the imports, of which one may be missing
    from experiments.early import check_packages

    check_packages()

from experiments.benchmarks import SYSTEMS, arguments, growth, network_steps, tables  # noqa: E402
from experiments.benchmarks.environment import environment  # noqa: E402
from experiments.benchmarks.tables import Row  # noqa: E402
from experiments.benchmarks.worker import Job, Measurement  # noqa: E402
from experiments.benchmarks.workloads import WORKLOADS  # noqa: E402
from experiments.machine import num_cores  # noqa: E402

_OVERHEAD_ROUNDS, _NETWORK_ROUNDS = 9, 5  # of each, unless asked otherwise
_ENVIRONMENT = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it would hide what a first start costs
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PLATFORM = {"cpu": {"JAX_PLATFORMS": "cpu"}, "gpu": {"JAX_PLATFORMS": "cuda"}}


class Failure(Exception):
    """What goes wrong outside the user's hands: what to print before leaving with exit status 1."""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 (from argparse) for wrong arguments, 130 if Ctrl-C ended it."""
    asked = arguments.parse(argv, __doc__)
    try:
        rows, table = _measure(asked)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the worker, too, has got it
        print("stopped; nothing is kept of what was measured", file=sys.stderr)
        return 130
    print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps({"environment": environment(asked.device), "rows": rows}, indent=2) + "\n")
    if asked.figure:
        from experiments.benchmarks import bars

        bars.draw(rows, asked.figure)
    return 0


def _measure(asked: Namespace) -> tuple[list[Row], Callable[[list[Row]], str]]:
    """The rows that are asked for, and what makes a table of them."""
    if asked.methods:
        return run_overheads("methods", asked), tables.overhead_table
    if asked.augmentations:
        return run_overheads("augmentations", asked), tables.augmentation_table
    if asked.networks:
        return tables.add_network_ratios(list(run_networks(asked))), tables.network_table
    if asked.growth:
        return tables.add_growth(list(run_growth(asked))), tables.growth_table
    return tables.add_ratios(list(run(asked))), tables.table


def run(asked: Namespace) -> Iterator[Row]:
    """A row for each system of each workload, as they are measured."""
    systems = available(asked.systems)
    if not systems:
        raise Failure("benchmark.py: no system is left to run")
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.workloads:
            _worker(f"making {workload}", "prepare", folder, str(asked.scale), str(asked.rounds or 0), workload)
            rounds, work = asked.rounds or WORKLOADS[workload].rounds, set()
            for system in systems:
                measured, total = _time(folder, workload, workload, system, rounds, asked)
                work.add((measured.samples, measured.steps))
                if len(work) > 1:
                    raise Failure(f"{workload}: the systems did different work (samples, steps): {sorted(work)}")
                yield tables.make_row(workload, system, total, measured, asked.scale)


def run_overheads(kind: str, asked: Namespace) -> list[Row]:
    """A row for each of the ``methods`` or ``augmentations``, all measured in one worker."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = str(asked.rounds or _OVERHEAD_ROUNDS)
        _worker(f"timing the {kind}", kind, folder, rounds, str(num_cores()), str(asked.scale))
        return json.loads(Path(folder, "measurement.json").read_text())


def run_networks(asked: Namespace) -> Iterator[Row]:
    """A row for each system of each network, as they are measured."""
    rivals = available(["pytorch", "pytorch-threads"])
    with tempfile.TemporaryDirectory() as folder:
        for network in asked.networks:
            lowerings = asked.lowerings if network != "mlp" else ["auto"]
            for system in [*lowerings, *rivals]:
                case = network_steps.Case(network, system, asked.rounds or _NETWORK_ROUNDS, num_cores())
                _worker(f"{network} {system}", "network", folder, json.dumps(case._asdict()))
                measured = network_steps.Measurement(**json.loads(Path(folder, "measurement.json").read_text()))
                yield tables.network_row(network, system, measured)


def run_growth(asked: Namespace) -> Iterator[Row]:
    """A row for each number of clients of each workload, as they are measured."""
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.growth:
            for clients, default_rounds in growth.ROUNDS.items():
                rounds = asked.rounds or default_rounds
                _worker(f"making {workload}", "grow", folder, str(clients), str(rounds), workload)
                task = f"{workload}-{clients}"
                measured, _ = _time(folder, task, workload, "fedjax_collapse", rounds, asked)
                yield tables.growth_row(workload, clients, measured)


def is_installed(package: str) -> bool:
    """Whether the package can be imported here."""
    return importlib.util.find_spec(package) is not None


def available(systems: list[str], is_installed: Callable[[str], bool] = is_installed) -> list[str]:
    """The systems that can run here; says which are left out and how to install what they need."""
    needs = {package: how for name in systems for package, how in SYSTEMS[name].needs.items()}
    missing = {package: how for package, how in needs.items() if not is_installed(package)}
    for package, how in missing.items():
        left_out = ", ".join(name for name in systems if package in SYSTEMS[name].needs)
        print(f"{package} is not installed, leaving out {left_out}; install it by {how}", file=sys.stderr)
    return [name for name in systems if not missing.keys() & SYSTEMS[name].needs.keys()]


def _time(folder, task, workload, system, rounds, asked):
    """What a worker measured of a system, and how long it took in all."""
    started = time.time()
    profile = str(asked.profile) if asked.profile else None
    job = Job(task, workload, system, rounds, num_cores(), asked.layout, started, asked.device, profile)
    _worker(f"{task} {system}", "time", folder, json.dumps(job._asdict()), device=asked.device)
    total = time.time() - started
    return Measurement(**json.loads(Path(folder, "measurement.json").read_text())), total


def _worker(title, *command, device="cpu"):
    """Runs a worker to its end; raises Failure with the end of its stderr."""
    print(f"{title} ...", file=sys.stderr)
    paths = [ROOT, os.environ.get("PYTHONPATH", "")]
    process = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.worker", *command],
        env=os.environ | _ENVIRONMENT | _PLATFORM[device] | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode:
        tail = "\n".join(process.stderr.splitlines()[-20:])
        raise Failure(f"{tail}\nbenchmark.py: {title} failed with exit status {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
