"""FedPer, FedRep and LG-FedAvg: newcomers, personal models, and what is rejected."""

import jax
import numpy as np
import pytest
from conftest import TRAINING, assert_same_bits, one_line
from conftest import run_at_once as run

from experiments.configs import base
from fedjax_collapse import FedAvg, Model, Participation, Phase, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core import masks
from fedjax_collapse.methods.drift.fedsam import FedSAM
from fedjax_collapse.methods.personal.fedper import FedPer
from fedjax_collapse.methods.personal.fedrep import FedRep
from fedjax_collapse.methods.personal.lg_fedavg import LGFedAvg


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(7, 6)), federation.input_shape)


@pytest.mark.slow
@pytest.mark.parametrize("newcomers", ["initial", "mean"])
def test_newcomers_have_initial_or_mean_heads(federation, network, newcomers):
    """Newcomers get the mean, by size, of heads whose uploads arrived, also with private biases; or the initial one."""
    start, rule = network.init(jax.random.key(3)), Participation(0.8, upload_loss=0.5)
    methods, options = {"it": FedPer(newcomers)}, dict(variables=start, participation=rule, key=jax.random.key(4))
    result = run(federation, network, FedAvg(TRAINING, methods, private="Dense_0/bias"), **options)
    arrived, took_part = result.clients["arrived"][0], result.clients["steps"][0] > 0
    assert took_part.sum() == 4 and 1 < (arrived == 1).sum() < 4
    weights = np.where(arrived == 1, federation.ownership.sizes, 0)
    for path, stored in result.state.clients.private.items():
        mean = np.average(stored, axis=0, weights=weights)
        newcomer = masks.by_path(start)[path] if newcomers == "initial" else mean
        for client in range(5):
            own = masks.by_path(result.personal(client))[path]
            np.testing.assert_allclose(own, stored[client] if took_part[client] else newcomer, rtol=1e-5, atol=1e-7)
    of_server = masks.by_path(result.variables)["params/Dense_2/bias"]
    own = np.stack([masks.by_path(result.personal(client))["params/Dense_2/bias"] for client in range(5)])
    np.testing.assert_allclose(of_server, own.mean(axis=0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_what_a_method_keeps_is_not_perturbed(federation, network):
    """FedSAM does not perturb FedPer's private heads, as with ``private="head"``."""
    sharp = {"fedsam": FedSAM(0.5)}
    named = run(federation, network, FedAvg(TRAINING, {"fedper": FedPer(), **sharp}), rounds=1)
    plain = run(federation, network, FedAvg(TRAINING, sharp, private="head"), rounds=1)
    assert_same_bits(named.variables, plain.variables)
    assert_same_bits(named.state.clients.private, plain.state.clients.private)


def test_parts_of_methods_are_joined(federation):
    model = Model(nn.SmallCNN(4, channels=(3,)), federation.input_shape)

    def names(part):
        return masks.select(model.mask(part), jax.eval_shape(model.init, jax.random.key(0))).keys()

    assert names(FedAvg(private="batch_norm", methods={"fedper": FedPer()}).private_part) == names("head+batch_norm")
    shared = FedAvg(private="Dense_0/bias", methods={"lg_fedavg": LGFedAvg("head + Conv_0")}).private_part
    assert names(shared) == names("batch_norm+Dense_0/bias")
    model = Model(nn.MOONCNN(10, hidden=(120, 100)), (32, 32, 3))  # LG-FedAvg's command for CIFAR-10
    assert names(LGFedAvg("Conv_0+Conv_1").private) == names("Dense_0+Dense_1+head")


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (FedAvg(TRAINING.replace(phases=(Phase(),)), {"a": FedRep()}), "method a: training.phases is given too"),
        (FedAvg(TRAINING.replace(steps=3), {"fedrep": FedRep()}), "method fedrep: training.steps is given too"),
        (FedAvg(TRAINING, {"a": FedPer(), "b": LGFedAvg()}), "methods a and b: each keeps a part of the network"),
        (FedAvg(TRAINING, {"a": FedRep(), "b": FedRep()}), "methods a and b: each has phases of its own"),
        (FedAvg(TRAINING.replace(momentum_reset=False), {"a": FedRep()}), "method a: .*=False is given too"),
        (
            FedAvg(TRAINING, {"it": LGFedAvg("Dense_9")}),
            "method it: network MLP: part Dense_9: the network has no such",
        ),
        (FedAvg(TRAINING, {"it": LGFedAvg("all - head")}), "LGFedAvg: shared 'all - head': expected parts"),
    ],
)
def test_invalid_values_are_rejected(federation, network, algorithm, message):
    with one_line(message):
        algorithm.check(network)


def test_in_a_config():
    config = base.get_config()
    config.methods = dict(fedrep=dict(head_epochs=3))
    config.server.update(weighting="size", batch_norm="local")
    algorithm = build.algorithm(plain(config))
    assert algorithm.local_training.phases == (Phase("head", 3), Phase("body", 1))
    assert set(algorithm.private_part.split("+")) == {"head", "batch_norm"} and algorithm.weights_by == "size"
    config.methods = dict(lg_fedavg=dict(shared="head+Dense_0"))
    assert build.algorithm(plain(config)).private_part == "batch_norm+all - head - Dense_0"
