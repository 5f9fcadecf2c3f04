"""The benchmark's workloads: data, a split, cohorts and initial weights that are the same for every system.

SGD with momentum, clients weighted by their numbers of examples or equally, no augmentation, no dropout; by federated
averaging or a method of personal models. A task is made once and handed to the systems as a file.
"""

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from experiments.benchmarks import networks
from experiments.configs import pfllib
from fedjax_collapse import Model, Participation
from fedjax_collapse.data import partition, sources
from fedjax_collapse.nn import task
from fedjax_collapse.nn.interchange.torch_weights import arrays_in_order

SEED = 0


class Data(NamedTuple):
    """Inputs and labels, and the constants that normalise pixels."""

    inputs: np.ndarray  # images [examples, height, width, channels] uint8, or ids of tokens [examples, length]
    labels: np.ndarray  # [examples]; [examples, length] of tokens; [examples, labels] of 0 and 1
    mean: float = 0.0
    std: float = 1.0


class Task(NamedTuple):
    """Everything that systems share on one workload."""

    data: Data
    parts: list[np.ndarray]  # each client's examples
    weights: list[np.ndarray]  # initial, as ``weights.arrays_in_order`` gives them
    cohorts: np.ndarray  # [rounds, cohort] clients that take part in a round

    def save(self, path: Path) -> None:
        """Writes the task to ``path``, for processes of the same benchmark."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a task written by ``save``."""
        return pickle.loads(path.read_bytes())


class Training(NamedTuple):
    """One client's local training in a round."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float


@dataclasses.dataclass(frozen=True)
class Workload:
    """Data, and how it is split and trained on.

    Every round does the same work: either all clients take part, or clients are equally large.
    """

    data: Callable[[int], Data]  # so many examples
    input_shape: tuple[int, ...]  # of images or sequences
    examples: int
    split: Callable[[np.ndarray, int], Sequence[np.ndarray]]  # labels over so many clients
    clients: int
    cohort: int  # clients in a round
    training: Training
    network: str  # of ``networks.py``
    rounds: int = 5  # to time, unless asked otherwise: many short ones, as a machine's pauses are long against them
    clients_at_once: int = 1  # on each device, where this network is fastest
    method: str = "fedavg"  # or fedper, ditto
    task: str = "classification"  # or next_word, multi_label (``nn/task.py``)
    weighting: str = "size"  # of the clients, or equal

    def model(self, **options: Any) -> Model:
        """Returns the network, with these options, and the task of our engine."""
        network = networks.linen(self.network, **options)
        of_input = {"input_dtype": "int32"} if self.task == "next_word" else {}
        return Model(network, self.input_shape, task=task.named(self.task, network.num_classes), **of_input)

    def weight(self, examples: int) -> int:
        """The weight of a client's model in the mean."""
        return examples if self.weighting == "size" else 1

    def scaled(self, scale: float) -> "Workload":
        """Returns the workload with this fraction of the examples.

        Clients, and with them the cohort, become fewer only if each would be left with less than a batch, or, if it has
        less than that anyway, with less than before.
        """
        examples = max(2, round(scale * self.examples))
        least = min(self.training.batch_size, self.examples / self.clients)
        clients = min(self.clients, max(2, int(examples / least + 1e-6)))
        cohort = max(1, round(self.cohort * clients / self.clients))
        return dataclasses.replace(self, examples=examples, clients=clients, cohort=cohort)


def make_task(workload: Workload, rounds: int) -> Task:
    """Returns the task of a workload: data, split, initial weights, and the cohorts that the engine draws in rounds."""
    data = workload.data(workload.examples)
    parts = list(workload.split(data.labels, workload.clients))
    key = jax.random.key(SEED)
    model = workload.model()
    draw, sizes = Participation().draw, jax.numpy.array([len(part) for part in parts])
    cohorts = np.stack([draw(jax.random.fold_in(key, round), sizes, workload.cohort) for round in range(rounds)])
    return Task(data, parts, arrays_in_order(model, model.init(key)), cohorts)


def _pooled(read: Callable[[], sources.Source], count: int) -> Data:
    """Returns this many of the examples of a source."""
    source = read()
    kept = np.random.default_rng(SEED).permutation(len(source.labels) + len(source.test_labels))[:count]
    pairs = (source.images, source.test_images), (source.labels, source.test_labels)
    return Data(*(np.concatenate(pair)[kept] for pair in pairs), source.mean, source.std)


