"""Throughput of federated learning on this machine, compared with PyTorch loops and other simulators.

    fedjax-collapse benchmark --workloads=mlp100,cnn100 --json=FILE
    fedjax-collapse benchmark --workloads=pfl --systems=fedjax_collapse,pytorch,pfl,flower --figure=FILE.svg
    fedjax-collapse benchmark --workloads=table6 --scale=0.02 --turns
    fedjax-collapse benchmark --systems=fedjax_collapse --variant="float32 JAX_DEFAULT_MATMUL_PRECISION=float32"
    fedjax-collapse benchmark --methods
    fedjax-collapse benchmark --methods=ditto --like=fedavg20
    fedjax-collapse benchmark --augmentations
    fedjax-collapse benchmark --storage
    fedjax-collapse benchmark --adapters
    fedjax-collapse benchmark --networks=resnet18,mobilenet_v2
    fedjax-collapse benchmark --growth
    fedjax-collapse benchmark --workloads=mlp100,cnn100,table6 --device=gpu

Every system runs in a separate process and trains the same network from the same weights, on the same cohorts of the
same split, with the same hyperparameters (``benchmarks/workloads.py``). ``ratio`` is the speed of a round divided by
the speed of the baseline, which is the first PyTorch loop of ``--systems``, else its first system. The speed of a
machine changes from minute to minute; therefore a system and the baseline run at the same time, each pinned to a core,
then with the cores swapped. The ratio is the median over ``--repetitions`` of the geometric mean of the two, with the
smallest and the largest. With ``--turns`` or ``--layout``, on a GPU, with one core, and for a system of several
processes, they run alternately, with all cores.

``--variant`` is our engine with other environment variables, such as ``XLA_FLAGS``. ``--methods`` compares methods with
federated averaging instead, all or those named, ``--augmentations`` every augmentation with none
(``benchmarks/overheads.py``), ``--storage`` a store on disk with memory (``benchmarks/storage_rounds.py``), and
``--adapters`` low-rank adapters with all weights (``benchmarks/adapter_rounds.py``), all in interleaved rounds of one
process. ``--networks`` compares a local step of each network and lowering with PyTorch
(``benchmarks/network_steps.py``), and ``--growth`` rounds of 10, 100 and 1,000 clients (``benchmarks/growth.py``), both
alternately, with all cores.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks import ON_GPU, OURS, SYSTEMS, arguments, growth, lanes, tables
from experiments.benchmarks.environment import environment
from experiments.benchmarks.lanes import Lane
from experiments.benchmarks.network_steps import NOT_CONVOLUTIONAL
from experiments.benchmarks.tables import Row
from experiments.benchmarks.worker import Measurement
from experiments.benchmarks.workloads import WORKLOADS
from experiments.commands.parser import Parser
from experiments.study import machine
from experiments.study.waiting import wait

_OVERHEAD_ROUNDS, _NETWORK_ROUNDS = 9, 5  # of each, by default
_ENVIRONMENT = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it would hide the cost of a first start
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PLATFORM = {
    "cpu": {"JAX_PLATFORMS": "cpu", "PFL_PYTORCH_DEVICE": "cpu"},
    "gpu": {  # two systems share its memory
        "JAX_PLATFORMS": "cuda,cpu",
        "PFL_PYTORCH_DEVICE": "cuda",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    },
}


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 for wrong arguments and missing packages, 130 if Ctrl-C ended it."""
    asked = arguments.parse(argv, __doc__)
    if asked.mode == "workloads":
        asked.systems = available(asked.systems)
        if not asked.systems and not asked.variants:
            print("error: none of the systems can run here; install the packages named above", file=sys.stderr)
            return 2
    run = {"workloads": run_workloads, "networks": run_networks, "growth": run_growth}.get(asked.mode, run_overheads)
    try:
        rows = run(asked)
    except lanes.Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the worker received it, too
        print("stopped; no measurement was saved", file=sys.stderr)
        return 130
    print(tables.table(asked.mode, rows))
    if asked.json:
        asked.json.write_text(json.dumps({"environment": environment(asked.device), "rows": rows}, indent=2) + "\n")
    if asked.figure:
        from experiments.benchmarks import bars

        bars.draw(rows, asked.figure)
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    return arguments.command_line(__doc__)


def run_workloads(asked: Namespace) -> list[Row]:
    """A row for each system of each workload, and one for each way in which the baseline was timed."""
    systems, rows = [*asked.systems, *asked.variants], []
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.workloads:
            rounds, task = asked.rounds or WORKLOADS[workload].rounds, f"{folder}/{workload}.npz"
            _worker(f"making {workload}", "prepare", task=task, workload=workload, rounds=rounds, scale=asked.scale)
            work = set()
            for way, names in ways(asked, systems):
                start = functools.partial(_system, asked, workload, task, workload, rounds, way.cores)
                for name, found, ratios in lanes.compare(names, start, asked.repetitions, way.cores):
                    measured = Measurement(**found)
                    work.add((measured.samples, measured.steps))
                    rows.append(tables.workload_row(workload, name, measured, way.name, ratios, asked.scale))
            if len(work) > 1:
                raise lanes.Failed(f"error: {workload}: samples and steps differ between systems: {sorted(work)}")
    return rows


class Way(NamedTuple):
    """How systems are timed: two at a time on these cores, or, without, alternately with all cores."""

    name: str
    cores: tuple[int, ...] = ()


