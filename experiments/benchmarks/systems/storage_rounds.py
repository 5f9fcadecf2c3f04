"""Rounds of one federation from a store on disk, over the same rounds from memory of the host and of the device.

Its clients are as ragged as those of StackOverflow: log-normal sizes with a median of 49 and a mean of 73 examples, of
which a client trains on at most 64; an example has 256 bytes. Every turn is a call of several rounds, so that cohorts
are sent ahead in it as in a run. ``disk, cold`` first drops the store's inputs from the system's cache, where it can;
``disk, unverified`` does not compare rows with their checksums, which no run leaves out.
"""

import contextlib
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from experiments.benchmarks import Round
from experiments.benchmarks.systems import engine_rounds
from experiments.benchmarks.workloads import SEED
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Participation, engine, nn
from fedjax_collapse.data.store import Store, StoreWriter
from fedjax_collapse.run.runs import Hardware, Run, Schedule, initialize, prepare

STORAGES = ("host", "device", "disk", "disk, cold", "disk, unverified")  # the first is the baseline
CLIENTS, COHORT, MOST = 20_000, 400, 64
ROUNDS_AT_ONCE, _BATCH_SIZE = 10, 16
_SHAPE, _CLASSES = (16, 16, 1), 10
_MEDIAN, _SPREAD, _LARGEST = 49, 0.9, 1000  # of the sizes of clients


def arms(asked: Namespace, cores: int) -> Iterator[tuple[str, dict[str, Iterator[Round]]]]:
    """Yields, by storage, ``ROUNDS_AT_ONCE`` rounds each time; ``asked.scale`` is of the number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        _write(store, max(COHORT, round(asked.scale * CLIENTS)))
        yield "", {storage: _rounds(store, storage, cores) for storage in STORAGES}


def _rounds(folder, named, cores):
    storage, is_cold = named.split(",")[0], named.endswith("cold")
    federation = Federation.from_store(folder, examples_per_client=MOST, storage=storage)
    model = Model(nn.MLP(_CLASSES, hidden=(32,)), _SHAPE)
    rule = Participation(COHORT / federation.num_clients, engine.HostUniform())
    run = Run(federation, FedAvg(LocalTraining(epochs=1, batch_size=_BATCH_SIZE)), jax.random.key(SEED))
    schedule = Schedule(10**6, rule, evaluate_every=ROUNDS_AT_ONCE)
    compiled = prepare(run, model, schedule, Hardware(engine_rounds.layout(cores)))
    program = engine.Program(compiled, [initialize(run, compiled.model, schedule)], federation.train, storage)
    program.prepare()
    sizes = np.minimum(np.asarray(federation.ownership.sizes), MOST)
    while True:
        if is_cold:
            federation.store.drop_cached()
        with mock.patch.object(Store, "verify") if named.endswith("unverified") else contextlib.nullcontext():
            (advance,) = program.advance(ROUNDS_AT_ONCE)
        steps, losses = np.asarray(advance.record.steps), np.asarray(advance.record.metrics["task_loss"])
        done = steps > 0
        samples = np.broadcast_to(advance.record.of_entries(sizes), steps.shape)[done]
        processed = int(_BATCH_SIZE * steps.sum())
        yield Round(losses[done], samples, steps[done], processed, f"{cores} devices", ROUNDS_AT_ONCE)


def _write(folder, clients):
    rng = np.random.default_rng(SEED)
    sizes = np.clip(rng.lognormal(np.log(_MEDIAN), _SPREAD, clients).astype(int), 1, _LARGEST)
    patterns = rng.integers(0, 128, (_CLASSES, *_SHAPE), np.uint8)

    def drawn(size):
        labels = rng.integers(0, _CLASSES, size)
        return patterns[labels] + rng.integers(0, 128, (size, *_SHAPE), np.uint8), labels

    with StoreWriter(folder, tuple(map(str, range(_CLASSES))), mean=(128.0,), std=(64.0,)) as store:
        for client, size in enumerate(sizes.tolist()):
            store.add(str(client), *drawn(size))
        store.add_test(*drawn(100))
