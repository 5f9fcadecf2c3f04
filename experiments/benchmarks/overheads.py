"""What a method costs over federated averaging, and an augmentation over none: rounds of all in one process, by turns.

Ten clients with about a hundred synthetic images 32x32x3 each, ten local epochs in batches of 64 as in FedDecorr's
experiments, the small CNN of ``cnn100``, no augmentation. Turns cancel what else the machine does: the overhead is the
median over turns of a method's seconds over those of federated averaging in the same turn.

Augmentations are timed in federated averaging of the same clients, for two local epochs. Presets that are the same
function share a row; those that need or make images of another size than 32x32 pixels are left out.
"""

import dataclasses
import functools
import statistics
import time
from typing import Any

import jax

from experiments.benchmarks import networks
from experiments.benchmarks.engine_rounds import layout, rounds
from experiments.benchmarks.workloads import SEED, WORKLOADS
from experiments.config.names import classes
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, partition
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.augment import PRESETS, Augmentation, output_shape
from fedjax_collapse.simulation.simulation import Hardware, Run, Schedule, check

CLIENTS, EXAMPLES = 10, 1000
TRAINING = LocalTraining(epochs=10, batch_size=64, learning_rate=0.01, momentum=0.9, weight_decay=1e-5)
AUGMENTED = TRAINING.replace(epochs=2)  # few, since what an augmentation costs is the same in each

Row = dict[str, Any]


def methods() -> dict[str, FedAvg]:
    """Federated averaging, and it with each method that the network allows with some head, with default
    hyper-parameters."""
    on_fedavg = {kind.__name__: FedAvg(TRAINING, {name: kind()}) for name, kind in classes("method").items()}
    workload = WORKLOADS["cnn100"]
    model = Model(networks.linen(workload.network), workload.image_shape)
    return {"FedAvg": FedAvg(TRAINING)} | {name: own for name, own in on_fedavg.items() if accepted(own, model)}


def accepted(algorithm: FedAvg, model: Model) -> Model | None:
    """The model, with the first head that all methods of the algorithm accept, its own before others; None without."""
    has_head = any(field.name == "head" for field in dataclasses.fields(model.module))
    heads = classes("head").values() if has_head else ()
    for other in (model, *(model.with_module(head=head) for head in heads)):
        try:
            algorithm.check(other)
        except UserError:
            continue
        return other
    return None


def augmentations() -> dict[str, Augmentation | None]:
    """Every distinct preset for images of this size, under all its names; the first is none."""
    names = {PRESETS["none"]: []}
    for name, augmentation in PRESETS.items():
        names.setdefault(augmentation, []).append(name)
    distinct = {", ".join(own): augmentation for augmentation, own in names.items() if _takes_images(augmentation)}
    return distinct | {next(iter(distinct)): None}  # as in a run, whose images then go through no function at all


def measure(kind: str, turns: int, cores: int, scale: float = 1.0) -> list[Row]:
    """The rows of ``methods`` or of ``augmentations``."""
    jax.config.update("jax_num_cpu_devices", cores)  # before anything is computed
    return {"methods": method_rows, "augmentations": augmentation_rows}[kind](turns, cores, scale)


def method_rows(turns: int, cores: int, scale: float) -> list[Row]:
    """A row for each method: seconds of its rounds, and their ratio to federated averaging's."""
    return [{"method": name} | row for name, row in _by_turns(methods(), turns, cores, scale).items()]


def augmentation_rows(turns: int, cores: int, scale: float) -> list[Row]:
    """A row for each augmentation: seconds of its rounds, their ratio to those without, and its own time per image.

    That is what it adds to a round, on all cores together, per true image; augmenting padding is part of it.
    """
    algorithms = {name: FedAvg(AUGMENTED.replace(augmentation=own)) for name, own in augmentations().items()}
    images = AUGMENTED.epochs * round(scale * EXAMPLES)
    return [
        {"augmentation": name} | row | {"microseconds_per_image": 1e6 * row["seconds_added"] / images}
        for name, row in _by_turns(algorithms, turns, cores, scale).items()
    ]


def _by_turns(algorithms, turns, cores, scale):
    """Of each algorithm the seconds of its rounds, and what they are over those of the first in the same turns."""
    run_round = {name: _rounds(algorithm, cores, scale) for name, algorithm in algorithms.items()}
    for _ in range(2):  # the first compiles, the second may still fill caches
        for run in run_round.values():
            run()
    seconds = {name: [] for name in run_round}
    for _ in range(turns):
        for name, run in run_round.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    baseline = next(iter(seconds.values()))
    return {name: _compare(taken, baseline) for name, taken in seconds.items()}


def _rounds(algorithm, cores, scale):
    """A function that runs the next round to its end."""
    workload = WORKLOADS["cnn100"]
    images, labels, mean, std = workload.data(round(scale * EXAMPLES))
    parts = partition.dirichlet(labels, CLIENTS, 0.5, SEED, min_size=1)
    federation = Federation.from_arrays(images, labels, parts, images[:1], labels[:1], mean, std, networks.CLASS_NAMES)
    model = accepted(algorithm, Model(networks.linen(workload.network), federation.input_shape))
    run = Run(federation, algorithm, jax.random.key(SEED))
    return functools.partial(next, rounds(run, check(run, model, Schedule(1), Hardware(layout(cores)))))


def _compare(seconds, baseline):
    pairs = list(zip(seconds, baseline, strict=True))
    ratios = sorted(taken / base for taken, base in pairs)
    return {
        "seconds_per_round": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "overhead": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
        "seconds_added": statistics.median(taken - base for taken, base in pairs),
    }


def _takes_images(augmentation):
    image_shape = WORKLOADS["cnn100"].image_shape
    try:
        return output_shape(augmentation, image_shape) == image_shape
    except UserError:
        return False
