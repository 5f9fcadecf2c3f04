"""The task that systems train, as a file: the same data, split, cohorts and initial weights for all."""

import pickle
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
