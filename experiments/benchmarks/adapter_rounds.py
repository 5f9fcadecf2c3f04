"""Rounds in which clients train low-rank adapters of a frozen ``vit``, and rounds in which they train all its weights.

Twenty clients with two batches of synthetic images 32x32x3 each, one epoch of SGD with momentum, adapters of rank 8 of
queries and values. The gradient with respect to a frozen weight is left out, a third of all products; what acts on
every weight once a step, whatever its batch, as the optimizer does, is left out too. Clients that train at once share
the products of the base, which are slow with few rows: on a CPU several do so where a batch is small.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from experiments.benchmarks import engine_rounds
from experiments.benchmarks.workloads import WORKLOADS
from fedjax_collapse import FedAvg, LocalTraining, Model, nn
from fedjax_collapse.nn.adapters import LoRA

CLIENTS, BATCHES = 20, 2


class Case(NamedTuple):
    """A network and a batch: an image has ``(32 / patch) ** 2 + 1`` tokens."""

    size: str
    patch: int
    batch_size: int
    clients_at_once: int = 1  # on each core, with adapters

    def __str__(self) -> str:
        tokens = (32 // self.patch) ** 2 + 1
        return f"{self.size}, {tokens} tokens, batch {self.batch_size}, {self.clients_at_once} at once"


CASES = tuple(Case("mini", patch, *batch) for patch in (4, 8) for batch in ((8,), (1,), (1, 5)))


def rounds(cores: int, device: str = "cpu") -> Iterator[tuple[Case, dict[str, Callable[[], None]]]]:
    """Yields, for each case, the functions that run a round with adapters and one of all weights, the former first."""
    for case in CASES:
        module, lora = nn.ViT(10, size=case.size, patch=case.patch), LoRA(8, 16.0, layers=("query", "value"))
        trained = {"adapters": (lora, "base"), "all weights": (None, "none")}
        yield case, {name: _rounds(case, cores, device, module, *how) for name, how in trained.items()}


def _rounds(case, cores, device, module, adapters, freeze):
    data = WORKLOADS["cnn100"].data(CLIENTS * BATCHES * case.batch_size)
    parts = np.array_split(np.arange(len(data.labels)), CLIENTS)
    training = LocalTraining(1, case.batch_size, learning_rate=0.01, momentum=0.9, freeze=freeze)
    model = Model(module, (32, 32, 3), adapters=adapters)
    clients_at_once = 1 if adapters is None else case.clients_at_once
    layout = engine_rounds.layout(*engine_rounds.default_layout(model, device, cores, clients_at_once))
    prepared = engine_rounds.prepare(data, parts, FedAvg(training), model, layout)
    return functools.partial(next, engine_rounds.rounds(*prepared))
