"""System: rounds of this library's engine."""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.tasks import Data, Task
from experiments.benchmarks.weights import variables_from
from experiments.benchmarks.workloads import SEED, Training, Workload
from fedjax_collapse import Ditto, FedAvg, Federation, FedPer, LocalTraining, Model, engine
from fedjax_collapse.core.records import Variables
from fedjax_collapse.core.target import Target
from fedjax_collapse.data.source import PAD
from fedjax_collapse.engine.layout import padded_sizes
from fedjax_collapse.engine.timing import with_timed_lowerings
from fedjax_collapse.simulation.simulation import Hardware, Run, Schedule, check

METHODS = {"fedavg": {}, "fedper": {"fedper": FedPer()}, "ditto": {"ditto": Ditto()}}


def run(workload: Workload, task: Task, setting: Setting, is_timed: bool = False) -> Iterator[Round]:
    """Rounds of federated averaging, each a compiled call; on a GPU with the lowerings that are fastest there.

    ``is_timed``: with the lowerings that are fastest on the device, whichever it is.
    """
    model, is_on_gpu = workload.model(), setting.device == "gpu"
    default = default_layout(model, setting.device, setting.cores, workload.clients_at_once)
    devices, clients_at_once = setting.layout or default
    if not is_on_gpu:
        jax.config.update("jax_num_cpu_devices", devices)
    client_map = layout(devices, clients_at_once)
    if is_timed or is_on_gpu:
        model = with_timed_lowerings(model, workload.training.batch_size, clients_at_once, client_map.devices[0])
    variables, training = variables_from(model, task.weights), workload.training
    sizes = np.array([len(part) for part in task.parts])
    data, share = Data(task.inputs, task.labels, task.mean, task.std), task.cohorts.shape[1] / len(sizes)
    algorithm = FedAvg(LocalTraining(*training), METHODS[workload.method], weighting=workload.weighting)
    run, compiled = prepare(data, task.parts, algorithm, model, client_map, share, variables)
    for record in rounds(run, compiled):
        steps = np.asarray(record.steps)[0]
        cohort = np.flatnonzero(steps)
        yield Round(
            losses=np.asarray(record.metrics["task_loss"])[0, cohort],
            samples=training.epochs * sizes[cohort],
            steps=steps[cohort],
            processed=processed_samples(sizes[cohort], training, devices, clients_at_once, compiled.layout.batch_parts),
            layout=f"{devices} devices x {clients_at_once} clients",
        )


timed = functools.partial(run, is_timed=True)


def default_layout(model: Model, device: str, cores: int, clients_at_once: int = 1) -> tuple[int, int]:
    """Returns a device for each core and this many clients at once on each; on a GPU, what the library chooses."""
    return (1, engine.clients_at_once(Target("gpu"), model)) if device == "gpu" else (cores, clients_at_once)


def layout(devices: int, clients_at_once: int = 1) -> engine.ClientMap:
    """Returns the layout of this number of devices, with this many clients at once on each."""
    chunked = engine.Chunked(clients_at_once)
    return engine.Sharded(devices, chunked) if devices > 1 else chunked


def prepare(
    data: Data,
    parts: Sequence[np.ndarray],
    algorithm: FedAvg,
    model: Model,
    client_map: engine.ClientMap,
    participation: float = 1.0,
    variables: Variables | None = None,
) -> tuple[Run, engine.Rounds]:
    """Returns a run without test examples, and its rounds; ``parts`` are the examples of each client."""
    inputs, labels, mean, std = data
    of_tokens = dict(mean=None, std=None, pad=PAD)
    options = of_tokens if inputs.ndim == 2 and labels.ndim == 2 else dict(mean=mean, std=std)
    names = tuple(map(str, range(model.module.num_classes)))  # also of those that a small sample lacks
    federation = Federation.from_inputs(inputs, labels, parts, inputs[:1], labels[:1], class_names=names, **options)
    run = Run(federation, algorithm, jax.random.key(SEED), variables=variables)
    return run, check(run, model, Schedule(1, participation), Hardware(client_map))


def rounds(run: Run, compiled: engine.Rounds) -> Iterator[engine.RoundRecord]:
    """Yields the record of each round once it is computed completely."""
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
    """Returns the samples computed in a round, with padding: full batches, and in a chunk those of its largest client.

    A batch is divided into ``batch_parts``; a last, partial batch computes only the parts that it needs.
    """
    epochs, batch_size = training.epochs, training.batch_size
    if batch_parts > 1:
        return int(epochs * np.sum(padded_sizes(sizes, batch_size, batch_parts)))
    steps = np.sort(-(-sizes // batch_size))
    steps = np.pad(steps, (-len(steps) % (devices * clients_at_once), 0))
    return int(epochs * batch_size * clients_at_once * steps.reshape(-1, clients_at_once).max(axis=1).sum())
