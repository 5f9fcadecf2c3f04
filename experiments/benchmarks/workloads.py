"""The benchmark's workloads: data, a split, cohorts and initial weights that are the same for every system.

SGD with momentum, clients weighted by their numbers of examples or equally, no augmentation, no dropout; by federated
averaging or a method of personal models. A task is made once and handed to the systems as a file. JAX and PyTorch are
imported where they are used: no process loads both.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.benchmarks import networks
from experiments.benchmarks.tasks import Data, Task

if TYPE_CHECKING:
    from fedjax_collapse import Model

SEED = 0
_BYTES_PER_PIXEL = 13  # a process keeps a byte and a float of each, and needs two more floats while it normalises


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

    def model(self) -> "Model":
        """The network and the task of our engine."""
        from fedjax_collapse import Model
        from fedjax_collapse.nn import task

        network = networks.linen(self.network)
        options = {"input_dtype": "int32"} if self.task == "next_word" else {}
        return Model(network, self.input_shape, task=task.named(self.task, network.num_classes), **options)

    def weight(self, examples: int) -> int:
        """The weight of a client's model in the mean."""
        return examples if self.weighting == "size" else 1

    @property
    def bytes_needed(self) -> int:
        """Returns an upper bound of the memory that the data takes in a process."""
        return self.examples * int(np.prod(self.input_shape)) * _BYTES_PER_PIXEL

    def scaled(self, scale: float) -> "Workload":
        """Returns the workload with this share of the examples.

        Clients, and with them the cohort, become fewer only if each would be left with less than a batch, or, if it has
        less than that anyway, with less than before.
        """
        examples = max(2, round(scale * self.examples))
        least = min(self.training.batch_size, self.examples / self.clients)
        clients = min(self.clients, max(2, int(examples / least + 1e-6)))
        cohort = max(1, round(self.cohort * clients / self.clients))
        return dataclasses.replace(self, examples=examples, clients=clients, cohort=cohort)


def make_task(workload: Workload, rounds: int) -> Task:
    """Returns the task of a workload, with the cohorts of this many rounds."""
    data = workload.data(workload.examples)
    return complete_task(workload, data, workload.split(data.labels, workload.clients), workload.cohort, rounds)


def complete_task(workload: Workload, data: Data, parts: Sequence[np.ndarray], cohort: int, rounds: int) -> Task:
    """Returns the task of these clients, with initial weights and the cohorts that the engine draws."""
    import jax

    from experiments.benchmarks.weights import arrays_in_order
    from fedjax_collapse import Participation

    key = jax.random.key(SEED)
    model = workload.model()
    draw, sizes = Participation().draw, jax.numpy.array([len(part) for part in parts])
    cohorts = np.stack([draw(jax.random.fold_in(key, round), sizes, cohort) for round in range(rounds)])
    return Task(*data, list(parts), arrays_in_order(model, model.init(key)), cohorts)


def _digits(count: int) -> Data:
    """Returns this many of scikit-learn's 1,797 digits."""
    from fedjax_collapse.data import sources

    return _pooled(sources.digits(), count)


def _large_digits(count: int) -> Data:
    """Returns this many of the digits with 28 x 28 pixels, in [-1, 1]."""
    from experiments.configs import pfllib

    return _pooled(pfllib.digits(), count)


def _pooled(source: Any, count: int) -> Data:
    """Returns this many of a source's examples."""
    images = np.concatenate([source.images, source.test_images])
    labels = np.concatenate([source.labels, source.test_labels])
    kept = np.random.default_rng(SEED).permutation(len(labels))[:count]
    return Data(images[kept], labels[kept], source.mean, source.std)


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


def _ragged(median: float, spread: float, most: int) -> Callable[[np.ndarray, int], Sequence[np.ndarray]]:
    """Clients whose sizes are log-normal and cut at ``most``, in proportion if there are not as many examples."""

    def split(labels, clients):
        rng = np.random.default_rng(SEED)
        sizes = np.minimum(most, np.ceil(rng.lognormal(np.log(median), spread, clients)))
        ends = np.round(np.cumsum(sizes) / sizes.sum() * len(labels)).astype(int)
        return np.split(rng.permutation(len(labels)), ends[:-1])

    return split


def _split(kind: str, **options: Any) -> Callable[[np.ndarray, int], Sequence[np.ndarray]]:
    def split(labels, clients):
        from fedjax_collapse.data import partition

        return getattr(partition, kind)(labels, clients, seed=SEED, **options)

    return split


_DIGITS = dict(data=_digits, input_shape=(8, 8, 1), examples=1797)
_IMAGES = dict(data=_synthetic_images, input_shape=(32, 32, 3))
_DIRICHLET = dict(split=_split("dirichlet", alpha=0.1, min_size=1), training=Training(1, 32, 0.01, 0.9))
_EVERYBODY = dict(clients=100, cohort=100)
_TWENTY = dict(clients=20, cohort=20, weighting="equal")
_BLAZEFL = dict(  # of BlazeFL's benchmark, whose small network is another one
    examples=50_000,
    split=_split("pathological", classes_per_client=2, method="shards"),
    training=Training(5, 50, 0.1, 0.0),
)

WORKLOADS = {
    "mlp100": Workload(**_DIGITS, **_DIRICHLET, **_EVERYBODY, network="mlp", rounds=60),
    "cnn100": Workload(**_IMAGES, **_DIRICHLET, **_EVERYBODY, examples=10_000, network="cnn"),
    **{
        f"{method}{clients}": Workload(  # of PFLlib's protocol
            data=_large_digits,
            input_shape=(28, 28, 1),
            examples=1797,
            split=_DIRICHLET["split"],
            clients=clients,
            cohort=clients,
            training=Training(1, 10, 0.005, 0.0),
            network="pfllib_cnn",
            method=method,
        )
        for clients in (20, 100)
        for method in ("fedavg", "fedper", "ditto")
    },
    "cnn10": Workload(**_IMAGES, **_DIRICHLET, examples=10_000, clients=10, cohort=10, network="cnn"),
    "blazefl": Workload(**_IMAGES, **_BLAZEFL, **_EVERYBODY, network="cnn"),
    "blazefl_resnet18": Workload(**_IMAGES, **_BLAZEFL, **_EVERYBODY, network="resnet18"),
    "pfl": Workload(  # of pfl-research's benchmark on CIFAR-10, without its dropout
        **_IMAGES,
        examples=50_000,
        split=_split("iid"),
        clients=1000,
        cohort=50,
        training=Training(1, 10, 0.1, 0.0),
        network="two_conv_cnn",
    ),
    "pfl_text": Workload(  # of pfl-research's benchmark on StackOverflow, without its dropout
        data=_sentences,
        input_shape=(20,),
        examples=848,
        split=_ragged(median=49, spread=0.9, most=64),
        **_TWENTY,
        training=Training(1, 16, 0.3, 0.0),
        network="pfl_transformer",
        task="next_word",
    ),
    "pfl_flair": Workload(  # of pfl-research's benchmark on FLAIR, with small images and GroupNorm
        data=_scenes,
        input_shape=(32, 32, 3),
        examples=151,
        split=_ragged(median=5, spread=1.02, most=512),
        **_TWENTY,
        training=Training(2, 16, 0.01, 0.0),
        network="flair_resnet18",
        task="multi_label",
    ),
    "table6": Workload(  # of FedDecorr's Table 6
        **_IMAGES,
        examples=50_000,
        split=_split("dirichlet", alpha=0.5),
        clients=10,
        cohort=10,
        training=Training(10, 64, 0.01, 0.9),
        network="mobilenet_v2",
    ),
}
