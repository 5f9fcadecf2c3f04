"""Rounds of this library's engine."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.workloads import BATCH_SIZE, EPOCHS, LEARNING_RATE, MOMENTUM, SEED, Task, Workload
from fedjax_collapse import engine
from fedjax_collapse.algorithms import FedAvg, LocalTraining
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data import Federation
from fedjax_collapse.engine.layout import padded_sizes
from fedjax_collapse.records import Model, Variables


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of federated averaging, each a compiled call."""
    devices, clients_at_once = setting.layout or (setting.cores, workload.clients_at_once)
    jax.config.update("jax_num_cpu_devices", devices)
    client_map = layout(devices, clients_at_once)
    federation = Federation.from_arrays(
        task.images, task.labels, task.parts, task.images[:1], task.labels[:1], task.mean, task.std
    )
    model = Model(workload.network(), federation.image_shape)
    structure = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(SEED)).params)
    variables = Variables(jax.tree.unflatten(structure, map(jnp.asarray, task.weights)), {})
    algorithm = FedAvg(LocalTraining(EPOCHS, BATCH_SIZE, LEARNING_RATE, MOMENTUM))
    sizes = [len(part) for part in task.parts]
    halves = engine.halves_short_batches(client_map, model, np.asarray(sizes), BATCH_SIZE)
    processed = processed_samples(sizes, devices, clients_at_once, halves)
    for record in rounds(federation, model, algorithm, client_map, variables):
        losses, sizes = record.metrics["task_loss"], federation.ownership.sizes
        yield Round(losses, sizes, record.steps, processed, f"{devices} devices x {clients_at_once} clients")


def layout(devices: int, clients_at_once: int = 1) -> engine.ClientMap:
    """So many devices, and clients at once on each."""
    chunked = engine.Chunked(clients_at_once)
    return engine.Sharded(devices, chunked) if devices > 1 else chunked


def rounds(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    client_map: engine.ClientMap,
    variables: Variables | None = None,
) -> Iterator[engine.RoundRecord]:
    """The record of one round after another, of all clients, when all of the round is computed."""
    key = jax.random.key(SEED)
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    variables = model.init(key) if variables is None else variables
    state = engine.place(client_map, engine.init(algorithm, model, variables, federation.num_clients, key))
    algorithm, *data = client_map.place((algorithm, federation.train, federation.ownership))
    sizes = np.asarray(federation.ownership.sizes)
    halves = engine.halves_short_batches(client_map, model, sizes, algorithm.training.batch_size)
    statics = dict(model=model, layout=engine.Layout(client_map, len(sizes), halve_short_batches=halves))
    while True:
        state, record, _ = jax.block_until_ready(engine.run_rounds(algorithm, state, *data, 1, **statics))
        yield record


def processed_samples(sizes: list[int], devices: int, clients_at_once: int, halves: bool = False) -> int:
    """Samples computed in a round, padding included: whole batches, and each chunk as many as its longest client.

    ``halves``: a last batch that fits into half of one costs half.
    """
    if halves:
        return int(EPOCHS * np.sum(padded_sizes(np.asarray(sizes), BATCH_SIZE, halves)))
    steps = np.sort(-(-np.asarray(sizes) // BATCH_SIZE))
    steps = np.pad(steps, (-len(steps) % (devices * clients_at_once), 0))
    return int(EPOCHS * BATCH_SIZE * clients_at_once * steps.reshape(-1, clients_at_once).max(axis=1).sum())
