"""The suites of the benchmark as data: arms, options and columns.

``networks`` are local steps on random images, 32x32x3 unless the network needs larger ones: our engine runs the clients
side by side, on a device for each core or, on a GPU, at once; PyTorch runs them one after another, or in threads.
``growth`` shows how the cost of a round grows with the number of equally large clients, all of which take part.
"""

import functools
import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments import machine
from experiments.benchmarks import OURS, SYSTEMS
from experiments.benchmarks.workloads import GROWTH, NETWORKS, NOT_CONVOLUTIONAL, WORKLOADS, Workload, grown, steps_of
from fedjax_collapse.config.keys import METHODS

LOWERINGS = (  # valid for every convolution
    *("auto", "patches", "xla", "timed", "xla+fused_norm"),
    *("product+xla+fused_norm", "product+patches+fused_norm", "product+shifted+xla+fused_norm"),
)


class Arm(NamedTuple):
    """A system with a workload."""

    name: str
    system: str
    workload: Workload
    rounds: int
    options: tuple[tuple[str, str], ...] = ()  # of our network
    environment: tuple[tuple[str, str], ...] = ()
    layout: tuple[int, int] | None = None  # devices, and clients at once on each


class Case(NamedTuple):
    """Arms that are compared with the first one: two at a time on these cores, or, without, alternately on all."""

    title: str
    arms: list[Arm]
    timed: str = "alternately"
    cores: tuple[int, ...] = ()


class Suite(NamedTuple):
    """What ``--suite`` chooses."""

    columns: tuple[str, ...]
    options: tuple[str, ...]  # that it takes besides those of every suite
    cases: Callable[[Namespace], Iterator[Case]] | None = None  # None: measured in one process (``overheads.py``)
    names: tuple[str, ...] = ()  # that ``--only`` takes
    default: tuple[str, ...] | None = None  # of these; None is all


def _workloads(asked):
    for name in asked.only:
        workload = WORKLOADS[name].scaled(asked.scale)
        add = functools.partial(Arm, workload=workload, rounds=asked.rounds or workload.rounds, layout=asked.layout)
        arms = {system: add(system, system) for system in asked.systems}
        arms |= {name: add(name, OURS, environment=tuple(found.items())) for name, found in asked.variants.items()}
        for timed, cores, names in ways(asked, list(arms)):
            yield Case(name, [arms[arm] for arm in names], timed, cores)


def ways(asked: Namespace, systems: list[str]) -> list[tuple[str, tuple[int, ...], list[str]]]:
    """Returns how systems are timed, on which two cores, and the systems that are timed so, the baseline first."""
    baseline = next((name for name in systems if name.startswith("pytorch")), systems[0])
    others = [name for name in systems if name != baseline]
    pinned, cores = [], machine.cores()
    if not asked.turns and asked.device == "cpu" and machine.can_pin() and len(cores) > 1 and not asked.layout:
        pinned = [name for name in others if SYSTEMS.get(name, SYSTEMS[OURS]).fits_one_core]
    alternate = [name for name in others if name not in pinned]
    found = [("a core each", (cores[0], cores[-1]), [baseline, *pinned])] if pinned else []
    if alternate or not pinned:
        found.append(("alternately" if alternate else "alone", (), [baseline, *alternate]))
    return found


def _networks(asked):
    for network in asked.only:
        workload = steps_of(network, asked.device, asked.batch_size)
        layout = (1, workload.clients) if asked.device == "gpu" else (min(machine.num_cores(), workload.clients), 1)
        add = functools.partial(Arm, workload=workload, rounds=asked.rounds or 5, layout=asked.layout or layout)
        arms = [add(system, system) for system in asked.systems if system != OURS]
        has_lowering = network not in NOT_CONVOLUTIONAL
        chosen = itertools.product(asked.lowerings if has_lowering else ["auto"], asked.dtypes)
        for lowering, dtype in chosen if OURS in asked.systems else ():
            of_dtype = {} if dtype == "float32" else {"dtype": dtype}
            options = ({"lowering": lowering} if has_lowering else {}) | of_dtype
            arms.append(add(" ".join([lowering, *of_dtype.values()]), OURS, options=tuple(options.items())))
        yield Case(network, arms)


def _growth(asked):
    for name in asked.only:
        sizes = {clients: grown(WORKLOADS[name], clients) for clients in GROWTH}
        yield Case(name, [Arm(f"{n}", OURS, sizes[n], asked.rounds or GROWTH[n], layout=asked.layout) for n in GROWTH])


_SECONDS, _RATIO, _FIRST = "s/round (min-max)", "ratio (min-max)", "first round s"
SUITES = {
    "workloads": Suite(
        (
            *("workload", "system", "timed", _SECONDS, "samples/s", "steps/s", "unpadded", _RATIO, _FIRST, "MiB"),
            *("final loss", "layout"),
        ),
        ("systems", "turns", "variant", "device", "scale", "layout", "repetitions"),
        _workloads,
        tuple(WORKLOADS),
        ("mlp100", "cnn100"),
    ),
    "networks": Suite(
        ("network", "system", "ms/step (min-max)", "images/s", _RATIO, _FIRST),
        ("systems", "lowerings", "dtypes", "batch_size", "device", "layout", "seconds", "repetitions"),
        _networks,
        NETWORKS,
    ),
    "methods": Suite(("method", _SECONDS, "over FedAvg (min-max)"), ("device", "scale"), names=tuple(METHODS)),
    "adapters": Suite(("vit", "trained", _SECONDS, "over adapters (min-max)", "layout"), ("device",)),
    "storage": Suite(("storage", _SECONDS, "over host (min-max)"), ("scale",)),
    "growth": Suite(
        ("workload", "clients", _SECONDS, "samples/s", "s/sample over first (min-max)", _FIRST, "MiB", "layout"),
        ("device", "layout", "repetitions"),
        _growth,
        ("mlp100", "cnn100"),
    ),
    "augmentations": Suite(("augmentation", _SECONDS, "over none (min-max)", "us/image"), ("scale",)),
}
