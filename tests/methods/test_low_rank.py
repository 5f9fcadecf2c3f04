"""Aggregation of adapters: vectors in float64, computed by NumPy from the papers' formulas."""

import itertools

import jax
import numpy as np
import optax
import pytest
from conftest import assert_close, run_at_once
from low_rank_case import (
    A2,
    A3,
    B2,
    B3,
    HET,
    HOM,
    Case,
    checksum,
    close,
    factors,
    float64,
    kernel,
    network,
    product,
    run,
    singular_values,
    with_factors,
)

from fedjax_collapse import FedAvg, LocalTraining, Model, Scaffold, UserError, nn
from fedjax_collapse.methods import ClipUpdate, FedExLoRA, FedRotLoRA, FedSALoRA, FedSVD, FlexLoRA, RoLoRA
from fedjax_collapse.nn.adapters import LoRA

__all__ = ["float64"]
pytestmark = pytest.mark.usefixtures("float64")

MEAN_HOM = np.array([[3, 2, 1], [0, 6, -3], [-1, 2, 0], [4, 2, -1]]) / 3


def test_flexlora_with_roots_in_both_factors(monkeypatch):
    _, state = run(monkeypatch, FlexLoRA(ranks=(1, 2, 2), roots=True), HET, network(alpha=2.0))
    a, b = factors(state.server.variables)
    close(checksum(product(state.server.variables)), 45.3268861404)
    close(np.linalg.norm(a, axis=1) ** 2, [3.4697281683, 1.8039104251])
    close(np.linalg.norm(b, axis=0) ** 2, [3.4697281683, 1.8039104251])


def test_fedex_lora_is_exact_and_moves_the_base(monkeypatch):
    start, state = run(monkeypatch, FedExLoRA(), HOM)
    moved = kernel(state.server.variables) - kernel(start)
    close(9 * moved, [[4, -4, 2], [-6, 6, -6], [-4, 4, 4], [6, -6, 0]])
    close(moved + product(state.server.variables), MEAN_HOM)


def test_one_method_makes_the_servers_adapters():
    with pytest.raises(UserError, match=r"^methods one and two: each makes the server's adapters, "):
        FedAvg(methods={"one": FlexLoRA(), "two": FedExLoRA()}).check()


def test_fedsa_lora_averages_a_alone(monkeypatch):
    start, state = run(monkeypatch, FedSALoRA(private_head=False), HOM)
    assert sorted(state.clients.private) == ["params/layer/lora_b"]
    a, b = factors(state.server.variables)
    assert (b == factors(start)[1]).all()
    products = [np.transpose(own) @ a for own in state.clients.private["params/layer/lora_b"]]
    close(3 * products[0], [[1, 2, -1], [2, 4, 1], [3, 6, 0], [0, 0, -3]])
    close(singular_values(products[1])[:2], [3.1622776602, 1])


def test_fedrot_lora_with_a_strength_is_between(monkeypatch):
    """The nearest orthogonal matrix to a mixture with the identity; for a rotation it has a part of its angle."""
    start = with_factors(network().init(jax.random.key(0)), A2, B2)
    angle = 0.8
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    case = Case(((turn @ A2, B2 @ turn.T),), (3,))
    _, state = run(monkeypatch, FedRotLoRA(0.5), case, start=start, round=1)
    half = np.array([[np.cos(angle / 2), -np.sin(angle / 2)], [np.sin(angle / 2), np.cos(angle / 2)]])
    close(factors(state.server.variables)[0], half @ A2)
    close(product(state.server.variables), np.array(B2) @ A2)
    _, state = run(monkeypatch, FedRotLoRA(), case, start=start, round=2)
    close(factors(state.server.variables)[1], B2)


def test_fedsvd_gives_a_the_right_singular_vectors(monkeypatch):
    start = with_factors(network(alpha=4.0).init(jax.random.key(0)), A2, np.array(B2) / 2)
    case = Case(((A2, np.array(B2) / 2), (A3, np.array(B3) / 2)), HOM.sizes)
    _, state = run(monkeypatch, FedSVD(), case, network(alpha=4.0), start)
    a, b = factors(state.server.variables)
    close(3 * product(state.server.variables), [[1, 4, 3], [4, 2, 5], [3, -2, 2], [4, 2, 5]])
    close(a @ a.T, np.eye(2))
    close(2 * np.linalg.norm(b, axis=0), [3.5525841012, 1.4686469902])
    with pytest.raises(UserError, match=r"^method it: it makes the server's adapters itself, expected no server opti"):
        FedAvg(methods={"it": FedSVD()}, server_optimizer=jax.tree_util.Partial(optax.sgd, 1.0)).check()
    FedAvg(methods={"it": FedSVD(), "clip": ClipUpdate()}).check()


def test_rolora_trains_one_factor_in_turns(federation):
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape, adapters=LoRA(2, layers=("all",)))
    training = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05, momentum=0.9, clip_norm=1.0)
    algorithm = FedAvg(training, {"rolora": RoLoRA(freeze_head=True)})
    start = jax.device_get(model.init(jax.random.key(1)))
    states = [start] + [run_at_once(federation, model, algorithm, i, variables=start).variables for i in (1, 2)]
    layers = [jax.device_get(variables.params["Dense_0"]) for variables in states]
    for still, moves, (before, after) in zip(
        ("lora_a", "lora_b"), ("lora_b", "lora_a"), itertools.pairwise(layers), strict=True
    ):
        assert_close(before[still], after[still], 1e-15)
        assert np.abs(before[moves] - after[moves]).max() > 1e-4
    assert np.array_equal(states[-1].params["Dense_1"]["kernel"], start.params["Dense_1"]["kernel"])


@pytest.mark.parametrize(
    ("training", "others", "message"),
    [
        (dict(weight_decay=0.1), {}, "^RoLoRA: weight decay would move the factor"),
        (dict(optimizer=jax.tree_util.Partial(optax.adamw)), {}, "^RoLoRA: weight decay would move the factor"),
        (dict(momentum=0.9, momentum_reset=False), {}, "^RoLoRA: training.momentum_reset=False would move the"),
        ({}, {"scaffold": Scaffold()}, "^method scaffold: its corrections would move the factor"),
    ],
    ids=["weight decay", "adamw", "momentum", "scaffold"],
)
def test_what_moves_the_other_factor_of_rolora(training, others, message):
    with pytest.raises(UserError, match=message) as error:
        FedAvg(LocalTraining(**training), {"rolora": RoLoRA(), **others}).check(network())
    assert "\n" not in str(error.value)


def test_adam_does_not_move_the_other_factor_of_rolora():
    training = LocalTraining(optimizer=jax.tree_util.Partial(optax.adam))
    FedAvg(training, {"rolora": RoLoRA()}).check(network())
