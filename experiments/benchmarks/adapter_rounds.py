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


def cases(device: str) -> list[Case]:
    """The cases, each once; on a GPU with the number of clients at once that the library chooses there."""
    layouts = [engine_rounds.default_layout(_model(case), device, 1, case.clients_at_once) for case in CASES]
    return list(dict.fromkeys(case._replace(clients_at_once=n) for case, (_, n) in zip(CASES, layouts, strict=True)))


def rounds(cores: int, device: str = "cpu") -> Iterator[tuple[Case, dict[str, Callable[[], None]]]]:
    """Yields, for each case, the functions that run a round with adapters and one of all weights, the former first."""
    lora = LoRA(8, 16.0, layers=("query", "value"))
    trained = {"adapters": (lora, "base"), "all weights": (None, "none")}
    for case in cases(device):
        yield case, {name: _rounds(case, cores, device, *how) for name, how in trained.items()}


def _model(case, adapters=None):
    return Model(nn.ViT(10, size=case.size, patch=case.patch), (32, 32, 3), adapters=adapters)


def _rounds(case, cores, device, adapters, freeze):
    data = WORKLOADS["cnn100"].data(CLIENTS * BATCHES * case.batch_size)
    parts = np.array_split(np.arange(len(data.labels)), CLIENTS)
    training = LocalTraining(1, case.batch_size, learning_rate=0.01, momentum=0.9, freeze=freeze)
    model = _model(case, adapters)
    clients_at_once = 1 if adapters is None else case.clients_at_once
    layout = engine_rounds.layout(*engine_rounds.default_layout(model, device, cores, clients_at_once))
    prepared = engine_rounds.prepare(data, parts, FedAvg(training), model, layout)
    return functools.partial(next, engine_rounds.rounds(*prepared))
