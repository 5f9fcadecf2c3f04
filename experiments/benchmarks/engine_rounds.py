"""Rounds of this library's engine."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import Round, Setting, networks
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.weights import variables_from
from experiments.benchmarks.workloads import SEED, Training, Workload
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine
from fedjax_collapse.core.target import Target
from fedjax_collapse.engine.layout import padded_sizes
from fedjax_collapse.engine.timing import with_timed_lowerings
from fedjax_collapse.simulation.simulation import Hardware, Run, Schedule, check


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of federated averaging, each a compiled call; on a GPU by the lowerings that are fastest there."""
    return _run(workload, task, setting, is_timed=setting.device == "gpu")


def timed(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The same by the lowerings that are fastest on the device, whichever it is."""
    return _run(workload, task, setting, is_timed=True)


def _run(workload, task, setting, is_timed):
    model, is_on_gpu = Model(networks.linen(workload.network), workload.image_shape), setting.device == "gpu"
    default = setting.cores, workload.clients_at_once
    if is_on_gpu:
        default = 1, engine.clients_at_once(Target("gpu"), model)
    devices, clients_at_once = setting.layout or default
    if not is_on_gpu:
        jax.config.update("jax_num_cpu_devices", devices)
    client_map = layout(devices, clients_at_once)
    federation = Federation.from_arrays(
        task.images,
        task.labels,
        task.parts,
        task.images[:1],
        task.labels[:1],
        task.mean,
        task.std,
        networks.CLASS_NAMES,
    )
    if is_timed:
        model = with_timed_lowerings(model, workload.training.batch_size, clients_at_once, client_map.devices[0])
    variables, training = variables_from(model, task.weights), workload.training
    sizes = np.array([len(part) for part in task.parts])
    schedule = Schedule(1, task.cohorts.shape[1] / len(sizes))
    run = Run(federation, FedAvg(LocalTraining(*training)), jax.random.key(SEED), variables=variables)
    compiled = check(run, model, schedule, Hardware(client_map))
    records = rounds(run, compiled)
    for record in records:
        steps = np.asarray(record.steps)[0]
        cohort = np.flatnonzero(steps)
        yield Round(
            losses=np.asarray(record.metrics["task_loss"])[0, cohort],
            samples=training.epochs * sizes[cohort],
            steps=steps[cohort],
            processed=processed_samples(sizes[cohort], training, devices, clients_at_once, compiled.layout.batch_parts),
            layout=f"{devices} devices x {clients_at_once} clients",
        )


def layout(devices: int, clients_at_once: int = 1) -> engine.ClientMap:
    """So many devices, and clients at once on each."""
    chunked = engine.Chunked(clients_at_once)
    return engine.Sharded(devices, chunked) if devices > 1 else chunked


def rounds(run: Run, compiled: engine.Rounds) -> Iterator[engine.RoundRecord]:
    """The record of one round after another, when all of it is computed."""
    client_map, federation = compiled.layout.client_map, run.federation
    algorithm = jax.tree.map(jnp.asarray, run.algorithm)
    variables = compiled.model.init(run.key) if run.variables is None else run.variables
    state = engine.init(algorithm, compiled.model, variables, federation.num_clients, run.key)
    data = engine.Data(federation.ownership)
    data = data._replace(order=engine.home_order(compiled, data))
    algorithm, data, examples = client_map.replicate((algorithm, data, federation.train))
    state = engine.distribute(client_map, state, data.order)
    while True:
        state, record, _ = jax.block_until_ready(engine.run_rounds(compiled, algorithm, state, data, examples, 1))
        yield record


def processed_samples(
    sizes: np.ndarray, training: Training, devices: int, clients_at_once: int, batch_parts: int = 1
) -> int:
    """Samples computed in a round, padding included: whole batches, and each chunk as many as its longest client.

    ``batch_parts``: a last batch costs as many of these parts of one as it fits into.
    """
    epochs, batch_size = training.epochs, training.batch_size
    if batch_parts > 1:
        return int(epochs * np.sum(padded_sizes(sizes, batch_size, batch_parts)))
    steps = np.sort(-(-sizes // batch_size))
    steps = np.pad(steps, (-len(steps) % (devices * clients_at_once), 0))
    return int(epochs * batch_size * clients_at_once * steps.reshape(-1, clients_at_once).max(axis=1).sum())
