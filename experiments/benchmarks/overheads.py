"""The cost of a method over federated averaging, and of an augmentation over none, by interleaved rounds.

Ten clients with about a hundred synthetic images 32x32x3 each, ten local epochs in batches of 64 as in FedDecorr's
experiments, the small CNN of ``cnn100``, no augmentation. Interleaving cancels changes of the machine's speed: the
overhead is the median, over rounds, of a method's seconds divided by those of federated averaging's adjacent round.
Data, clients, network and training may also be those of a workload.

Augmentations are timed in federated averaging of the same clients, for two local epochs. Presets that are the same
function share a row; presets that need or produce images of another size than 32x32 pixels are omitted.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Collection, Sequence

import jax

from experiments.benchmarks import adapter_rounds, engine_rounds, storage_rounds
from experiments.benchmarks.tables import Row, spread
from experiments.benchmarks.workloads import SEED, WORKLOADS
from experiments.config.names import classes
from fedjax_collapse import FedAvg, LocalTraining, Model, partition
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.augment import PRESETS, Augmentation, output_shape
from fedjax_collapse.nn.adapters import LoRA

CLIENTS, EXAMPLES = 10, 1000
TRAINING = LocalTraining(epochs=10, batch_size=64, learning_rate=0.01, momentum=0.9, weight_decay=1e-5)
_WARM_UP = 2  # rounds: the first compiles, the second may still fill caches
AUGMENTED = TRAINING.replace(epochs=2)  # few, as an augmentation costs the same in each


def methods(
    names: Collection[str] | None = None,
    like: str | None = None,
    training: LocalTraining | None = None,
    model: Model | None = None,
) -> dict[str, FedAvg]:
    """Federated averaging, alone and with each method that accepts the network with some head; default options.

    Args:
        names: of the methods; None is all.
        like: a workload, whose network and training are taken instead of those above.
        training: of the clients, in place of both.
        model: the network, likewise.
    """
    workload = WORKLOADS[like or "cnn100"]
    training = training or (LocalTraining(*workload.training) if like else TRAINING)
    model = model or workload.model()
    chosen = {name: kind for name, kind in classes("method").items() if names is None or name in names}
    found = {kind.__name__: FedAvg(training, {name: kind()}) for name, kind in chosen.items()}
    return {"FedAvg": FedAvg(training)} | {name: method for name, method in found.items() if accepted(method, model)}


def accepted(algorithm: FedAvg, model: Model) -> Model | None:
    """The model with the first head, starting with its own, that all methods of the algorithm accept; None if none."""
    has_head = any(field.name == "head" for field in dataclasses.fields(model.module))
    heads = classes("head").values() if has_head else ()
    for other in (model, *(model.with_module(head=head) for head in heads)):
        try:
            algorithm.check(other)
        except UserError:
            continue
        return other
    return None


def first_accepted(algorithm: FedAvg, models: Sequence[Model]) -> Model | None:
    """The first model, perhaps with another head, or else the first one with adapters, that all methods accept."""
    adapted = dataclasses.replace(models[0], adapters=LoRA(2, 8.0, layers=("all",)))
    return next(filter(None, (accepted(algorithm, model) for model in (*models, adapted))), None)


def augmentations() -> dict[str, Augmentation | None]:
    """Every distinct preset for images of this size, under all its names; the first is no augmentation."""
    names = {PRESETS["none"]: []}
    for name, augmentation in PRESETS.items():
        names.setdefault(augmentation, []).append(name)
    distinct = {", ".join(same): augmentation for augmentation, same in names.items() if _takes_images(augmentation)}
    return distinct | {next(iter(distinct)): None}  # as in a run, where images then go through no function


def measure(
    kind: str,
    rounds: int,
    cores: int,
    scale: float = 1.0,
    advance: Callable[[int], None] = lambda total: None,
    names: Collection[str] | None = None,
    like: str | None = None,
    device: str = "cpu",
) -> list[Row]:
    """A row for each of the ``methods``, ``augmentations`` or kinds of ``storage``: seconds of its rounds, and their
    ratio to the first's; of ``adapters`` two for each case.

    ``advance`` is called after every preparation and every round, with the number of all of them.

    Rows of augmentations also have microseconds per image: what one adds to a round, on all cores together, divided by
    the number of true images; augmenting padding is part of it.
    """
    jax.config.update("jax_num_cpu_devices", cores)  # before anything is computed
    if kind == "storage":
        with storage_rounds.rounds(cores, scale) as runs:
            timed = _in_turns(runs, rounds, advance, storage_rounds.ROUNDS_AT_ONCE)
        return [{"storage": name} | row for name, row in timed.items()]
    if kind == "adapters":
        total = len(adapter_rounds.cases(device)) * 2 * (_WARM_UP + rounds)
        return [
            {"case": str(case), "trained": name} | row
            for case, runs in adapter_rounds.rounds(cores, device)
            for name, row in _in_turns(runs, rounds, lambda _: advance(total)).items()
        ]
    if kind == "methods":
        timed = _interleaved(methods(names, like), rounds, cores, scale, advance, like, device)
        return [{"method": name} | row for name, row in timed.items()]
    algorithms = {name: FedAvg(AUGMENTED.replace(augmentation=chosen)) for name, chosen in augmentations().items()}
    images = AUGMENTED.epochs * round(scale * EXAMPLES)
    return [
        {"augmentation": name} | row | {"microseconds_per_image": 1e6 * row["seconds_added"] / images}
        for name, row in _interleaved(algorithms, rounds, cores, scale, advance).items()
    ]


def _interleaved(algorithms, rounds, cores, scale, advance, like=None, device="cpu"):
    """The seconds of each algorithm's rounds, and their ratio to those of the first algorithm's adjacent rounds."""
    run_round = {}
    total = len(algorithms) * (1 + _WARM_UP + rounds)
    for name, algorithm in algorithms.items():
        run_round[name] = _rounds(algorithm, cores, scale, like, device)
        advance(total)
    return _in_turns(run_round, rounds, lambda _: advance(total))


def _in_turns(run_round, rounds, advance, at_once=1):
    """The seconds of each function's rounds, of which a call runs ``at_once``; and their ratio to the first's."""
    total = len(run_round) * (_WARM_UP + rounds)
    for _ in range(_WARM_UP):
        for run in run_round.values():
            run()
            advance(total)
    seconds = {name: [] for name in run_round}
    for _ in range(rounds):
        for name, run in run_round.items():
            start = time.perf_counter()
            run()
            seconds[name].append((time.perf_counter() - start) / at_once)
            advance(total)
    baseline, rows = next(iter(seconds.values())), {}
    for name, taken in seconds.items():
        pairs = list(zip(taken, baseline, strict=True))
        rows[name] = {
            "seconds_per_round": spread(taken),
            "overhead": spread([one / base for one, base in pairs]),
            "seconds_added": statistics.median(one - base for one, base in pairs),
        }
    return rows


def _rounds(algorithm, cores, scale, like=None, device="cpu"):
    """Returns a function that runs the next round to its end."""
    workload, at_once, share = WORKLOADS[like or "cnn100"].scaled(scale), 1, 1.0
    if like:
        data, at_once = workload.data(workload.examples), workload.clients_at_once
        share = workload.cohort / workload.clients
        parts = workload.split(data.labels, workload.clients)
    else:
        data = workload.data(round(scale * EXAMPLES))
        parts = partition.dirichlet(data.labels, CLIENTS, 0.5, SEED, min_size=1)
    model = accepted(algorithm, workload.model())
    layout = engine_rounds.layout(*engine_rounds.default_layout(model, device, cores, at_once))
    prepared = engine_rounds.prepare(data, parts, algorithm, model, layout, share)
    return functools.partial(next, engine_rounds.rounds(*prepared))


def _takes_images(augmentation):
    image_shape = WORKLOADS["cnn100"].input_shape
    try:
        return output_shape(augmentation, image_shape) == image_shape
    except UserError:
        return False
