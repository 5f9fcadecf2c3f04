"""A run from a store of many clients: its seconds and memory, and whether a SIGKILL changes it.

    python tests/campaigns/soak.py            # 30 rounds of 1,000,000 clients on disk, 1,000 in each
    python tests/campaigns/soak.py --clients=20000 --rounds=12 --scaffold

Writes a store of ragged clients, runs from it, runs again in a process that is killed and resumed in another one, and
compares every bit; the exit status is 1 if something differs. Reads /proc, so it needs Linux.
"""

import argparse
import hashlib
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

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Scaffold, engine, nn, simulate
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.data.store import StoreWriter
from fedjax_collapse.run.history import read_arrays

_COHORT, _SHAPE, _CLASSES = 1000, (6, 6, 1), 5


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
    """Resident memory of this process, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--scaffold", action="store_true", help="every client keeps a state")
    parser.add_argument("--folder", type=Path, help="where the store is written; by default a temporary folder")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        return not soak_store(asked.clients, asked.rounds, Path(folder), asked.scaffold)


if __name__ == "__main__":
    sys.exit(main())
