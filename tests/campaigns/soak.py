"""Long runs, and what they cost as they continue: memory, open files, bytes written and time of a round.

    python tests/campaigns/soak.py digits            # 2,000 rounds of ten clients on the digits
    python tests/campaigns/soak.py many              # 500 rounds of 10,000 clients, 100 in each
    python tests/campaigns/soak.py states            # 40 rounds of SCAFFOLD, each checkpoints of 100 clients' states
    python tests/campaigns/soak.py digits --rounds=200 --json=FILE

A row for each tenth of the run. What holds still has equal rows; the last line is the growth from the second tenth to
the last one. Reads /proc, so it needs Linux.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone works without being installed

import jax
import numpy as np

from experiments.benchmarks.arguments import writable
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Scaffold, nn, partition, simulate, sources

_TENTHS, _EXAMPLES_EACH = 10, 10


class Case(NamedTuple):
    """A long run."""

    rounds: int
    clients: int
    participation: float
    checkpoint_every: int = 10
    hidden: int = 32  # features of the network
    epochs: int = 1
    is_scaffold: bool = False  # then every client keeps as many numbers as the network has, else none


class Row(NamedTuple):
    """What the process and its folder are after some rounds, and what a round has taken since the row before."""

    round: int
    seconds_per_round: float
    memory_mib: float  # resident
    handles: int  # open files
    written_kib_per_round: float


CASES = {
    "digits": Case(2000, 10, 1.0),
    "many": Case(500, 10_000, 0.01),
    "states": Case(40, 100, 0.5, checkpoint_every=1, hidden=1024, epochs=5, is_scaffold=True),
}


def soak(case: Case, folder: Path) -> list[Row]:
    """Runs it, with checkpoints in the folder."""
    rows, last = [], [0, time.perf_counter(), 0]

    def listener(row, timing):
        round = row["round"]
        if round % max(1, case.rounds // _TENTHS):
            return
        now, written = time.perf_counter(), _bytes_written()
        passed = round - last[0]
        handles = len(os.listdir("/proc/self/fd"))
        rows.append(Row(round, (now - last[1]) / passed, _resident_mib(), handles, (written - last[2]) / passed / 1024))
        last[:] = round, now, written
        print("  ".join(f"{value:>10.4g}" for value in rows[-1]), flush=True)

    print("  ".join(f"{name:>10}" for name in ("round", "s/round", "RSS MiB", "handles", "KiB/round")))
    options = dict(participation=case.participation, checkpoint_every=case.checkpoint_every, folder=folder)
    federation = _federation(case)
    model = Model(nn.MLP(federation.num_classes, hidden=(case.hidden,)), federation.input_shape)
    training = LocalTraining(epochs=case.epochs, batch_size=32, learning_rate=0.05)
    algorithm = FedAvg(training, {"scaffold": Scaffold()} if case.is_scaffold else {})
    simulate(federation, model, algorithm, rounds=case.rounds, key=jax.random.key(0), listener=listener, **options)
    return rows


def _federation(case):
    """The digits; over many clients, examples drawn from them with noise, so that everyone owns some."""
    data = sources.digits()
    images, labels = data.images, data.labels
    if case.clients * _EXAMPLES_EACH > len(labels):
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, len(labels), case.clients * _EXAMPLES_EACH)
        noise = rng.integers(0, 8, (len(drawn), *images.shape[1:]), np.uint8)
        images, labels = images[drawn] // 2 + noise, labels[drawn]
    parts = partition.iid(labels, case.clients, seed=0)
    return Federation.from_arrays(
        images, labels, parts, data.test_images, data.test_labels, data.mean, data.std, data.class_names
    )


def _resident_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _bytes_written():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rounds", type=int, help="instead of the case's own")
    parser.add_argument("--json", type=writable, metavar="FILE", help="where to write the rows")
    asked = parser.parse_args(arguments)
    case = CASES[asked.case]
    if asked.rounds is not None and asked.rounds < _TENTHS:
        parser.error(f"--rounds={asked.rounds}: expected at least {_TENTHS}")
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(case._replace(rounds=asked.rounds or case.rounds), Path(folder))
    early, late = rows[1], rows[-1]
    growth = [f"{name} {getattr(late, name) / max(getattr(early, name), 1e-9):.2f}" for name in Row._fields[1:]]
    print(f"round {late.round} over round {early.round}: {', '.join(growth)}")
    if asked.json:
        asked.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
