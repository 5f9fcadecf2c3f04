"""Throughput of federated learning, side by side with PyTorch loops and other simulators, on this machine.

    fedjax-collapse benchmark --workloads=mlp100,cnn100 --json=FILE
    fedjax-collapse benchmark --workloads=pfl --systems=fedjax_collapse,pytorch,pfl,flower --figure=FILE.svg
    fedjax-collapse benchmark --workloads=table6 --scale=0.02 --turns
    fedjax-collapse benchmark --systems=fedjax_collapse --variant="float32 JAX_DEFAULT_MATMUL_PRECISION=float32"
    fedjax-collapse benchmark --methods
    fedjax-collapse benchmark --augmentations
    fedjax-collapse benchmark --networks=resnet18,mobilenet_v2
    fedjax-collapse benchmark --growth
    fedjax-collapse benchmark --workloads=mlp100,cnn100,table6 --device=gpu

Every system trains the same networks from the same weights on the same cohorts of the same split with the same
hyper-parameters (``benchmarks/workloads.py``), each in a process of its own. ``ratio`` is how many times as fast a
round is as the baseline's, which is the first PyTorch loop of ``--systems``, else its first system. Machines change
their speed from minute to minute: both are timed at the same time, each pinned to a core, then with the cores swapped;
the ratio is the median over ``--repetitions`` of the geometric mean of the two, with the smallest and the largest. With
``--turns`` or ``--layout``, on a GPU, with one core, and where a system is several processes, they run by turns, with
all cores.

``--variant`` is our engine with other environment variables, such as ``XLA_FLAGS``. ``--methods`` times every method
against federated averaging instead, ``--augmentations`` every augmentation against none (``benchmarks/overheads.py``),
both by turns in one process, ``--networks`` a local step of each network and lowering beside PyTorch
(``benchmarks/network_steps.py``), ``--growth`` rounds of 10, 100 and 1,000 clients (``benchmarks/growth.py``), both by
turns with all cores.
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

from experiments.benchmarks import OURS, SYSTEMS, arguments, growth, lanes, network_steps, tables
from experiments.benchmarks.environment import environment
from experiments.benchmarks.lanes import Lane
from experiments.benchmarks.tables import Row
from experiments.benchmarks.worker import Job, Measurement
from experiments.benchmarks.workloads import WORKLOADS
from experiments.study import machine

_OVERHEAD_ROUNDS, _NETWORK_ROUNDS = 9, 5  # of each, unless asked otherwise
_ENVIRONMENT = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it would hide what a first start costs
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PLATFORM = {
    "cpu": {"JAX_PLATFORMS": "cpu"},
    "gpu": {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # two systems share its memory
}


class Failure(Exception):
    """What goes wrong outside the user's hands: what to print before leaving with exit status 1."""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 (from argparse) for wrong arguments, 130 if Ctrl-C ended it."""
    asked = arguments.parse(argv, __doc__)
    try:
        rows, table = _measure(asked)
    except (Failure, lanes.Failed) as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the worker, too, has got it
        print("stopped; no measurement was saved", file=sys.stderr)
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
        return run_networks(asked), tables.network_table
    if asked.growth:
        return run_growth(asked), tables.growth_table
    return run(asked), tables.table


def run(asked: Namespace) -> list[Row]:
    """A row for each system of each workload; one for each way in which the baseline was timed."""
    systems, rows = [*available(asked.systems), *asked.variants], []
    if not systems:
        raise Failure("benchmark.py: no system is left to run")
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.workloads:
            rounds = asked.rounds or WORKLOADS[workload].rounds
            _worker(f"making {workload}", "prepare", folder, str(asked.scale), str(rounds), workload)
            work = set()
            for way, names in ways(asked, systems):
                start = functools.partial(_lane, asked, folder, workload, workload, rounds, way)
                for name, found, ratios in lanes.compare(names, start, asked.repetitions, way.cores):
                    measured = Measurement(**found)
                    work.add((measured.samples, measured.steps))
                    rows.append(tables.make_row(workload, name, measured, way.name, ratios, asked.scale))
            if len(work) > 1:
                raise Failure(f"{workload}: the systems did different work (samples, steps): {sorted(work)}")
    return rows


class Way(NamedTuple):
    """How systems are timed: two at a time on a core each, or by turns with all cores if there are none here."""

    name: str
    cores: tuple[int, ...] = ()


