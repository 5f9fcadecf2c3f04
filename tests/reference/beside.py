"""The library and the reference in the same rounds, in float64: three of the five clients in each, by default two.

Some clients take part twice, some once and one never.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from conftest import assert_close
from engine_rounds import run_rounds

from fedjax_collapse import FedAvg, LocalTraining, Method, Model, Participation, nn
from fedjax_collapse.core import masks
from fedjax_collapse.nn.adapters import LoRA
from reference.networks import TorchCNN, stacked
from reference.rounds import TOLERANCE, TRAINING, PlainFedAvg, Rounds, is_in

COHORT_SIZE = 3


class Case(NamedTuple):
    """A method of the library, perhaps ``beside`` others, and its reference.

    ``data``: the fixture of the federation. ``head``: of the library's network, which in PyTorch is ``make``; with
    ``adapters`` it is dense.
    """

    method: Method
    plain: PlainFedAvg
    beside: dict[str, Method] = {}  # noqa: RUF012
    data: str = "federation"
    training: LocalTraining = TRAINING
    private: str = "none"
    rounds: int = 2
    key: int = 7
    head: Any = "linear"
    make: type = TorchCNN
    adapters: LoRA | None = None
    upload_loss: float = 0.0


def run_library(case, name, federation):
    """The algorithm, the model and its initial variables, the state after the rounds, and whose uploads arrived."""
    module = nn.SmallCNN(4, (5, 8), head=case.head) if case.adapters is None else nn.MLP(4, hidden=(6, 5))
    model = Model(module, federation.input_shape, adapters=case.adapters)
    variables = jax.device_get(model.init(jax.random.key(0)))
    algorithm = FedAvg(case.training, {name: case.method, **case.beside}, private=case.private)
    algorithm.check(model)
    options = dict(cohort_size=COHORT_SIZE, max_rounds=case.rounds, variables=variables, key=case.key)
    rule = Participation(upload_loss=case.upload_loss)
    advance = run_rounds(federation, model, algorithm, num_rounds=case.rounds, rule=rule, **options)
    state, arrived = advance.state, advance.record.metrics.get("arrived")
    return SimpleNamespace(algorithm=algorithm, model=model, variables=variables, state=state, arrived=arrived)


def run_reference(case, plain, federation, found):
    """The reference's rounds."""
    rounds = Rounds(federation, plain, found.variables, case.training, case.make)
    return rounds.run(jax.random.key(case.key), case.rounds, COHORT_SIZE, found.arrived)


_PLAIN = {}  # by what federated averaging depends on


def run_plain(case, federation, found):
    """The rounds of federated averaging, which several cases share."""
    arrived = None if found.arrived is None else found.arrived.tobytes()
    key = case.data, repr(case.training), case.rounds, case.key, repr(case.head), case.make, case.private, arrived
    if key not in _PLAIN:
        _PLAIN[key] = run_reference(case, case.plain.alone(), federation, found)
    return _PLAIN[key]


def assert_same_rounds(case, name, federation):
    """The server's variables, and what server and clients store, are the reference's, and not federated averaging's
    unless it says so;
    what is private or frozen, and nothing else, is at the server bit for bit as it was."""
    with jax.enable_x64(True):  # random draws differ without
        found = run_library(case, name, federation)
        expected = run_reference(case, case.plain, federation, found)
        plain = run_plain(case, federation, found)
        own_found = found.state.clients.private
        case.plain.check(found, expected)
    after, model = found.state.server.variables, found.model
    assert_close(after, expected.server.dump(), TOLERANCE)
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected.server.dump(), plain.server.dump())
    assert (max(jax.tree.leaves(gaps)) > 1e-5) != case.plain.averages_alike
    assert case.upload_loss == 0 or (found.arrived == 0).any()
    is_private = model.mask(found.algorithm.private_part)
    own = [masks.select(is_private, expected.personal(i).dump()) for i in range(federation.num_clients)]
    assert_close(own_found, stacked(own), TOLERANCE)
    before, after = masks.by_path(found.variables), masks.by_path(after)
    for path, is_fixed in masks.by_path(found.algorithm.unchanged_by_server(model)).items():
        assert np.array_equal(before[path], after[path]) == (is_fixed or is_in(path, case.plain.keeps)), path
