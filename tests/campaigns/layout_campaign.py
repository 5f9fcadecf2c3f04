"""Trains a small study in every layout of processes and devices, and compares it with one process on one device.

    python tests/campaigns/layout_campaign.py [--cases=alone,host] [--layouts=1x1,1x2,2x1] [--float64] [--out=FOLDER]

A layout such as 2x4 is two processes with four devices each, by default those with 1, 2, 4 and 8 devices of 1, 2 and 4
processes. There is also a chain that continues from each layout in each other one, an Eulerian walk over the layouts:
each start trains one round and stops, and every ordered pair of two layouts follows on each other once. What is
compared: all numbers of every evaluation, the arrays of every round, the final variables, and the states of server and
clients in the last checkpoint. Exit status: 0, or 1 if a difference is larger than rounding.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that ``experiments`` is found from any folder

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from experiments import launch
from experiments.startup import STOPPED
from experiments.study import summaries
from experiments.study.processes import hosts
from fedjax_collapse.config.folder import CHECKPOINTS, METRICS
from fedjax_collapse.core.round_arrays import read_npz
from fedjax_collapse.run.checkpoint import Checkpoints

CASES = {  # how one study's arms differ
    "alone": "dict()",
    "host": "dict(engine=dict(storage='host'))",
    "together": "dict(engine=dict(runs='together'))",
}
_CONFIG = """
from experiments.configs import base


def get_config(arg=""):
    config = base.get_config()
    config.clients, config.participation, config.rounds, config.seeds = 10, 0.8, {rounds}, (0, 1)
    config.partition.alpha = 1.0
    config.network = dict(name="mlp", hidden=(8,))
    config.training.epochs, config.training.learning_rate, config.training.momentum = 1, 0.02, 0.0  # else it is chaotic
    config.methods = dict(  # states at the server and at every client, of three methods
        scaffold=dict(), moon=dict(strength=0.1), fedmr=dict(intra=0.0, inter=0.1, initial_prototypes=True)
    )
    config.engine.runs = "separate"
    config.arms = dict({arms})
    return config
"""
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}  # relative to the largest number of an array
_ROWS = "metrics/"  # whose differences are absolute where all numbers are below 1, as accuracies
_LONGEST = 3600  # seconds of a start
_FORK = multiprocessing.get_context("fork")  # before JAX has started anything: each child starts its own backend


class Layout(NamedTuple):
    """How many processes, with how many devices each."""

    processes: int
    devices: int

    def __str__(self) -> str:
        return f"{self.processes}x{self.devices}"


LAYOUTS = tuple(Layout(p, d // p) for p in (1, 2, 4) for d in (1, 2, 4, 8) if d >= p)


class Campaign(NamedTuple):
    """Where it works, and on what."""

    out: Path
    cases: tuple[str, ...]
    layouts: tuple[Layout, ...]
    is_float64: bool

    @property
    def walk(self) -> list[Layout]:
        return walk(self.layouts)

    def write_config(self) -> None:
        arms = ", ".join(f"{case}={CASES[case]}" for case in self.cases)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "config.py").write_text(_CONFIG.format(rounds=len(self.walk), arms=arms))


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    campaign = _parse(arguments)
    campaign.write_config()
    tolerance = TOLERANCE["float64" if campaign.is_float64 else "float32"]
    print(f"{'layout':8} starts seconds  {'  '.join(f'{case:10}' for case in campaign.cases)} largest in", flush=True)
    is_fine = True
    plan = {str(layout): [layout] for layout in (Layout(1, 1), *campaign.layouts)} | {"walk": campaign.walk}
    for name, layouts in plan.items():
        start = time.perf_counter()
        for layout in layouts:
            _start(campaign, layout, name, stops=len(layouts) > 1)
        found = _compare(campaign, name)
        largest = {case: max(of.values()) for case, of in found.items()}
        is_fine = is_fine and max(largest.values()) <= tolerance
        where = ", ".join(sorted({max(of, key=of.get) for of in found.values() if any(of.values())}))
        shown = "  ".join(f"{value:<10.1e}" for value in largest.values())
        print(f"{name:8} {len(layouts):6} {time.perf_counter() - start:7.0f}  {shown} {where}", flush=True)
    return 0 if is_fine else 1


def walk(layouts: Sequence[Layout]) -> list[Layout]:
    """From the first one to itself, so that every ordered pair of two layouts follows on each other once."""
    left = {layout: [other for other in reversed(layouts) if other != layout] for layout in layouts}
    path, circuit = [layouts[0]], []
    while path:  # Hierholzer: on to wherever there is a way left, and back along the path where there is none
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return circuit[::-1]


def differences(folder: Path, expected: Path) -> dict[str, float]:
    """By name, the largest difference of each array of the runs in the folder, relative to its largest number."""
    found, wanted = numbers(folder), numbers(expected)
    if not wanted or found.keys() != wanted.keys():
        raise RuntimeError(f"{folder} and {expected} differ in {sorted(found.keys() ^ wanted.keys())}")
    return {name: _difference(name, found[name], array) for name, array in wanted.items()}


def _difference(name, found, wanted):
    if found.shape != wanted.shape or (np.isnan(found) != np.isnan(wanted)).any():
        return np.inf
    largest = np.nanmax(np.abs(wanted), initial=1.0 if _ROWS in name else 0.0)
    return float(np.nanmax(np.abs(found - wanted), initial=0.0) / (largest or 1.0))


def numbers(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the runs in the folder by name, in double precision: rows, arrays, final variables, last states.

    But R, a quotient of logarithms of eigenvalues that may be rounding alone; the spectra that it is of are there.
    """
    arrays = {}
    for run in sorted(folder.glob("seed*")):
        rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
        columns = {f"{_ROWS}{name}": [row[name] for row in rows] for name in rows[0] if name != "R"}
        for kind in ("clients", "spectra", "final"):
            columns |= {f"{kind}/{name}": values for name, values in read_npz(run / f"{kind}.npz").items()}
        last = max(Checkpoints(run / CHECKPOINTS).rounds)
        for path, leaf in jax.tree.leaves_with_path(ocp.load(run / CHECKPOINTS / str(last))):
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            columns[f"state{jax.tree_util.keystr(path)}"] = jax.random.key_data(leaf) if is_key else leaf
        arrays |= {f"{run.name} {name}": np.asarray(values, float) for name, values in columns.items()}
    return arrays


