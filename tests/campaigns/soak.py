"""Long runs, and what they cost as they continue: memory, open files, bytes written and time of a round.

    python tests/campaigns/soak.py digits            # 2,000 rounds of ten clients on the digits
    python tests/campaigns/soak.py many              # 500 rounds of 10,000 clients, 100 in each
    python tests/campaigns/soak.py states            # 40 rounds of SCAFFOLD, each checkpoints of 100 clients' states
    python tests/campaigns/soak.py digits --rounds=200 --json=FILE
    python tests/campaigns/soak.py store             # 30 rounds of 1,000,000 clients on disk, 1,000 in each; a SIGKILL
    python tests/campaigns/soak.py store --clients=20000 --scaffold

A row for each tenth of the run. What holds still has equal rows; the last line is the growth from the second tenth to
the last one. ``store`` writes a store of ragged clients, runs from it, runs again in a process that is killed and
resumed in another one, and compares every bit; its exit status is 1 if something differs. Reads /proc, so it needs
Linux.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone works without being installed

import jax
import numpy as np

from experiments.benchmarks.arguments import writable
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Scaffold, engine, nn, partition, simulate, sources
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.data.store import StoreWriter
from fedjax_collapse.run.history import read_arrays

_TENTHS, _EXAMPLES_EACH = 10, 10
_COHORT, _ROUNDS, _SHAPE, _CLASSES = 1000, 30, (6, 6, 1), 5  # of ``store``


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


class Stored(NamedTuple):
    """A run from a store, in a process of its own."""

    start_seconds: float  # from opening the store to the first round, without compiling and imports
    seconds_per_round: float  # median, without the first two
    index_mib: float  # resident after opening the store, more than before, without mapped files
    peak_mib: float  # the same, at most after a round
    digest: str  # of the final variables, the metrics and the records


def soak_store(clients: int, rounds: int, folder: Path, is_scaffold: bool) -> bool:
    """Runs from a store of this many clients; returns whether a run that was killed leaves the same bits."""
    started = time.perf_counter()
    rows = write_store(folder / "store", clients)
    size = sum(path.stat().st_size for path in (folder / "store").iterdir()) / 2**20
    print(
        f"store of {clients:,} clients, {rows:,} rows, {size:.0f} MiB, written in {time.perf_counter() - started:.0f} s"
    )
    given = folder / "store", min(_COHORT, clients // 10), rounds, is_scaffold
    whole = _in_process(folder / "whole", *given)
    print(
        f"start {whole.start_seconds:.2f} s, {whole.seconds_per_round:.3f} s/round, resident for the index "
        f"{whole.index_mib:.0f} MiB, in the rounds at most {whole.peak_mib:.0f} MiB"
    )
    _in_process(folder / "killed", *given, kill_after=rounds // 2)
    again = _in_process(folder / "killed", *given)
    is_same = again.digest == whole.digest
    print(f"killed after round {rounds // 2} and resumed: {'the same bits' if is_same else 'OTHER BITS'}")
    return is_same


def write_store(folder: Path, clients: int) -> int:
    """Writes ragged clients, most of them small; returns the number of rows."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(1 + rng.lognormal(2, 0.9, clients).astype(int), 200)
    patterns = rng.integers(0, 120, (_CLASSES, *_SHAPE))

    def drawn(size):
        labels = rng.integers(0, _CLASSES, size)
        return (patterns[labels] + rng.integers(0, 120, (size, *_SHAPE))).astype(np.uint8), labels

    names = tuple(map(str, range(_CLASSES)))
    with StoreWriter(folder, names, mean=(120.0,), std=(60.0,)) as store:
        for client, size in enumerate(sizes.tolist()):
            store.add(f"client{client}", *drawn(size))
        store.add_test(*drawn(1000))
        return store.rows


def _in_process(*arguments, kill_after=None):
    """Returns what a run reports; None if it is killed after a round."""
    context = multiprocessing.get_context("spawn")
    reports = context.SimpleQueue()
    process = context.Process(target=_run_stored, args=(reports, *arguments))
    process.start()
    while not isinstance(report := reports.get(), Stored):
        if report == kill_after:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.join()
    return report if isinstance(report, Stored) else None


def _run_stored(reports, folder, store, cohort, rounds, is_scaffold):
    """Reports every round, and at the end a ``Stored``."""
    model = Model(nn.MLP(_CLASSES, hidden=(16,)), _SHAPE)
    algorithm = FedAvg(LocalTraining(epochs=1, batch_size=16), {"scaffold": Scaffold()} if is_scaffold else {})
    jax.block_until_ready(model.init(jax.random.key(0)))
    before, times, compiling = _own_mib(), [time.perf_counter()], []
    federation = Federation.from_store(store)
    resident = [_own_mib() - before]
    rule = engine.Participation(fraction=cohort / federation.num_clients, sampler=engine.HostUniform())

    def listener(row, timing):
        times.append(time.perf_counter())
        resident.append(_own_mib() - before)
        compiling.append(timing["compile"] + timing["train"] + timing["evaluate"])
        reports.put(row["round"])

    result = simulate(
        federation, model, algorithm, rounds=rounds, key=jax.random.key(0), participation=rule, listener=listener,
        checkpoint_every=5, folder=folder,
    )  # fmt: skip
    seconds = np.diff(times)
    metrics = hashlib.sha256((folder / "metrics.jsonl").read_bytes()).hexdigest()
    found = digest([jax.device_get(result.variables), read_arrays(folder, "clients")]) + metrics
    start, per_round = float(seconds[0] - compiling[0]), float(np.median(seconds[2:]))
    reports.put(Stored(start, per_round, resident[0], max(resident), found))


def _own_mib():
    return _status_mib("RssAnon")


def _resident_mib():
    return _status_mib("VmRSS")


def _status_mib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def _bytes_written():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=[*CASES, "store"])
    parser.add_argument("--rounds", type=int, help="instead of the case's own")
    parser.add_argument("--json", type=writable, metavar="FILE", help="where to write the rows")
    parser.add_argument("--clients", type=int, default=1_000_000, help="of store")
    parser.add_argument("--scaffold", action="store_true", help="store: every client keeps a state")
    parser.add_argument("--folder", type=Path, help="store: where it is written; by default a temporary folder")
    asked = parser.parse_args(arguments)
    if asked.case == "store":
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            return not soak_store(asked.clients, asked.rounds or _ROUNDS, Path(folder), asked.scaffold)
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
