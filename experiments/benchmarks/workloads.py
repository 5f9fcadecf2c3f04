"""What the benchmark trains: data, a split and initial weights that every system starts from.

One epoch of SGD at each of 100 clients, all of them in every round, averaged by their numbers of examples. A task is
made once and handed to the systems as a file. JAX and PyTorch are imported where they are used: no process loads both.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NUM_CLIENTS, ALPHA, SEED = 100, 0.1, 0
EPOCHS, BATCH_SIZE, LEARNING_RATE, MOMENTUM = 1, 32, 0.01, 0.9

Data = tuple[np.ndarray, np.ndarray, float, float]  # images, labels, mean and std of the pixels


@dataclasses.dataclass(frozen=True)
class Workload:
    """Data, and one network written for both sides, its layers in the same order with a bias each."""

    data: Callable[[], Data]
    network: Callable[[], Any]  # a Linen module
    torch_network: Callable[[], Any]  # an equal torch.nn.Module
    clients_at_once: int  # on each device, where this network is fastest
    rounds: int  # to time, unless asked otherwise: many short ones, as a machine's pauses are long against them


class Task(NamedTuple):
    """All that is common to the systems on one workload."""

    images: np.ndarray  # [examples, height, width, channels] uint8
    labels: np.ndarray  # [examples]
    mean: float
    std: float
    parts: list[np.ndarray]  # each client's examples
    weights: list[np.ndarray]  # bias and kernel of each layer; kernels as [..., in, out]

    def save(self, path: Path) -> None:
        """Writes the task to ``path``."""
        lists = {f"{name}_{i}": x for name in ("parts", "weights") for i, x in enumerate(getattr(self, name))}
        np.savez(path, images=self.images, labels=self.labels, mean=self.mean, std=self.std, **lists)

    @classmethod
    def load(cls, path: Path) -> "Task":
        """The task that ``save`` wrote."""
        with np.load(path) as file:
            lists = [
                [file[f"{name}_{i}"] for i in range(sum(key.startswith(name) for key in file))]
                for name in ("parts", "weights")
            ]
            return cls(file["images"], file["labels"], float(file["mean"]), float(file["std"]), *lists)


def make_task(workload: Workload, scale: float = 1.0) -> Task:
    """The task of a workload; ``scale`` < 1 keeps that share of the clients and of the examples, for tests."""
    import jax

    from fedjax_collapse.data import partition
    from fedjax_collapse.records import Model

    images, labels, mean, std = workload.data()
    kept = np.random.default_rng(SEED).permutation(len(labels))[: round(scale * len(labels))]
    images, labels = images[kept], labels[kept]
    parts = partition.dirichlet(labels, max(2, round(scale * NUM_CLIENTS)), ALPHA, SEED, min_size=1)
    variables = Model(workload.network(), images.shape[1:]).init(jax.random.key(SEED))
    return Task(images, labels, mean, std, parts, list(map(np.asarray, jax.tree.leaves(variables.params))))


def _digits() -> Data:
    """All 1,797 of scikit-learn's."""
    from fedjax_collapse.data import sources

    source = sources.digits()
    images = np.concatenate([source.images, source.test_images])
    return images, np.concatenate([source.labels, source.test_labels]), source.mean, source.std


def _synthetic_images() -> Data:
    """10,000 images 32x32x3: each class a coarse pattern of its own, under noise."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(10, size=10_000)
    patterns = rng.uniform(48, 208, (10, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    images = patterns.astype(np.float32)[labels] + 32 * rng.standard_normal((10_000, 32, 32, 3), np.float32)
    return images.clip(0, 255).astype(np.uint8), labels, 128.0, 64.0


def _mlp():
    from fedjax_collapse import nn

    return nn.MLP(10, hidden=(128, 128))


def _torch_mlp():
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def _cnn():
    from fedjax_collapse import nn

    return nn.SmallCNN(10, channels=(32, 64, 64), norm="none")


def _torch_cnn():
    from torch import nn

    def block(inputs, outputs):
        return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()

    pool = nn.MaxPool2d(2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(*block(3, 32), pool, *block(32, 64), pool, *block(64, 64), *head)


WORKLOADS = {
    "mlp100": Workload(_digits, _mlp, _torch_mlp, clients_at_once=1, rounds=60),
    "cnn100": Workload(_synthetic_images, _cnn, _torch_cnn, clients_at_once=1, rounds=5),
}