def _compare(campaign, name):
    """By case, ``differences`` of the study in the folder ``name``; in a child, as reading checkpoints starts JAX."""
    file = campaign.out / f"{name}-differences.json"

    def compare():
        jax.config.update(
            "jax_num_cpu_devices", max(layout.devices for layout in campaign.layouts)
        )  # as were saved from
        pairs = {case: (campaign.out / name / case, campaign.out / "1x1" / case) for case in campaign.cases}
        file.write_text(json.dumps({case: differences(*pair) for case, pair in pairs.items()}))

    _end_all([_FORK.Process(target=compare)], f"comparing {name}")
    return json.loads(file.read_text())


def _start(campaign: Campaign, layout: Layout, name: str, stops: bool) -> None:
    """Starts the layout's processes on the study in the folder ``name``, and waits for their end.

    Raises:
        RuntimeError: a process fails, or does not end.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    places = [f"localhost:{port},{layout.processes},{i}" for i in range(layout.processes)]
    children = [_FORK.Process(target=_child, args=(campaign, layout, name, place, stops)) for place in places]
    _end_all(children, f"{layout} of {campaign.out / name}, where there are logs,")


def _end_all(children, what):
    """Starts the processes, and waits for their end. Raises RuntimeError if one fails, or does not end."""
    deadline = time.monotonic() + _LONGEST
    for child in children:
        child.start()
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    statuses = [child.exitcode for child in children]
    for child in children:
        child.kill()
    if not set(statuses) <= {0, STOPPED}:
        raise RuntimeError(f"{what} ended with {statuses}")


def _child(campaign, layout, name, place, stops):
    """The launcher, as a process of its own would run it, on every case."""
    log = os.open(campaign.out / f"{name}-{place.rpartition(',')[2]}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    print(f"-- {layout}", flush=True)
    summaries.write_report = lambda study: study  # it takes longer than all else
    os.environ["JAX_NUM_CPU_DEVICES"] = str(layout.devices)  # so that the launcher leaves it as it is
    jax.config.update("jax_num_cpu_devices", layout.devices)
    jax.config.update("jax_enable_x64", campaign.is_float64)
    sys.exit(hosts.until_all_end(lambda arguments: _launch_all(campaign, layout, name, place, stops), []))


def _launch_all(campaign, layout, name, place, stops):
    """The exit status that says most; the processes join one another once."""
    place = place if layout.processes > 1 else "off"
    statuses = []
    for case, distributed in zip(campaign.cases, itertools.chain([place], itertools.repeat("off")), strict=False):
        seeds = "0,1" if case == "together" else "0"
        command = [f"--config={campaign.out / 'config.py'}", f"--workdir={campaign.out / name}", f"--arm={case}"]
        command += [f"--seed={seeds}", f"--compilation_cache={campaign.out / 'compiled'}"]
        command.append(f"--distributed={distributed}")
        statuses.append(launch.main(command, _after_a_row(campaign.out / name) if stops else lambda: False))
    return max(statuses)


def _after_a_row(study):
    """What says whether a run of the study has more rows than now."""

    def count():
        return sum(path.read_bytes().count(b"\n") for path in study.glob("*/*/metrics.jsonl"))

    before = count()
    return lambda: count() > before


def _parse(arguments) -> Campaign:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--layouts", default=",".join(map(str, LAYOUTS)), help="processes x devices of each")
    parser.add_argument("--float64", action="store_true", help="where rounding hides nothing")
    parser.add_argument("--out", type=Path, help="folder to work in, default a temporary one")
    options = parser.parse_args(arguments)
    cases = tuple(options.cases.split(","))
    if unknown := [case for case in cases if case not in CASES]:
        parser.error(f"unknown case {unknown[0]!r}, expected some of {', '.join(CASES)}")
    try:
        layouts = tuple(Layout(*map(int, text.split("x"))) for text in options.layouts.split(","))
    except (ValueError, TypeError):
        parser.error(f"--layouts={options.layouts}: expected processes x devices of each, such as 1x1,2x4")
    out = options.out or Path(tempfile.mkdtemp(prefix="layouts-"))
    return Campaign(out.absolute(), cases, layouts, options.float64)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