def ways(asked: Namespace, systems: list[str]) -> list[tuple[Way, list[str]]]:
    """The ways of timing and the systems that each applies to, the baseline first."""
    baseline = next((name for name in systems if name.startswith("pytorch")), systems[0])
    others = [name for name in systems if name != baseline]
    pinned, cores = [], machine.cores()
    if not asked.turns and asked.device == "cpu" and machine.can_pin() and len(cores) > 1 and not asked.layout:
        pinned = [name for name in others if SYSTEMS.get(name, SYSTEMS[OURS]).fits_one_core]
    alternate = [name for name in others if name not in pinned]
    found = [(Way("a core each", (cores[0], cores[-1])), [baseline, *pinned])] if pinned else []
    if alternate or not pinned:
        found.append((Way("alternately" if alternate else "alone"), [baseline, *alternate]))
    return found


def run_overheads(asked: Namespace) -> list[Row]:
    """Rows of methods, augmentations, kinds of storage or adapters, all measured in one worker."""
    with tempfile.TemporaryDirectory() as folder:
        file, rounds = Path(folder, "measurement.json"), asked.rounds or _OVERHEAD_ROUNDS
        options = dict(kind=asked.mode, rounds=rounds, cores=machine.num_cores(), scale=asked.scale, file=str(file))
        options |= dict(names=asked.methods, like=asked.like, device=asked.device)
        _worker(f"timing the {asked.mode}", "overheads", **options)
        return json.loads(file.read_text())


def run_networks(asked: Namespace) -> list[Row]:
    """A row for each system of each network."""
    rows, rounds = [], asked.rounds or _NETWORK_ROUNDS
    for network in asked.networks:
        systems = [
            *available([name for name in ("pytorch", "pytorch-threads") if asked.device == "cpu" or name in ON_GPU]),
            *(["auto"] if network in NOT_CONVOLUTIONAL else asked.lowerings),
        ]

        def start(system, inbox, network=network):
            options = dict(network=network, system=system, cores=machine.num_cores(), device=asked.device)
            command = _command("network", **options)
            return _lane(asked, f"{network} {system}", rounds, inbox, command)

        for system, found, ratios in lanes.compare(systems, start, asked.repetitions):
            rows.append(tables.network_row(network, system, found, ratios, asked.device))
    return rows


def run_growth(asked: Namespace) -> list[Row]:
    """A row for each number of clients of each workload."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.growth:
            rounds = {clients: asked.rounds or default for clients, default in growth.ROUNDS.items()}
            tasks = {clients: f"{folder}/{workload}-{clients}.npz" for clients in rounds}
            for clients, task in tasks.items():
                options = dict(task=task, workload=workload, rounds=rounds[clients], clients=clients)
                _worker(f"making {workload}", "prepare", **options)

            def start(clients, inbox, workload=workload, rounds=rounds, tasks=tasks):
                title = f"{workload}-{clients}"
                return _system(asked, title, tasks[clients], workload, rounds[clients], (), OURS, inbox)

            compared = list(lanes.compare(list(rounds), start, asked.repetitions))
            first = compared[-1][1]["samples"]  # of the baseline
            for clients, found, ratios in compared[-1:] + compared[:-1]:
                costs = [first / found["samples"] / ratio for ratio in ratios]
                rows.append(tables.growth_row(workload, clients, Measurement(**found), costs))
    return rows


def is_installed(package: str) -> bool:
    """Whether the package can be imported."""
    return importlib.util.find_spec(package) is not None


def available(systems: list[str], is_installed: Callable[[str], bool] = is_installed) -> list[str]:
    """The systems that can run here; reports which are left out and how to install what they need."""
    needs = {package: how for name in systems for package, how in SYSTEMS[name].needs.items()}
    missing = {package: how for package, how in needs.items() if not is_installed(package)}
    for package, how in missing.items():
        left_out = ", ".join(name for name in systems if package in SYSTEMS[name].needs)
        print(f"{package} is not installed, leaving out {left_out}; install it by {how}", file=sys.stderr)
    return [name for name in systems if not missing.keys() & SYSTEMS[name].needs.keys()]


def _system(asked, title, task, workload, rounds, cores, name, inbox):
    """A lane with rounds of a system, or of a variant of ours."""
    command = _command(
        "system",
        task=task,
        workload=workload,
        system=OURS if name in asked.variants else name,
        rounds=rounds,
        cores=1 if cores else machine.num_cores(),
        layout=asked.layout,
        device=asked.device,
        profile=str(asked.profile / title) if asked.profile else None,
    )
    return _lane(asked, f"{title} {name}", rounds, inbox, command, cores[:1], asked.variants.get(name, {}))


def _lane(asked, title, rounds, inbox, command, cores=(), variables=None):
    environment = _environment(asked.device) | (variables or {})
    return Lane(title, command, environment, -(-rounds // asked.repetitions), inbox, cores)


def _command(name, **options):
    return [sys.executable, "-m", "experiments.benchmarks.worker", name, json.dumps(options)]


def _environment(device):
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | _ENVIRONMENT | _PLATFORM[device] | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _worker(title, command, **options):
    """Runs a worker to its end, counting its messages; raises ``lanes.Failed`` with the end of its stderr."""
    environment = _environment(options.get("device", "cpu"))
    with tempfile.TemporaryFile("w+") as errors, wait(title) as advance:
        pipes = dict(stdout=subprocess.PIPE, stderr=errors, text=True)
        with subprocess.Popen(_command(command, **options), env=environment, **pipes) as process:
            try:
                for line in process.stdout:
                    advance(**json.loads(line))
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            raise lanes.failure(errors.read(), title, process.returncode)
