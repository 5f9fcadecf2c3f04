"""The system ``fedjax_collapse``: rounds of this library's engine."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.workloads import SEED, Data, Task, Training, Workload
from fedjax_collapse import Ditto, FedAvg, Federation, FedPer, LocalTraining, Model, engine
from fedjax_collapse.core.records import Variables
from fedjax_collapse.core.target import Target
from fedjax_collapse.data.source import PAD
from fedjax_collapse.engine.layout import padded_sizes
from fedjax_collapse.engine.timing import with_timed_lowerings
from fedjax_collapse.nn.interchange.torch_weights import variables_from
from fedjax_collapse.run import simulation
from fedjax_collapse.run.simulation import Hardware, Run, Schedule

METHODS = {"fedavg": {}, "fedper": {"fedper": FedPer()}, "ditto": {"ditto": Ditto()}}
_Prepared = tuple[Run, engine.RoundSpec]


def run(
    workload: Workload, task: Task, setting: Setting, algorithm: FedAvg | None = None, model: Model | None = None
) -> Iterator[Round]:
    """Yields rounds, each a compiled call; on a GPU with the lowerings that are fastest there, unless one is chosen.

    Args:
        workload: data, split, training, network and method.
        task: with initial weights for the workload's network.
        setting: devices, and the options of the network.
        algorithm: instead of the workload's method and training.
        model: instead of its network, and with own initial weights.
    """
    prepared, devices, clients_at_once = _prepared(workload, task, setting, algorithm, model)
    training, sizes = prepared[0].algorithm.training, np.array([len(part) for part in task.parts])
    parts = prepared[1].layout.batch_parts
    for record in rounds(*prepared):
        steps = np.asarray(record.steps)[0]
        cohort = np.flatnonzero(steps)
        yield Round(
            losses=np.asarray(record.metrics["task_loss"])[0, cohort],
            samples=training.epochs * sizes[cohort],
            steps=steps[cohort],
            processed=processed_samples(sizes[cohort], training, devices, clients_at_once, parts),
            layout=f"{devices} devices x {clients_at_once} clients",
        )


def compile_rounds(workload: Workload, task: Task, setting: Setting) -> None:
    """Compiles the program of ``run`` without running it."""
    prepared, *_ = _prepared(workload, task, setting)
    engine.compile_rounds(prepared[1], *_arguments(*prepared), 1)


def _prepared(workload, task, setting, algorithm=None, model=None):
    options, is_on_gpu = dict(setting.options), setting.device == "gpu"
    if is_timed := options.get("lowering", "timed" if is_on_gpu else "auto") == "timed":
        options.pop("lowering", None)
    has_weights, model = model is None, model or workload.model(**options)
    devices, clients_at_once = setting.layout or (setting.cores, workload.clients_at_once)
    if not is_on_gpu:
        jax.config.update("jax_num_cpu_devices", devices)
    elif not setting.layout:
        devices, clients_at_once = 1, engine.clients_at_once(Target("gpu"), model)
    client_map = layout(devices, clients_at_once)
    variables = variables_from(model, task.weights) if has_weights else None
    if is_timed:
        model = with_timed_lowerings(model, workload.training.batch_size, clients_at_once, client_map.devices[0])
    if algorithm is None:
        training = LocalTraining(*workload.training)
        algorithm = FedAvg(training, METHODS[workload.method], weighting=workload.weighting)
    participation = task.cohorts.shape[1] / len(task.parts)
    prepared = prepare(task.data, task.parts, algorithm, model, client_map, participation, variables)
    return prepared, devices, clients_at_once


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
) -> _Prepared:
    """Returns a run without test examples, and its rounds; ``parts`` are the examples of each client."""
    inputs, labels, mean, std = data
    of_tokens = dict(mean=None, std=None, pad=PAD)
    options = of_tokens if inputs.ndim == 2 and labels.ndim == 2 else dict(mean=mean, std=std)
    names = tuple(map(str, range(model.module.num_classes)))  # also of those that a small sample lacks
    federation = Federation.from_inputs(inputs, labels, parts, inputs[:1], labels[:1], class_names=names, **options)
    run = Run(federation, algorithm, jax.random.key(SEED), variables=variables)
    return run, simulation.prepare(run, model, Schedule(1, participation), Hardware(client_map))


def rounds(run: Run, compiled: engine.RoundSpec) -> Iterator[engine.RoundRecord]:
    """Yields the record of each round once it is computed completely."""
    algorithm, state, *inputs = _arguments(run, compiled)
    while True:
        state, record, _ = jax.block_until_ready(engine.run_rounds(compiled, algorithm, state, *inputs, 1))
        yield record


def _arguments(run, compiled):
    """Returns the algorithm, the initial state, data and examples, where ``run_rounds`` expects them."""
    client_map, federation = compiled.layout.client_map, run.federation
    algorithm = jax.tree.map(jnp.asarray, run.algorithm)
    variables = compiled.model.init(run.key) if run.variables is None else run.variables
    state = engine.init(algorithm, compiled.model, variables, federation.num_clients, run.key)
    data = engine.Assignment(federation.ownership)
    data = data._replace(order=engine.home_order(compiled, data))
    algorithm, data, examples = client_map.replicate((algorithm, data, federation.train))
    return algorithm, engine.distribute(client_map, state, data.order), data, examples


def processed_samples(
    sizes: np.ndarray, training: Training | LocalTraining, devices: int, clients_at_once: int, batch_parts: int = 1
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
