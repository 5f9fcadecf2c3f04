"""What a method costs over federated averaging: rounds of all of them in one process, by turns.

Ten clients with about a hundred synthetic images 32x32x3 each, ten local epochs in batches of 64 as in FedDecorr's
experiments, the small CNN of ``cnn100``, no augmentation. Turns cancel what else the machine does: the overhead is the
median over turns of a method's seconds over those of federated averaging in the same turn.
"""

import functools
import statistics
import time
from typing import Any

import jax

from experiments.benchmarks import networks
from experiments.benchmarks.engine_rounds import layout, rounds
from experiments.benchmarks.workloads import SEED, WORKLOADS
from fedjax_collapse import regularizers
from fedjax_collapse.algorithms import FedAvg, FedDC, FedDyn, FedNova, LocalTraining, Scaffold
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data import Federation, partition
from fedjax_collapse.records import Model
from fedjax_collapse.simulation import Schedule, check

CLIENTS, EXAMPLES = 10, 1000
TRAINING = LocalTraining(epochs=10, batch_size=64, learning_rate=0.01, momentum=0.9, weight_decay=1e-5)
REGULARIZERS = ("FedDecorr", "FedUV", "FedProx", "FedMR", "FedProc", "MOON", "DeCov", "StructuredDeCov", "VICReg")
ALGORITHMS = (Scaffold, FedNova, FedDyn, FedDC)


def methods() -> dict[str, Algorithm]:
    """Federated averaging, it with each regularizer, and the other algorithms, with default hyper-parameters."""
    on_fedavg = {name: FedAvg(TRAINING, {name.lower(): getattr(regularizers, name)()}) for name in REGULARIZERS}
    return {"FedAvg": FedAvg(TRAINING), **on_fedavg, **{kind.__name__: kind(TRAINING) for kind in ALGORITHMS}}


def measure(turns: int, cores: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """A row for each method: seconds of its rounds, and their ratio to federated averaging's."""
    jax.config.update("jax_num_cpu_devices", cores)
    run_round = {name: _rounds(algorithm, cores, scale) for name, algorithm in methods().items()}
    for _ in range(2):  # the first compiles, the second may still fill caches
        for run in run_round.values():
            run()
    seconds = {name: [] for name in run_round}
    for _ in range(turns):
        for name, run in run_round.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return [_row(name, taken, seconds["FedAvg"]) for name, taken in seconds.items()]


def _rounds(algorithm, cores, scale):
    """A function that runs the next round to its end."""
    workload = WORKLOADS["cnn100"]
    images, labels, mean, std = workload.data(round(scale * EXAMPLES))
    parts = partition.dirichlet(labels, CLIENTS, 0.5, SEED, min_size=1)
    federation = Federation.from_arrays(images, labels, parts, images[:1], labels[:1], mean, std)
    model = Model(networks.linen(workload.network), federation.image_shape)
    round_layout = check(federation, model, algorithm, Schedule(1), layout(cores))
    return functools.partial(next, rounds(federation, model, algorithm, round_layout))


def _row(name, seconds, baseline):
    ratios = sorted(taken / base for taken, base in zip(seconds, baseline, strict=True))
    return {
        "method": name,
        "seconds_per_round": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "overhead": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
    }
