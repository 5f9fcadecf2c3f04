"""Throughput of federated learning, side by side with loops in plain PyTorch, on the CPU of this machine.

    python experiments/benchmark.py --workloads=mlp100,cnn100 --json=FILE

Every system trains the same networks from the same weights on the same split with the same hyper-parameters
(``benchmarks/workloads.py``), each in a fresh process, one after another. ``ratio`` compares true samples per second
with the best PyTorch loop that was run on the same workload. Machines are noisy: compare rows of one call only.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)  # so that ``experiments`` is found from any folder

from experiments.benchmarks import SYSTEMS  # noqa: E402
from experiments.benchmarks.worker import Job, Measurement  # noqa: E402
from experiments.benchmarks.workloads import WORKLOADS  # noqa: E402
from experiments.machine import num_cores  # noqa: E402

Row = dict[str, Any]


class Failure(Exception):
    """What goes wrong outside the user's hands: what to print before leaving with exit status 1."""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 if a system failed, 2 (from argparse) for wrong arguments."""
    arguments = parse(argv)
    try:
        rows = add_ratios(list(run(arguments)))
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
    parser.add_argument("--rounds", type=_rounds, help="timed rounds of each system, at least 5; default: by workload")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="where to write all numbers")
    layout = "of fedjax_collapse: devices x clients at once on each; default: as many devices as cores, by workload"
    parser.add_argument("--layout", type=_layout, metavar="2x1", help=layout)
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)  # of the workloads, for tests
    parser.usage = f"{parser.prog} [--workloads=A,B] [--systems=A,B] [--rounds=N] [--json=FILE]"
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
    return make_row(workload, system, total, measurement), (measurement.samples, measurement.steps)


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


def make_row(workload: str, system: str, total_seconds: float, measured: Measurement) -> Row:
    """What is reported of a measurement, all but the ratio; rates are of the median round."""
    median = statistics.median(measured.seconds)
    return {
        "workload": workload,
        "system": system,
        "seconds_per_round": {"median": median, "min": min(measured.seconds), "max": max(measured.seconds)},
        "samples_per_second": measured.samples / median,
        "client_steps_per_second": measured.steps / median,
        "padding_efficiency": measured.samples / measured.processed,
        "seconds_to_first_round": measured.seconds_to_first_round,
        "total_seconds": total_seconds,
        "peak_memory_mib": measured.peak_memory_mib,
        "final_loss": measured.loss,
        "layout": measured.layout,
    }


def add_ratios(rows: list[Row]) -> list[Row]:
    """The rows with ``ratio``: throughput over the best PyTorch loop's of the same workload, None if none was run."""
    best = {}
    for row in rows:
        if SYSTEMS[row["system"]].needs_torch:
            best[row["workload"]] = max(best.get(row["workload"], 0), row["samples_per_second"])
    return [
        row | {"ratio": row["samples_per_second"] / best[row["workload"]] if row["workload"] in best else None}
        for row in rows
    ]


def table(rows: list[Row]) -> str:
    """The rows for people."""
    heads = ("workload", "system", "s/round (min-max)", "samples/s", "steps/s", "unpadded", "ratio")
    heads += ("first round s", "total s", "MiB", "final loss", "layout")
    cells = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cells(row):
    seconds = "{median:.4g} ({min:.4g}-{max:.4g})".format(**row["seconds_per_round"])
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    rates = (f"{row[name]:.0f}" for name in ("samples_per_second", "client_steps_per_second"))
    speeds = *rates, f"{row['padding_efficiency']:.0%}"
    ends = f"{row['seconds_to_first_round']:.1f}", f"{row['total_seconds']:.1f}", f"{row['peak_memory_mib']:.0f}"
    return row["workload"], row["system"], seconds, *speeds, ratio, *ends, f"{row['final_loss']:.4f}", row["layout"]


def environment() -> dict[str, Any]:
    """The machine and the versions; a version is None if the package is not installed."""
    versions = {package: _version(package) for package in ("jax", "torch")}
    machine = {"device": _cpu(), "cores": num_cores(), "python": platform.python_version()}
    return machine | versions | {"platform": platform.platform()}


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
