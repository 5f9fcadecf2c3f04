"""Rounds of this library's engine."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.workloads import BATCH_SIZE, EPOCHS, LEARNING_RATE, MOMENTUM, SEED, Task, Workload
from fedjax_collapse import engine
from fedjax_collapse.algorithms import FedAvg, LocalTraining
from fedjax_collapse.data import Federation
from fedjax_collapse.records import Model, Variables


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of federated averaging, each a compiled call."""
    devices, clients_at_once = setting.layout or (setting.cores, workload.clients_at_once)
    jax.config.update("jax_num_cpu_devices", devices)
    client_map = engine.Chunked(clients_at_once)
    client_map = engine.Sharded(devices, client_map) if devices > 1 else client_map
    halves = clients_at_once == 1 and all(weight.ndim <= 2 for weight in task.weights)
    processed = processed_samples([len(part) for part in task.parts], devices, clients_at_once, halves)
    for losses, samples, steps in _records(workload, task, client_map):
        yield Round(losses, samples, steps, processed, f"{devices} devices x {clients_at_once} clients")


def _records(workload, task, client_map):
    """Losses, samples and steps of each client, when all of the round is computed."""
    federation = Federation.from_arrays(
        task.images, task.labels, task.parts, task.images[:1], task.labels[:1], task.mean, task.std
    )
    model, algorithm, state = _start(workload, task, federation)
    algorithm, state, train, ownership = client_map.place((algorithm, state, federation.train, federation.ownership))
    statics = {"model": model, "client_map": client_map, "cohort_size": federation.num_clients, "max_rounds": 1}
    while True:
        state, record, _ = jax.block_until_ready(engine.run_rounds(algorithm, state, train, ownership, 1, **statics))
        yield record.metrics["task_loss"], federation.ownership.sizes, record.steps


def _start(workload, task, federation):
    """Model, algorithm and the state before the first round."""
    model = Model(workload.network(), federation.image_shape)
    structure = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(SEED)).params)
    variables = Variables(jax.tree.unflatten(structure, map(jnp.asarray, task.weights)), {})
    training = LocalTraining(EPOCHS, BATCH_SIZE, LEARNING_RATE, MOMENTUM)
    algorithm = jax.tree.map(jnp.asarray, FedAvg(training, {}))
    return model, algorithm, engine.init(algorithm, model, variables, federation.num_clients, jax.random.key(SEED))


def processed_samples(sizes: list[int], devices: int, clients_at_once: int, halves: bool = False) -> int:
    """Samples computed in a round, padding included: whole batches, and each chunk as many as its longest client.

    ``halves``: a last batch that fits into half of one costs half.
    """
    if halves:
        half = BATCH_SIZE // 2
        full, rest = np.divmod(sizes, BATCH_SIZE)
        return int(EPOCHS * np.sum(full * BATCH_SIZE + half * -(-rest // half)))
    steps = np.sort(-(-np.asarray(sizes) // BATCH_SIZE))
    steps = np.pad(steps, (-len(steps) % (devices * clients_at_once), 0))
    return int(EPOCHS * BATCH_SIZE * clients_at_once * steps.reshape(-1, clients_at_once).max(axis=1).sum())
