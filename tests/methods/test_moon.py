"""MOON: two whole rounds of three of five clients against plain PyTorch, the clients' memory, and the first
round of a client."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits
from loss_checks import Z6, evaluate
from reference.beside import run_both, small_model
from reference.networks import TorchCNN
from reference.rounds import PlainFedAvg

from fedjax_collapse.core.records import Batch, Outputs
from fedjax_collapse.methods import MOON

cosine = torch.nn.functional.cosine_similarity


class PlainMOON(PlainFedAvg):
    def __init__(self, random_init=None, first_contrast=0):
        self.previous, self.random_init, self.first_contrast = {}, random_init, first_contrast

    def start(self, round, server):
        self.server, self.is_early = server, round < self.first_contrast
        if self.random_init is not None:
            self.never = TorchCNN.of(self.random_init).eval()

    def start_client(self, client):
        self.mine = self.previous.get(client.id, self.never if self.random_init is not None else None)

    def penalty(self, step):
        if self.mine is None or self.is_early:
            return 0.0
        others = (network(step.images)[0].detach() for network in (self.server, self.mine))
        scores = [torch.exp(cosine(step.features, other) / 0.3) for other in others]
        return -2.0 * torch.log(scores[0] / (scores[0] + scores[1])).mean()

    def finish(self, client):
        self.previous[client.id] = client.network


@pytest.mark.slow
@pytest.mark.parametrize("first_round", ["received", "random_init", "random_later"])
def test_moon_rounds_equal_a_plain_pytorch_loop(federation, first_round):
    moon = MOON(2.0, 0.3, first_round)
    with jax.enable_x64(True):
        fresh = jax.device_get(moon.init_memory(small_model(federation)[1], None).variables)
    method = PlainMOON(fresh if "random" in first_round else None, int(first_round == "random_later"))
    state, expected = run_both(federation, {"moon": moon}, method)
    assert_close(state.server.variables, expected, 1e-9)
    memory = state.clients.memory["moon"]
    assert len(method.previous) == 4  # and one client was in neither cohort
    for client in range(5):
        stored = jax.tree.map(lambda leaf, i=client: leaf[i], memory)
        assert stored.is_own == (client in method.previous)
        if client in method.previous:
            assert_close(stored.variables, method.previous[client].dump(), 1e-9)
        else:
            assert_same_bits(stored.variables, fresh)


@pytest.mark.parametrize(("first_round", "expected"), [("received", np.log(2)), ("mask", 0.0)])
def test_moon_of_a_new_client_has_no_gradient(first_round, expected):
    moon = MOON(first_round=first_round)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=Z6.shape) for _ in range(2)]

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
def test_a_random_model_is_another_draw_of_the_initial_one(federation):
    _, variables = small_model(federation)
    with jax.enable_x64(True):
        fresh = MOON(first_round="random_init").init_memory(variables, None).variables
    assert_same_bits(fresh.batch_stats, variables.batch_stats)
    for drawn, initial in zip(jax.tree.leaves(fresh.params), jax.tree.leaves(variables.params), strict=True):
        np.testing.assert_array_equal(np.sort(drawn, axis=None), np.sort(initial, axis=None))
    assert not np.allclose(fresh.params["Dense_0"]["kernel"], variables.params["Dense_0"]["kernel"])
