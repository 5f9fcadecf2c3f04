"""Whole rounds against a plain PyTorch loop: federated averaging, FedDecorr, and the algorithms with a state.

The other methods have theirs beside their own tests.
"""

import jax
import numpy as np
import pytest
from conftest import assert_close
from reference.beside import assert_same_rounds
from reference.methods import PlainFedDecorr, PlainFedDyn, PlainScaffold, PlainStates
from reference.rounds import NORMS, TRAINING, PlainFedAvg, Rounds

from fedjax_collapse import FedAvg, FedDC, FedDecorr, FedDyn, FedNova, Model, Scaffold, engine, nn, simulate
from fedjax_collapse.training import schedules


@pytest.fixture(params=["float64", "float32"])
def setting(request):
    """Tolerance, rounds and layout: two rounds in double precision, where nothing hides in rounding, and one in single.

    FedDecorr divides by the deviation of features, which in so small a network may be near 0: rounding errors of the
    first round grow in the second.
    """
    if request.param == "float32":
        yield 1e-5, 1, engine.Chunked(2)
        return
    with jax.enable_x64(True):
        yield 1e-11, 2, engine.Chunked(1)


@pytest.mark.parametrize(
    ("methods", "method"),
    [({}, PlainFedAvg()), ({"feddecorr": FedDecorr(0.1, "official")}, PlainFedDecorr())],
    ids=["fedavg", "feddecorr"],
)
def test_rounds_equal_a_plain_pytorch_loop(federation, methods, method, setting):
    tolerance, rounds, client_map = setting
    model = Model(nn.SmallCNN(4, channels=(5, 7)), federation.input_shape)
    variables = model.init(jax.random.key(0))  # no feature is nearly dead: FedDecorr divides by its deviation
    algorithm, key = FedAvg(TRAINING, methods), jax.random.key(7)
    result = simulate(federation, model, algorithm, rounds=rounds, key=key, variables=variables, client_map=client_map)
    plain = Rounds(federation, method, variables).run(jax.random.split(key)[1], rounds, cohort_size=5)
    expected = plain.server.dump()
    assert_close(result.variables, expected, tolerance)
    leaves = zip(*map(jax.tree.leaves, (expected, jax.device_get(variables))), strict=True)
    assert min(np.abs(a - b).max() for a, b in leaves) > 1e-3  # every leaf was trained, so agreement means something


class PlainFedNova(PlainStates):
    def aggregate(self, received, clients):
        tau = sum(client.weight * self.norm(client.steps) for client in clients)
        return received + tau * sum(c.weight * (c.params - received) / self.norm(c.steps) for c in clients)


class PlainFedDC(PlainFedDyn):
    def decay(self, client):
        return 0

    def omega(self, client):
        return self.sizes[client.id] / self.sizes.mean()

    def correction(self, client, w):
        pull = self.share(client) * (w - client.received + self.h[client.id])
        return pull + self.server / self.omega(client) - self.own[client.id]

    def finish(self, client):
        super().finish(client)
        all_steps = self.training.epochs * np.ceil(self.sizes.mean() / self.training.batch_size)
        moved = client.params - client.received
        change = -self.server / self.omega(client) - moved / (all_steps * self.training.learning_rate)
        self.own[client.id] += change
        return self.omega(client) * change

    def aggregate(self, received, clients):
        self.server = self.server + sum(client.report for client in clients) / len(self.sizes)
        return super().aggregate(received, clients)


class DynWithPrivateNorms(PlainFedDyn):
    private = NORMS


CAREFUL = TRAINING.replace(
    clip_norm=0.5, drop_last=True, schedule=jax.tree_util.Partial(schedules.decay, factor=0.5), freeze="head"
)
DYN = {"feddyn": FedDyn(alpha=0.1)}
ALGORITHMS = {
    "scaffold": (FedAvg(TRAINING, {"scaffold": Scaffold("fednova")}), PlainScaffold()),
    "fednova": (FedAvg(TRAINING, {"fednova": FedNova()}), PlainFedNova()),
    "feddyn with clipping, drop_last, schedule, frozen head": (FedAvg(CAREFUL, DYN), PlainFedDyn()),
    "feddyn with private BatchNorm": (FedAvg(TRAINING, DYN, private="batch_norm"), DynWithPrivateNorms()),
    "feddc": (FedAvg(TRAINING, {"feddc": FedDC(alpha=0.1)}), PlainFedDC()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_of_algorithms_equal_a_plain_pytorch_loop(federation, name):
    assert_same_rounds(federation, *ALGORITHMS[name])
