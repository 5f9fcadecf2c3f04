"""MOON's first round of a client, FedUV's published strength, which strengths count, and what does not fit."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same_bits, one_line
from loss_checks import Z6, evaluate, pad

from fedjax_collapse import FedAvg, Model, nn, simulate
from fedjax_collapse.core.records import Batch, Outputs
from fedjax_collapse.methods import MOON, FedMR, FedRS, FedUV, StructuredDeCov


@pytest.mark.parametrize(("first_round", "expected"), [("received", np.log(2)), ("mask", 0.0)])
def test_moon_of_a_new_client_has_no_gradient(first_round, expected):
    moon = MOON(first_round=first_round)
    rng = np.random.default_rng(0)
    arrays = [pad(rng.normal(size=Z6.shape)) for _ in range(2)]

    def loss(features, labels, mask, is_own, *frozen):
        server, previous = (Outputs(rows, None) for rows in frozen)
        view = SimpleNamespace(
            outputs=Outputs(features, None),
            batch=Batch(None, labels, mask),
            memory=SimpleNamespace(is_own=is_own),
            frozen={"server": server, "previous": previous},
        )
        return moon.penalty(view)["contrastive"].value

    value, gradient = evaluate(loss, Z6, extras=(np.array(False), *arrays))
    assert value == pytest.approx(expected) and np.all(gradient == 0)
    value, gradient = evaluate(loss, Z6, extras=(np.array(True), *arrays))
    assert value != pytest.approx(expected) and np.all(np.any(gradient != 0, axis=1))


@pytest.mark.slow
def test_a_random_model_is_another_draw_of_the_initial_one(model):
    variables = model.init(jax.random.key(0))
    fresh = MOON(first_round="random_init").init_memory(variables, None).variables
    assert_same_bits(fresh.batch_stats, variables.batch_stats)
    for drawn, initial in zip(jax.tree.leaves(fresh.params), jax.tree.leaves(variables.params), strict=True):
        np.testing.assert_array_equal(np.sort(drawn, axis=None), np.sort(initial, axis=None))
    assert not np.allclose(fresh.params["Dense_0"]["kernel"], variables.params["Dense_0"]["kernel"])


def test_feduv_is_as_strong_as_published():
    outputs = SimpleNamespace(logits=jnp.ones((3, 100)), features=jnp.ones((3, 2)))
    view = SimpleNamespace(outputs=outputs, batch=SimpleNamespace(mask=jnp.ones(3, bool)))
    assert FedUV().enabled() and FedUV().penalty(view)["variance"].strength == 25
    assert FedUV(0.3).penalty(view)["variance"].strength == 0.3


ON_SIMPLEX = Model(nn.MLP(4, head=nn.heads.ETF), (8, 8, 2))


@pytest.mark.parametrize(
    ("method", "network", "message"),
    [
        (StructuredDeCov(num_groups=5), Model(nn.MLP(4, (6,)), (8, 8, 2)), "num_groups 5: expected a divisor of the 6"),
        (FedMR(variant="official", normalise_d2=True), ON_SIMPLEX, "normalise_d2 True: expected False"),
        (FedRS(use_bias=False), ON_SIMPLEX, "FedRS: use_bias=False needs a linear classifier, that of network MLP has"),
    ],
)
def test_mismatched_values_are_rejected_before_the_first_round(federation, method, network, message):
    with one_line(message):
        simulate(federation, network, FedAvg(methods={"it": method}), rounds=1, key=jax.random.key(0))