def _synthetic_images(count: int) -> Data:
    """Returns images 32x32x3: each class is a coarse pattern, with noise."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(10, size=count)
    patterns = rng.uniform(48, 208, (10, 4, 4, 3)).astype(np.float32).repeat(8, axis=1).repeat(8, axis=2)
    images = np.empty((count, 32, 32, 3), np.uint8)
    for start in range(0, count, 1000):  # as floats, all of them would take much memory
        patches = patterns[labels[start : start + 1000]]
        noise = 32 * rng.standard_normal(patches.shape, np.float32)
        images[start : start + 1000] = (patches + noise).clip(0, 255)
    return Data(images, labels, 128.0, 64.0)


def _sentences(count: int) -> Data:
    """Returns sentences of words drawn with a probability of 1 / rank: the first 20 ids, and of each the next one.

    Ids are TFF's: 0 pads, then 10,000 words, other words, begin and end. There are 13.5 targets in a sentence.
    """
    rng, length, words = np.random.default_rng(SEED), 20, networks.IDS - 4
    lengths = rng.geometric(1 / 20, count)
    ids = np.minimum((1.5 * words) ** rng.random((count, length)), words + 1).astype(int)  # others than the words
    tokens = np.pad(np.hstack([np.full((count, 1), words + 2), ids]), ((0, 0), (0, 1)))
    places = np.arange(length + 2)
    tokens[places == lengths[:, None] + 1] = words + 3
    tokens = np.where(places > lengths[:, None] + 1, 0, tokens)[:, : length + 1].astype(np.int32)
    return Data(tokens[:, :-1], tokens[:, 1:])


def _scenes(count: int) -> Data:
    """Returns images 32x32x3 that have each of 17 labels with a probability of 0.15: means of patterns, with noise."""
    rng = np.random.default_rng(SEED)
    labels = rng.random((count, networks.LABELS)) < 0.15
    patterns = rng.uniform(-64, 64, (networks.LABELS, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    images = 128 + np.tensordot(labels, patterns, 1) + 32 * rng.standard_normal((count, 32, 32, 3))
    return Data(images.clip(0, 255).astype(np.uint8), labels.astype(np.int32), 128.0, 64.0)


def _noise(size: int, count: int) -> Data:
    """Returns random images of this height and width, with random labels."""
    rng = np.random.default_rng(SEED)
    images = rng.integers(0, 256, (count, size, size, 3), np.uint8)
    return Data(images, rng.integers(0, networks.CLASSES, count), 128.0, 64.0)


def _ragged(median: float, spread: float, most: int, labels: np.ndarray, clients: int) -> Sequence[np.ndarray]:
    """Clients whose sizes are log-normal and cut at ``most``, in proportion if there are not as many examples."""
    rng = np.random.default_rng(SEED)
    sizes = np.minimum(most, np.ceil(rng.lognormal(np.log(median), spread, clients)))
    ends = np.round(np.cumsum(sizes) / sizes.sum() * len(labels)).astype(int)
    return np.split(rng.permutation(len(labels)), ends[:-1])


def _equal(labels: np.ndarray, clients: int) -> Sequence[np.ndarray]:
    """Clients of consecutive examples."""
    return np.array_split(np.arange(len(labels)), clients)


def _from_a_pool(labels: np.ndarray, clients: int) -> Sequence[np.ndarray]:
    """Clients that have 64 distinct examples each, which others may have, too."""
    rng = np.random.default_rng(SEED)
    return [rng.choice(len(labels), 64, replace=False) for _ in range(clients)]


_DIRICHLET = partial(partition.dirichlet, alpha=0.1, min_size=1, seed=SEED)
_SHARDS = partial(partition.pathological, classes_per_client=2, method="shards", seed=SEED)
_IMAGE, _SGD = (32, 32, 3), Training(1, 32, 0.01, 0.9)
_BLAZEFL = Workload(_synthetic_images, _IMAGE, 50_000, _SHARDS, 100, 100, Training(5, 50, 0.1, 0.0), "cnn")
_LARGE, _SLOW = partial(_pooled, pfllib.digits), Training(1, 10, 0.005, 0.0)
_PFLLIB = Workload(_LARGE, (28, 28, 1), 1797, _DIRICHLET, 20, 20, _SLOW, "pfllib_cnn")
WORKLOADS = {
    "mlp100": Workload(partial(_pooled, sources.digits), (8, 8, 1), 1797, _DIRICHLET, 100, 100, _SGD, "mlp", rounds=60),
    "cnn100": Workload(_synthetic_images, _IMAGE, 10_000, _DIRICHLET, 100, 100, _SGD, "cnn"),
    **{  # of PFLlib's protocol
        f"{method}{clients}": dataclasses.replace(_PFLLIB, clients=clients, cohort=clients, method=method)
        for clients in (20, 100)
        for method in ("fedavg", "fedper", "ditto")
    },
    "cnn10": Workload(_synthetic_images, _IMAGE, 10_000, _DIRICHLET, 10, 10, _SGD, "cnn"),
    "blazefl": _BLAZEFL,  # of BlazeFL's benchmark, whose small network is another one
    "blazefl_resnet18": dataclasses.replace(_BLAZEFL, network="resnet18"),
    "pfl": Workload(  # of pfl-research's benchmark on CIFAR-10, without its dropout
        *(_synthetic_images, _IMAGE, 50_000, partial(partition.iid, seed=SEED), 1000, 50),
        *(Training(1, 10, 0.1, 0.0), "two_conv_cnn"),
    ),
    "pfl_text": Workload(  # of pfl-research's benchmark on StackOverflow, without its dropout
        *(_sentences, (20,), 848, partial(_ragged, 49, 0.9, 64), 20, 20),
        *(Training(1, 16, 0.3, 0.0), "pfl_transformer"),
        **dict(task="next_word", weighting="equal"),
    ),
    "pfl_flair": Workload(  # of pfl-research's benchmark on FLAIR, with small images and GroupNorm
        *(_scenes, _IMAGE, 151, partial(_ragged, 5, 1.02, 512), 20, 20),
        *(Training(2, 16, 0.01, 0.0), "flair_resnet18"),
        **dict(task="multi_label", weighting="equal"),
    ),
    "table6": Workload(  # of FedDecorr's Table 6
        *(_synthetic_images, _IMAGE, 50_000, partial(partition.dirichlet, seed=SEED, alpha=0.5), 10, 10),
        *(Training(10, 64, 0.01, 0.9), "mobilenet_v2"),
    ),
}
OVERHEADS = Workload(  # FedDecorr's clients and training with the network of ``cnn100``
    *(_synthetic_images, _IMAGE, 1000, partial(partition.dirichlet, seed=SEED, alpha=0.5, min_size=1), 10, 10),
    *(Training(10, 64, 0.01, 0.9), "cnn"),
)
NETWORKS = (
    *("mlp", "small_cnn", "moon_cnn", "feduv_cnn", "resnet20", "resnet32", "mobilenet_v2", "resnet18", "resnet50"),
    *("efficientnet_b0", "wide_resnet", "alexnet", "vit"),
)
NOT_CONVOLUTIONAL = ("mlp", "vit")  # whose layers have no lowering
IMAGE_SIZE = {"alexnet": 64}  # others: 32
STEPS = {"resnet50": 8, "wide_resnet": 8}  # local steps of a round on a CPU; others: 40
GROWTH = {10: 50, 100: 10, 1000: 5}  # rounds to time, by number of clients


def steps_of(network: str, device: str = "cpu", batch_size: int = 32) -> Workload:
    """Returns 40 local steps of a network on each of two clients, on a GPU eight of ten, with random images.

    With fewer, what a round costs besides its steps would count: copies of weights, and on a CPU the first use of the
    round's memory. The papers' rounds have hundreds of steps. Networks of seconds a step have eight.
    """
    size, (steps, clients) = IMAGE_SIZE.get(network, 32), {"cpu": (STEPS.get(network, 40), 2), "gpu": (8, 10)}[device]
    training, examples = Training(1, batch_size, 0.01, 0.9), batch_size * steps * clients
    data, shape = partial(_noise, size), (size, size, 3)
    return Workload(data, shape, examples, _equal, clients, clients, training, network)


def grown(workload: Workload, clients: int) -> Workload:
    """Returns the workload with this many equally large clients that share a pool, all in every round."""
    return dataclasses.replace(workload, clients=clients, cohort=clients, split=_from_a_pool)


def of_batches(batch_size: int, clients_at_once: int) -> Workload:
    """Returns twenty clients with two batches of synthetic images each."""
    training, examples = Training(1, batch_size, 0.01, 0.9), 2 * 20 * batch_size
    found = Workload(_synthetic_images, _IMAGE, examples, _equal, 20, 20, training, "vit")
    return dataclasses.replace(found, clients_at_once=clients_at_once)
