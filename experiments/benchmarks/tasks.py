"""The task that systems train, as a file: the same data, split, cohorts and initial weights for all."""

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np


class Data(NamedTuple):
    """Inputs and labels, and the constants that normalise pixels."""

    inputs: np.ndarray  # images [examples, height, width, channels] uint8, or ids of tokens [examples, length]
    labels: np.ndarray  # [examples]; [examples, length] of tokens; [examples, labels] of 0 and 1
    mean: float = 0.0
    std: float = 1.0


class Task(NamedTuple):
    """Everything that systems share on one workload."""

    inputs: np.ndarray  # as in Data
    labels: np.ndarray
    mean: float
    std: float
    parts: list[np.ndarray]  # each client's examples
    weights: list[np.ndarray]  # initial, as ``weights.arrays_in_order`` gives them
    cohorts: np.ndarray  # [rounds, cohort] clients that take part in a round

    @property
    def data(self) -> Data:
        """The first fields."""
        return Data(*self[:4])

    def save(self, path: Path) -> None:
        """Writes the task to ``path``, as arrays of NumPy."""
        lists = {f"{name}_{i}": x for name in ("parts", "weights") for i, x in enumerate(getattr(self, name))}
        arrays = {name: x for name, x in self._asdict().items() if name not in ("parts", "weights")}
        with path.open("wb") as file:
            np.savez(file, **arrays, **lists)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a task written by ``save``."""
        with np.load(path, allow_pickle=False) as file:
            parts, weights = (
                [file[f"{name}_{i}"] for i in range(sum(key.startswith(name) for key in file))]
                for name in ("parts", "weights")
            )
            numbers = float(file["mean"]), float(file["std"])
            return cls(file["inputs"], file["labels"], *numbers, parts, weights, file["cohorts"])
