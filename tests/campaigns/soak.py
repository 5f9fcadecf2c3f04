"""A run from a store of many clients: how long it takes to start and for a round, and its memory.

    python tests/campaigns/soak.py            # 30 rounds of 1,000,000 clients on disk, 1,000 in each
    python tests/campaigns/soak.py --clients=20000 --rounds=12 --scaffold

That such a run resumes to the same bits is tested by ``tests/engine/test_disk_rounds.py``. Reads /proc, so it needs
Linux.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone works without being installed

import jax
import numpy as np

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Scaffold, engine, nn, simulate
from fedjax_collapse.data.store import StoreWriter

_COHORT, _SHAPE, _CLASSES = 1000, (6, 6, 1), 5


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


def run(folder: Path, clients: int, rounds: int, is_scaffold: bool) -> dict[str, float]:
    """Trains on the store of a folder, in its folder ``run``.

    Returns the seconds from opening the store to the first round, without compiling, those of a round, the median
    without the first two, and the MiB that opening the store and, at most, the rounds take.
    """
    model = Model(nn.MLP(_CLASSES, hidden=(16,)), _SHAPE)
    algorithm = FedAvg(LocalTraining(epochs=1, batch_size=16), {"scaffold": Scaffold()} if is_scaffold else {})
    jax.block_until_ready(model.init(jax.random.key(0)))
    before, times, compiling = _own_mib(), [time.perf_counter()], []
    federation = Federation.from_store(folder / "store")
    resident = [_own_mib() - before]
    rule = engine.Participation(fraction=min(_COHORT, clients // 10) / clients, sampler=engine.HostUniform())

    def listener(row, timing):
        times.append(time.perf_counter())
        resident.append(_own_mib() - before)
        compiling.append(timing["compile"] + timing["train"] + timing["evaluate"])

    simulate(
        federation, model, algorithm, rounds=rounds, key=jax.random.key(0), participation=rule, listener=listener,
        checkpoint_every=5, folder=folder / "run",
    )  # fmt: skip
    seconds = np.diff(times)
    start, per_round = float(seconds[0] - compiling[0]), float(np.median(seconds[2:]))
    return dict(start=start, per_round=per_round, index_mib=resident[0], peak_mib=max(resident))


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
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder, started = Path(name), time.perf_counter()
        rows = write_store(folder / "store", asked.clients)
        mib = sum(path.stat().st_size for path in (folder / "store").iterdir()) / 2**20
        written = time.perf_counter() - started
        print(f"store of {asked.clients:,} clients, {rows:,} rows, {mib:.0f} MiB, written in {written:.0f} s")
        for what, value in run(folder, asked.clients, asked.rounds, asked.scaffold).items():
            print(f"{what} {value:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
