"""Hours that the studies of papers would take on one device: an estimate, from measured rates and counted work.

The hours of a study are the sum over its runs of client-steps x samples of a step / samples per second of its network x
the operations of a step with its methods, relative to one of FedAvg. Where a network or its images were not measured,
the rate is that of a measured network of the same kind, by their operations for each sample, as JAX counts them. A
client has the mean number of examples. Not counted: evaluation, measurements, input, compilation, and clients that wait
for the one with the most steps. Projectors and heads are left out of the step.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.benchmarks.compiling import programs
from experiments.config_files import CONFIGS, config_files, with_config_found
from experiments.study.parsing import parse
from experiments.study.resolving import StudySpec, resolve
from fedjax_collapse import FedAvg, LocalTraining, engine
from fedjax_collapse.config import build
from fedjax_collapse.config.resolving import Cell
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import augment
from fedjax_collapse.results.paper import paper_of

_OUTPUTS = ("projector", "projector_dim", "head", "normalize_features")  # options that a step leaves out
_BATCH_SIZE = 32  # of the programs whose operations are counted
# samples/s of ten clients on one H100 in float32, batch 64, images 32x32x3: "Beside a captured CUDA graph" in
# docs/performance.md
Rates = tuple[tuple[str, float], ...]
RATES: Rates = (("small_cnn", 421_000), ("resnet20", 58_800), ("resnet18", 18_900), ("mobilenet_v2", 9_730))
LIKE = {  # the measured network of the same kind
    "feduv_cnn": "small_cnn",
    "alexnet": "small_cnn",
    "resnet32": "resnet20",
    "wide_resnet": "resnet18",
    "resnet50": "resnet18",
    "efficientnet_b0": "mobilenet_v2",
}


class Published(NamedTuple):
    """What a published data set is, without reading it."""

    classes: int
    shape: tuple[int, int, int]  # of an image, before augmentation
    examples: int  # of the training part
    smallest: int = 0  # training examples of the smallest domain, where studies truncate all to a part of it


PUBLISHED = {  # by data source; domains are of FedBN's ten classes, test parts as the configs hold them out
    "cifar10": Published(10, (32, 32, 3), 50_000),
    "cifar100": Published(100, (32, 32, 3), 50_000),
    "fashion_mnist": Published(10, (28, 28, 1), 60_000),
    "svhn": Published(10, (32, 32, 3), 73_257),
    "stl10": Published(10, (96, 96, 3), 5_000),
    "folder:tiny-imagenet-200": Published(200, (64, 64, 3), 100_000),
    "folder:office": Published(10, (256, 256, 3), 2_025, 125),
    "tfds:domainnet/clipart,infograph,painting,quickdraw,real,sketch": Published(10, (256, 256, 3), 18_278, 2_103),
    "isic2019:ISIC_2019_Training_Input_preprocessed": Published(8, (224, 224, 3), 18_597),
    "folder:PACS": Published(7, (96, 96, 3), 8_871),
    "folder:HAM10000": Published(7, (96, 96, 3), 8_012),
    "folder:OfficeHome": Published(65, (96, 96, 3), 13_768),
}


class Step(NamedTuple):
    """One local step of FedAvg, which many runs share."""

    network: tuple[tuple[str, Any], ...]  # its name and options
    shape: tuple[int, int, int]  # of an augmented image
    classes: int
    batch_size: int

    @property
    def title(self) -> str:
        options = dict(self.network)
        return ", ".join([options.pop("name"), *(f"{name}={value}" for name, value in options.items())])


class Work(NamedTuple):
    """What one run of a cell computes."""

    step: Step
    client_steps: float
    operations: float  # of a step, relative to FedAvg's


def studies(names: Iterable[str]) -> dict[str, StudySpec]:
    """Returns the published studies that train something, by config; a name is a config or a folder of configs.

    Raises:
        UserError: there is no such config.
    """
    found = {}
    for name in names:
        inside = [path for path in config_files() if path.parent == CONFIGS / name]
        for config in (path.relative_to(CONFIGS).with_suffix("").as_posix() for path in inside or [CONFIGS / name]):
            study = resolve(parse(with_config_found([f"--config={config}:full"])).config, Path())
            if not paper_of(study.config, counted=True):
                found[config] = study
    return found


def work(cell: Cell) -> Work:
    """Returns the work of a run of this cell.

    Raises:
        UserError: its data are not among the published ones.
    """
    values, source = cell.values, cell.values["data"]["source"]
    if source not in PUBLISHED:
        raise UserError(f"{cell}: data source {source!r}: expected one of {', '.join(PUBLISHED)}")
    data, algorithm, clients = PUBLISHED[source], build.algorithm(values), values["clients"]
    size = data.examples / clients
    if truncation := values["partition"].get("truncation"):
        size = int(truncation * data.smallest)
    cohort = build.schedule(values).rule.cohort_size(clients)
    client_steps = values["rounds"] * cohort * float(algorithm.training.mean_client_steps(size))
    network = {name: option for name, option in values["network"].items() if name not in (*_OUTPUTS, "weights")}
    shape = augment.output_shape(algorithm.training.augmentation, data.shape)
    step = Step(tuple(sorted(network.items())), shape, data.classes, algorithm.training.batch_size)
    outputs = {name: option for name, option in values["network"].items() if name in _OUTPUTS}
    return Work(step, client_steps, relative_operations(algorithm, outputs))


def relative_operations(algorithm: FedAvg, outputs: Mapping[str, Any]) -> float:
    """Returns the operations of a round of one client with one step, relative to FedAvg's.

    They are counted on a small network with these options of its projector and head. A pass over a client's examples
    at the end of a round counts as if there was one in every step.
    """
    training = LocalTraining(batch_size=_BATCH_SIZE, momentum=0.9, freeze=algorithm.training.freeze)
    return _operations(algorithm.replace(training=training), outputs) / _operations(FedAvg(training), outputs)


def _operations(algorithm, outputs):
    key = jax.tree.structure(algorithm), repr(outputs)  # numbers such as strengths do not change the program
    if key not in _COUNTED:
        _COUNTED[key] = _count(algorithm, outputs)
    return _COUNTED[key]


_COUNTED: dict[Any, float] = {}


def _count(algorithm, outputs):
    model = programs.network("small_cnn", Target(), {**outputs, "lowering": "xla"})
    arguments = programs.rounds(algorithm, model, engine.Chunked(1), 1, _BATCH_SIZE)
    return engine.lower(*arguments).cost_analysis()["flops"]


@functools.cache
def samples_per_second(step: Step, rates: Rates = RATES) -> tuple[float, str]:
    """Returns how many samples of this step a device trains in a second, and the measured network that this is by.

    Only steps of that network on images of 32x32x3 were measured; others follow by their operations.
    """
    name = dict(step.network)["name"]
    like = name if name in dict(rates) else LIKE[name]
    measured = Step((("name", like),), (32, 32, 3), programs.CLASSES, 64)
    return dict(rates)[like] * _operations_of_sample(measured) / _operations_of_sample(step), like


@functools.cache
def _operations_of_sample(step):
    options = dict(step.network)
    model = programs.network(options.pop("name"), Target(), options | {"lowering": "xla"}, step.shape, step.classes)
    lowered = programs.step(model, jax.devices("cpu")[0], 1, step.batch_size)
    return lowered.cost_analysis()["flops"] / step.batch_size


def by_step(study: StudySpec) -> dict[Step, float]:
    """Returns the client-steps of all runs of a study by step, each as many as its methods' operations count for."""
    total: dict[Step, float] = defaultdict(float)
    for cell in study.cells:
        step, client_steps, operations = work(cell)
        total[step] += len(study.seeds) * client_steps * operations
    return dict(total)
