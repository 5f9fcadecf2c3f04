"""Throughput of federated learning, side by side with loops in plain PyTorch, on the CPU of this machine.

    python experiments/benchmark.py --workloads=mlp100,cnn100 --json=FILE
    python experiments/benchmark.py --methods
    python experiments/benchmark.py --networks=resnet18,mobilenet_v2

Every system trains the same networks from the same weights on the same split with the same hyper-parameters
(``benchmarks/workloads.py``), each in a fresh process, one after another. ``ratio`` compares true samples per second
with the best PyTorch loop that was run on the same workload. ``--methods`` times every method against federated
averaging instead (``benchmarks/overheads.py``), ``--networks`` a local step of each network and lowering beside PyTorch
(``benchmarks/network_steps.py``). Machines are noisy: compare rows of one call only.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)  # so that ``experiments`` is found from any folder

from experiments.benchmarks import SYSTEMS, network_steps, tables  # noqa: E402
from experiments.benchmarks.environment import environment  # noqa: E402
from experiments.benchmarks.tables import Row  # noqa: E402
from experiments.benchmarks.worker import Job, Measurement  # noqa: E402
from experiments.benchmarks.workloads import WORKLOADS  # noqa: E402
from experiments.machine import num_cores  # noqa: E402

_METHOD_ROUNDS, _NETWORK_ROUNDS = 9, 5  # of each, unless asked otherwise


class Failure(Exception):
    """What goes wrong outside the user's hands: what to print before leaving with exit status 1."""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 (from argparse) for wrong arguments."""
    arguments = parse(argv)
    try:
        if arguments.methods:
            rows, table = run_methods(arguments), tables.overhead_table
        elif arguments.networks:
            rows, table = tables.add_network_ratios(list(run_networks(arguments))), tables.network_table
        else:
            rows, table = tables.add_ratios(list(run(arguments))), tables.table
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments, all checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS), help=", ".join(WORKLOADS))
    systems = ["fedjax_collapse", "pytorch"]
    parser.add_argument("--systems", type=_names(SYSTEMS), default=systems, help=", ".join(SYSTEMS))
    parser.add_argument("--methods", action="store_true", help="what each method costs over federated averaging")
    networks = dict(type=_names(network_steps.NETWORKS), nargs="?", const=list(network_steps.NETWORKS))
    parser.add_argument("--networks", **networks, help="steps of: " + ", ".join(network_steps.NETWORKS))
    lowerings = "of the networks: " + ", ".join(network_steps.LOWERINGS)
    parser.add_argument("--lowerings", type=_names(network_steps.LOWERINGS), default=["auto"], help=lowerings)
    parser.add_argument("--rounds", type=_rounds, help="timed rounds of each system, at least 5; default: by workload")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="where to write all numbers")
    layout = "of fedjax_collapse: devices x clients at once on each; default: as many devices as cores, by workload"
    parser.add_argument("--layout", type=_layout, metavar="2x1", help=layout)
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)  # of the workloads, for tests
    parser.usage = (
        f"{parser.prog} [--workloads=A,B | --methods | --networks=A,B] [--systems=A,B] [--rounds=N] [--json=FILE]"
    )
    parser.error = _one_line
    return parser.parse_args(argv)


def _one_line(message):
    print(f"benchmark.py: {message}", file=sys.stderr)
    sys.exit(2)


def _names(valid):
    def parse_names(text: str) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in names if name not in valid]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; valid: {', '.join(valid)}")
        return names

    return parse_names


def _rounds(text):
    if not text.isdecimal() or int(text) < 5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds >= 5")
    return int(text)


def _layout(text):
    numbers = text.split("x")
    if len(numbers) != 2 or not all(n.isdecimal() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected devices x clients, such as 2x1")
    return tuple(map(int, numbers))


def _writable(text):
    """The path, if a file can be written there; leaves nothing behind."""
    path = Path(text)
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from None
    if not existed:
        path.unlink()
    return path


def run(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each system of each workload, as they are measured."""
    systems = available(arguments.systems, importlib.util.find_spec("torch") is not None)
    if not systems:
        raise Failure("benchmark.py: no system is left to run")
    with tempfile.TemporaryDirectory() as folder:
        _worker("making the workloads", "prepare", folder, str(arguments.scale), *arguments.workloads)
        for workload in arguments.workloads:
            work = set()
            for system in systems:
                row, done = _time(folder, workload, system, arguments)
                work.add(done)
                if len(work) > 1:
                    raise Failure(f"{workload}: the systems did different work (samples, steps): {sorted(work)}")
                yield row


def run_methods(arguments: argparse.Namespace) -> list[Row]:
    """A row for each method, all measured in one worker."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = str(arguments.rounds or _METHOD_ROUNDS)
        _worker("timing the methods", "methods", folder, rounds, str(num_cores()), str(arguments.scale))
        return json.loads(Path(folder, "measurement.json").read_text())


def run_networks(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each system of each network, as they are measured."""
    rivals = available(["pytorch", "pytorch-threads"], importlib.util.find_spec("torch") is not None)
    with tempfile.TemporaryDirectory() as folder:
        for network in arguments.networks:
            lowerings = arguments.lowerings if network != "mlp" else ["auto"]
            for system in [*lowerings, *rivals]:
                case = network_steps.Case(network, system, arguments.rounds or _NETWORK_ROUNDS, num_cores())
                _worker(f"{network} {system}", "network", folder, json.dumps(case._asdict()))
                measured = network_steps.Measurement(**json.loads(Path(folder, "measurement.json").read_text()))
                yield tables.network_row(network, system, measured)


def available(systems: list[str], has_torch: bool) -> list[str]:
    """The systems that can run here; says which are left out."""
    left_out = [name for name in systems if SYSTEMS[name].needs_torch and not has_torch]
    if left_out:
        hint = 'install it by pip install -e ".[benchmark]"'
        print(f"PyTorch is not installed, leaving out {', '.join(left_out)}; {hint}", file=sys.stderr)
    return [name for name in systems if name not in left_out]


def _time(folder, workload, system, arguments):
    """The row of a system, and its work in a round: true samples and steps."""
    started = time.time()
    job = Job(workload, system, arguments.rounds or WORKLOADS[workload].rounds, num_cores(), arguments.layout, started)
    _worker(f"{workload} {system}", "time", folder, json.dumps(job._asdict()))
    total = time.time() - started
    measurement = Measurement(**json.loads(Path(folder, "measurement.json").read_text()))
    return tables.make_row(workload, system, total, measurement), (measurement.samples, measurement.steps)


def _worker(title, *command):
    """Runs a worker to its end; raises Failure with the end of its stderr."""
    print(f"{title} ...", file=sys.stderr)
    paths = [ROOT, os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
    own["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # it would hide what a first start costs
    process = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.worker", *command],
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode:
        tail = "\n".join(process.stderr.splitlines()[-20:])
        raise Failure(f"{tail}\nbenchmark.py: {title} failed with exit status {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
