"""The regularizers without state: two whole rounds against plain PyTorch; and wrong values of all of them. FedMR and
FedProc are in ``test_prototype_regularizers.py``, MOON in ``test_moon.py``."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close
from reference.beside import run_both, run_reference
from reference.rounds import PlainFedAvg

from fedjax_collapse import FedAvg, LocalTraining, UserError, simulate
from fedjax_collapse.methods import (
    MOON,
    DeCov,
    FedMR,
    FedProc,
    FedProx,
    FedUV,
    StructuredDeCov,
    VICReg,
)


class PlainFedProx(PlainFedAvg):
    def start(self, round, server):
        self.server = list(server.parameters())

    def penalty(self, step):
        pairs = zip(step.network.parameters(), self.server, strict=True)
        return 0.4 / 2 * sum(((w - w0.detach()) ** 2).sum() for w, w0 in pairs)


class PlainFedUV(PlainFedAvg):
    """The released code's two terms."""

    def penalty(self, step):
        deviations = torch.softmax(step.logits, 1).std(0)
        variance = torch.relu(torch.eye(4).std(0).mean() - deviations).mean()
        squares = torch.nn.functional.pdist(step.features) ** 2
        return 0.3 * variance + 0.2 * torch.exp(-squares / squares[squares > 0].median()).mean()


class PlainDeCov(PlainFedAvg):
    def __init__(self, strength, num_groups, eta):
        self.strength, self.group, self.eta = strength, torch.arange(8) // (8 // num_groups), eta

    def penalty(self, step):
        squares = torch.cov(step.features.T, correction=0) ** 2
        same = self.group[:, None] == self.group[None]
        within = squares[same].sum() - squares.diag().sum()
        return self.strength / 2 * (squares[~same].sum() - self.eta * within)


class PlainVICReg(PlainFedAvg):
    def penalty(self, step):
        covariance = torch.cov(step.features.T)
        shortfalls = torch.relu(0.7 - torch.sqrt(covariance.diag() + 1e-3))
        off_diagonal = covariance[~torch.eye(8, dtype=torch.bool)]
        return 0.5 * shortfalls.mean() + 2.0 * (off_diagonal**2).sum() / 8


ROUNDS = {
    "fedprox": (FedProx(0.4), PlainFedProx()),
    "feduv": (FedUV(0.3, 0.2, kernel_scale=1), PlainFedUV()),
    "decov": (DeCov(0.5), PlainDeCov(0.5, num_groups=8, eta=0.0)),
    "structured_decov": (StructuredDeCov(0.5, eta=0.1, num_groups=4), PlainDeCov(0.5, num_groups=4, eta=0.1)),
    "vicreg": (VICReg(0.5, 2.0, gamma=0.7, eps=1e-3), PlainVICReg()),
}


@pytest.fixture(scope="module")
def fedavg(federation):
    return run_reference(federation, PlainFedAvg()).server.dump()


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_equal_a_plain_pytorch_loop(federation, fedavg, name):
    regularizer, method = ROUNDS[name]
    state, expected = run_both(federation, {name: regularizer}, method)
    assert_close(state.server.variables, expected, 1e-9)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (expected, fedavg)), strict=True)]
    assert max(moved) > 1e-5  # by the regularizer, so agreement means something


@pytest.mark.parametrize("num_classes", [4, 100])
def test_feduv_is_as_strong_as_published(num_classes):
    outputs = SimpleNamespace(logits=jnp.ones((3, num_classes)), features=jnp.ones((3, 2)))
    view = SimpleNamespace(outputs=outputs, batch=SimpleNamespace(mask=jnp.ones(3, bool)))
    FedUV().check()
    assert FedUV().enabled() and FedUV().penalty(view)["variance"].strength == num_classes / 4
    assert FedUV(0.3).penalty(view)["variance"].strength == 0.3


@pytest.mark.parametrize(
    "regularizer", [FedUV(0.1, 0.0), FedUV(0.0, 0.1), FedMR(0.1, 0.0), FedMR(0.0, 0.1), VICReg(0.0, 0.1), FedProc(2.0)]
)
def test_one_strength_is_heard(regularizer):
    assert regularizer.enabled()


@pytest.mark.parametrize(
    ("regularizer", "message"),
    [
        (DeCov(-1.0), "DeCov: strength -1 is negative"),
        (FedProx(float("nan")), "FedProx: strength nan"),
        (StructuredDeCov(eta=-0.5), "StructuredDeCov: eta -0.5 is negative"),
        (StructuredDeCov(num_groups=0), "StructuredDeCov: num_groups 0 is too small"),
        (VICReg(covariance=-1.0), "VICReg: covariance -1 is negative"),
        (VICReg(eps=0.0), "VICReg: eps 0 is not positive"),
        (FedUV(variance=-2.0), "FedUV: variance -2 is negative"),
        (FedUV(median="upper"), "FedUV: median 'upper': expected one of lower, average"),
        (FedMR(inter=-1.0), "FedMR: inter -1 is negative"),
        (FedMR(negatives="some"), "FedMR: negatives 'some': expected one of local, all"),
        (FedMR(submission=1.5), "FedMR: submission 1.5 is outside"),
        (FedMR(lite=-1), "FedMR: lite -1 is negative"),
        (FedProc(0.0), "FedProc: ramp_rounds 0 is not positive"),
        (MOON(-1.0), "MOON: strength -1 is negative"),
        (MOON(temperature=0.0), "MOON: temperature 0 is not positive"),
        (
            MOON(first_round="skip"),
            "MOON: first_round 'skip': expected one of received, random_init, random_later, mask",
        ),
    ],
)
def test_wrong_values_are_named(regularizer, message):
    with pytest.raises(UserError, match=message):
        FedAvg(LocalTraining(), {"it": regularizer}).check()


@pytest.mark.parametrize(
    ("regularizer", "message"),
    [
        (StructuredDeCov(num_groups=5), "num_groups 5: expected a divisor of the 6 features"),
        (FedMR(min_count=1), "min_count 1 is too small, expected >= 2"),
        (FedMR(variant="official", normalise_d2=True), "normalise_d2 True: expected False"),
    ],
)
def test_mismatched_values_are_rejected_before_the_first_round(federation, model, regularizer, message):
    with pytest.raises(UserError, match=message):
        simulate(federation, model, FedAvg(LocalTraining(), {"it": regularizer}), rounds=1, key=jax.random.key(0))