def ways(asked: Namespace, systems: list[str]) -> list[tuple[Way, list[str]]]:
    """The ways, each with the systems that are timed so, of which the first is the baseline of the others."""
    baseline = next((name for name in systems if name.startswith("pytorch")), systems[0])
    others = [name for name in systems if name != baseline]
    pinned, cores = [], machine.cores()
    if not asked.turns and asked.device == "cpu" and machine.can_pin() and len(cores) > 1 and not asked.layout:
        pinned = [name for name in others if SYSTEMS.get(name, SYSTEMS[OURS]).fits_one_core]
    turns = [name for name in others if name not in pinned]
    found = [(Way("a core each", (cores[0], cores[-1])), [baseline, *pinned])] if pinned else []
    return found + ([(Way("by turns" if turns else "alone"), [baseline, *turns])] if turns or not pinned else [])


def run_overheads(kind: str, asked: Namespace) -> list[Row]:
    """A row for each of the ``methods`` or ``augmentations``, all measured in one worker."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = str(asked.rounds or _OVERHEAD_ROUNDS)
        _worker(f"timing the {kind}", kind, folder, rounds, str(machine.num_cores()), str(asked.scale))
        return json.loads(Path(folder, "measurement.json").read_text())


def run_networks(asked: Namespace) -> list[Row]:
    """A row for each system of each network."""
    rows, rounds = [], asked.rounds or _NETWORK_ROUNDS
    for network in asked.networks:
        systems = [*available(["pytorch", "pytorch-threads"]), *(asked.lowerings if network != "mlp" else ["auto"])]

        def start(system, inbox, network=network):
            case = network_steps.Case(network, system, machine.num_cores())
            return _start(asked, f"{network} {system}", rounds, inbox, "network", json.dumps(case._asdict()))

        for system, found, ratios in lanes.compare(systems, start, asked.repetitions):
            rows.append(tables.network_row(network, system, found, ratios))
    return rows


def run_growth(asked: Namespace) -> list[Row]:
    """A row for each number of clients of each workload."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.growth:
            rounds = {clients: asked.rounds or default for clients, default in growth.ROUNDS.items()}
            for clients, number in rounds.items():
                _worker(f"making {workload}", "grow", folder, str(clients), str(number), workload)

            def start(clients, inbox, workload=workload, rounds=rounds):
                task = f"{workload}-{clients}"
                return _lane(asked, folder, task, workload, rounds[clients], Way("by turns"), OURS, inbox)

            compared = list(lanes.compare(list(rounds), start, asked.repetitions))
            first = compared[-1][1]["samples"]  # of the baseline
            for clients, found, ratios in compared[-1:] + compared[:-1]:
                costs = [first / found["samples"] / ratio for ratio in ratios]
                rows.append(tables.growth_row(workload, clients, Measurement(**found), costs))
    return rows


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


def _lane(asked, folder, task, workload, rounds, way, name, inbox):
    """A lane with rounds of the system, or the variant of ours, of that name."""
    system, cores = (OURS if name in asked.variants else name), 1 if way.cores else machine.num_cores()
    profile = str(asked.profile) if asked.profile else None
    job = Job(task, workload, system, rounds, cores, asked.layout, asked.device, profile)
    command = "time", folder, json.dumps(job._asdict())
    return _start(asked, f"{task} {name}", rounds, inbox, *command, cores=way.cores[:1], own=asked.variants.get(name))


def _start(asked, title, rounds, inbox, *command, cores=(), own=None):
    """A lane with that command of a worker; ``own``: its own environment variables."""
    in_turn = -(-rounds // asked.repetitions)
    print(f"{title}, {'with one core' if cores else 'with all cores'} ...", file=sys.stderr)
    return Lane(title, _command(command), _environment(asked.device) | (own or {}), in_turn, inbox, cores)


def _command(arguments):
    return [sys.executable, "-m", "experiments.benchmarks.worker", *arguments]


def _environment(device):
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | _ENVIRONMENT | _PLATFORM[device] | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _worker(title, *command):
    """Runs a worker to its end; raises Failure with the end of its stderr."""
    print(f"{title} ...", file=sys.stderr)
    process = subprocess.run(
        _command(command), env=_environment("cpu"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if process.returncode:
        tail = "\n".join(process.stderr.splitlines()[-20:])
        raise Failure(f"{tail}\nbenchmark.py: {title} failed with exit status {process.returncode}")
