"""FedSAM, FedASAM, FedLESAM, MoFedSAM: test vectors, rounds against plain PyTorch, excluded parts, properties."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from conftest import assert_close, assert_same_bits, run_at_once
from flax import struct
from reference.beside import COHORT_SIZE, assert_same_rounds
from reference.methods import PlainFedDyn, PlainScaffold, PlainStates
from reference.networks import statistics
from reference.rounds import BODY, EVERYTHING, NORMS, TRAINING, cohort_of, is_in

from fedjax_collapse import (
    FedAvg,
    FedDecorr,
    FedDyn,
    LocalTraining,
    Method,
    Model,
    Phase,
    Scaffold,
    UserError,
    engine,
    nn,
    option,
)
from fedjax_collapse.core import masks
from fedjax_collapse.methods.fedasam import FedASAM
from fedjax_collapse.methods.fedcm import FedCM
from fedjax_collapse.methods.fedlesam import FedLESAM, Received
from fedjax_collapse.methods.fedsam import FedSAM

A = np.array([[3.0, 1], [1, 2]])
MOMENTUM = LocalTraining(learning_rate=0.1, momentum=0.9, weight_decay=1e-3)
PLAIN = LocalTraining(learning_rate=0.1)
VECTORS = {  # of two steps from (1, -2) on w^T A w / 2, rho 0.5
    "sgd": (FedSAM(0.0), PLAIN, [(0.9, -1.7), (0.8, -1.45)]),
    "sam": (FedSAM(0.5), PLAIN, [(0.9, -1.6209430610), (0.7747339075, -1.3168556837)]),
    "sam, momentum": (FedSAM(0.5), MOMENTUM, [(0.8999, -1.6207430610), (0.6844618010, -0.9751935394)]),
    "adaptive": (FedSAM(0.5, True), PLAIN, [(0.9739795431, -1.5109411677), (0.8426218327, -1.1878308932)]),
    "adaptive, momentum": (FedSAM(0.5, True), MOMENTUM, [(0.9738795431, -1.5107411677), (0.8189165683, -0.7471972538)]),
    "lesam": (FedLESAM(0.5), PLAIN, [(0.85, -1.65), (0.71, -1.355)]),
    "lesam, first round": (FedLESAM(0.5), PLAIN, [(0.9, -1.7), (0.8, -1.45)]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(float64, name):
    """A leaf that is held has no influence."""
    method, training, expected = VECTORS[name]
    start = {"w": jnp.array([1.0, -2]), "held": jnp.array([7.0])}
    last = jax.tree.map(jnp.add, start, {"w": jnp.array([0.3, -0.4]), "held": jnp.array([5.0])})
    view = SimpleNamespace(
        held={"w": False, "held": True},
        server=SimpleNamespace(params=start),
        memory=Received(last, jnp.array("first" not in name)),
    )

    def gradient_of(params):
        assert_same_bits(params["held"], start["held"])
        return {"w": A @ params["w"], "held": jnp.array([3.0])}

    params, optimizer = start, training.make_optimizer(0)
    state = optimizer.init(params)
    for w in expected:
        gradient = method.gradient(gradient_of, params, view)
        assert gradient["held"] == 3
        updates, state = optimizer.update(gradient | {"held": jnp.zeros(1)}, state, params)
        params = optax.apply_updates(params, updates) | {"held": start["held"]}
        np.testing.assert_allclose(params["w"], w, atol=1e-7 if name == "lesam" else 1e-10)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (PLAIN, [(0.9179793146, -1.4834049653, 0.6202338768), (0.6494034911, -1.2323315411, 0.5598985835)]),
        (MOMENTUM, [(0.9178793146, -1.4832049653, 0.6201838768), (0.5753032999, -0.7669263089, 0.6679310163)]),
    ],
)
def test_fedasam_is_the_step_of_its_authors(float64, training, expected):
    """Two steps on w^T A w / 2 + b sum(w) + b^2, in the numbers of the released code; and the formula in NumPy.

    The scale of a norm is a weight, a single number is none, and a leaf that stays where it is does not count.
    """
    start = {"layer": {"kernel": jnp.array([1.0]), "bias": jnp.array([0.5])}}
    start |= {"norm": {"scale": jnp.array([-2.0])}, "head": {"scale": jnp.array(3.0)}, "held": jnp.array([7.0])}
    held = jax.tree.map(lambda _: False, start) | {"held": True}

    def slopes(params):
        w, b = np.concatenate([params["layer"]["kernel"], params["norm"]["scale"]]), params["layer"]["bias"][0]
        return *(A @ w + b), w.sum() + 2 * b

    def gradient_of(params, of_head=0.0):
        first, second, of_bias = map(jnp.atleast_1d, slopes(params))
        tree = {"layer": {"kernel": first, "bias": of_bias}, "norm": {"scale": second}}
        return tree | {"head": {"scale": jnp.array(of_head)}, "held": jnp.array([9.0])}

    method, view = FedASAM(), SimpleNamespace(held=held)
    params, optimizer = start, training.make_optimizer(0)
    state = optimizer.init(params)
    for numbers in expected:
        updates, state = optimizer.update(method.gradient(gradient_of, params, view), state, params)
        params = optax.apply_updates(params, updates) | {"held": start["held"], "head": start["head"]}
        found = [*params["layer"]["kernel"], *params["norm"]["scale"], *params["layer"]["bias"]]
        np.testing.assert_allclose(found, numbers, atol=1e-10)

    places = []
    method.gradient(lambda w: places.append(w) or gradient_of(w, of_head=2.0), start, view)
    g, t = np.array([*slopes(start), 2.0]), np.array([1 + 0.2, 2 + 0.2, 1, 1])
    moved = jax.tree.map(jnp.subtract, places[1], start)
    found = [moved["layer"]["kernel"], moved["norm"]["scale"], moved["layer"]["bias"], moved["head"]["scale"]]
    np.testing.assert_allclose(np.concatenate([*map(np.atleast_1d, found)]), 0.7 * t**2 * g / np.linalg.norm(t * g))
    assert moved["held"] == 0


class PlainSharp(PlainStates):
    """``rho`` is the norm of the perturbation, over the leaves in ``part``."""

    rho, part, guard = 0.3, EVERYTHING, 1e-7

    def perturbed(self, client):
        """The parameters that are, by name."""
        return {name: p for name, p in client.network.named_parameters() if is_in(name, self.part)}

    def ascend(self, params, directions, norm):
        """Perturbs the parameters; returns their previous values."""
        before = [p.detach().clone() for p in params]
        for p, direction in zip(params, directions, strict=True):
            p.data += self.rho * direction / (norm + self.guard)
        return before


class PlainSAM(PlainSharp):
    """The first pass moves running statistics, the second sees the same batch at w + eps."""

    def size(self, name, p):
        return torch.ones_like(p)

    def backward(self, client, loss):
        loss().backward()
        named, buffers = self.perturbed(client), statistics(client.network)
        params, sizes = named.values(), [self.size(name, p.detach()) for name, p in named.items()]
        scaled = [size * p.grad for size, p in zip(sizes, params, strict=True)]
        directions = [size * s for size, s in zip(sizes, scaled, strict=True)]
        moved = [b.clone() for b in buffers]
        before = self.ascend(params, directions, norm_of(scaled))
        client.network.zero_grad()
        loss().backward()
        restore([*params, *buffers], [*before, *moved])


class PlainLESAM(PlainSharp):
    """``sent``: the params that each client received in its last round."""

    def setup(self, num_params, sizes, training):
        super().setup(num_params, sizes, training)
        self.sent = {}

    def backward(self, client, loss):
        if client.id not in self.sent:
            return loss().backward()
        params, named = self.perturbed(client).values(), list(client.network.named_parameters())
        back = torch.split(self.sent[client.id] - client.received, [p.numel() for _, p in named])
        back = [b.view_as(p) for b, (name, p) in zip(back, named, strict=True) if is_in(name, self.part)]
        before = self.ascend(params, back, norm_of(back))
        loss().backward()
        restore(params, before)

    def finish(self, client):
        self.sent[client.id] = client.received
        return super().finish(client)


def norm_of(tensors):
    return torch.sqrt(sum((t**2).sum() for t in tensors))


def restore(tensors, values):
    for tensor, value in zip(tensors, values, strict=True):
        tensor.data.copy_(value)


class LESAMOnScaffold(PlainLESAM, PlainScaffold):
    strength = 0.1


class LESAMOnDyn(PlainLESAM, PlainFedDyn):
    private, part = NORMS, ("convs", "head")


class AdaptiveWithFrozenHead(PlainSAM):
    """By the flag of FedLESAM's code."""

    part = BODY

    def size(self, name, p):
        return p.abs()


class PlainASAM(PlainSAM):
    """The authors': what PyTorch calls weight, of convolutions, BatchNorm and the head."""

    guard = 1e-16

    def size(self, name, p):
        return p.abs() + 0.2 if "weight" in name else torch.ones_like(p)


class MoFedSAM(PlainSAM):
    alpha = 0.4

    def backward(self, client, loss):
        super().backward(client, loss)
        for p in client.network.parameters():
            p.grad *= self.alpha

    def correction(self, client, w):
        return (1 - self.alpha) * self.server

    def aggregate(self, received, clients):
        rate, beta = clients[0].learning_rate, self.training.momentum  # of the round in which it is made
        added = [sum(sum(beta**j for j in range(i + 1)) for i in range(c.steps)) for c in clients]  # of gradients
        self.server = sum(c.weight * (received - c.params) / (a * rate) for c, a in zip(clients, added, strict=True))
        return self.average(clients)


CAREFUL = TRAINING.replace(clip_norm=0.5, drop_last=True, schedule="decay", schedule_factor=0.5, freeze="head")
DECAYING = TRAINING.replace(schedule="decay", schedule_factor=0.5)
SAM, LESAM = {"fedsam": FedSAM(0.3)}, {"fedlesam": FedLESAM(0.3)}
ADAPTIVE = {"fedsam": FedSAM(0.3, adaptive=True)}
REFERENCES = {
    "adaptive with clipping, drop_last, schedule, frozen head": (FedAvg(CAREFUL, ADAPTIVE), AdaptiveWithFrozenHead()),
    "fedasam": (FedAvg(TRAINING, {"fedasam": FedASAM(rho=0.3)}), PlainASAM()),
    "mofedsam": (FedAvg(DECAYING, SAM | {"fedcm": FedCM(0.4)}), MoFedSAM()),
    "fedlesam-s": (FedAvg(TRAINING, LESAM | {"scaffold": Scaffold("fednova", strength=0.1)}), LESAMOnScaffold()),
    "fedlesam-d with private BatchNorm": (
        FedAvg(TRAINING, LESAM | {"feddyn": FedDyn(alpha=0.1)}, private="batch_norm"),
        LESAMOnDyn(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_rounds_equal_a_plain_pytorch_loop(federation, name):
    """Three rounds of three of the five clients: some come back at once, one after a round in which it was absent."""
    with jax.enable_x64(True):
        cohorts = [cohort_of(jax.random.key(3), t, federation.ownership.sizes, COHORT_SIZE).tolist() for t in range(3)]
    first, second, third = map(set, cohorts)
    assert first & second and (first & third) - second
    assert_same_rounds(federation, *REFERENCES[name], rounds=3, key=3)


def test_variants_of_fedcm():
    """The released code of MoFedSAM omits alpha; with alpha = 1 the mean gradient has no weight."""
    gradient, view = {"w": jnp.array([2.0])}, SimpleNamespace(shared={"w": jnp.array([10.0])})
    for method, expected in ((FedCM(), 9.2), (FedCM(variant="official"), 11.0), (FedCM(1.0), 2.0)):
        assert float(method.correct(gradient, None, view)["w"][0]) == pytest.approx(expected)


@pytest.mark.slow
def test_fedcm_keeps_the_size_of_gradients_with_momentum(float64, federation, network):
    """With a momentum far above alpha as without, what clients add to their gradients does not grow over rounds."""
    norms = []
    for momentum in (0.0, 0.9):
        training = TRAINING.replace(epochs=4, momentum=momentum, learning_rate=0.01)
        result = run_at_once(federation, network, FedAvg(training, {"fedcm": FedCM(0.1)}), rounds=12)
        norms.append(float(optax.global_norm(result.state.server.shared["fedcm"])))
    assert 0.1 < norms[1] / norms[0] < 10


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


BATCHES = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)


@pytest.mark.slow
def test_the_servers_model_is_everyones_last_if_all_take_part(float64, federation, network):
    """Then both forms of FedLESAM are one; the first round is federated averaging, the others are not."""
    run = functools.partial(run_at_once, federation, network)
    own, server = (run(FedAvg(BATCHES, {"it": FedLESAM(0.5, stored)}), rounds=3) for stored in ("own", "server"))
    assert_close(own.variables, server.variables, 1e-12)
    losses = [[row["train/task_loss"] for row in result.metrics] for result in (own, run(FedAvg(BATCHES), rounds=3))]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-12) and losses[0][1] != pytest.approx(losses[1][1])


@pytest.mark.slow
def test_the_server_keeps_its_last_model(float64, federation, network):
    """Whoever took part: the one before the newest."""
    algorithm = FedAvg(BATCHES, {"it": FedLESAM(stored="server")})
    before, after = (
        run_at_once(federation, network, algorithm, rounds=rounds, participation=0.6).state for rounds in (1, 2)
    )
    assert_same_bits(after.server.shared["it"], before.server.variables.params)
    assert jax.tree.leaves(after.clients.memory) == []


@pytest.mark.slow
def test_with_scaffold_feddecorr_and_a_server_optimizer(federation, network):
    others = {"scaffold": Scaffold(), "feddecorr": FedDecorr(0.1, "official")}
    adam = jax.tree_util.Partial(optax.adam, 0.01)
    losses = [
        run_at_once(federation, network, FedAvg(BATCHES, others | own, adam), rounds=2).metrics[-1]["loss"]
        for own in ({}, {"fedsam": FedSAM(0.5)}, {"fedlesam": FedLESAM(0.5)})
    ]
    assert np.isfinite(losses).all() and len(np.unique(np.round(losses, 5))) == 3


@struct.dataclass
class Noticing(Method):
    """Keeps what it sees of the leaves that stay where they are."""

    seen: list = option(None)

    def gradient(self, gradient_of, params, view):
        self.seen.append(masks.by_path(view.held))
        return gradient_of(params)


@pytest.mark.slow
def test_what_is_private_or_not_trained_stays_where_it_is(federation, network):
    seen = []
    training = BATCHES.replace(phases=(Phase("head", 1), Phase("body", 1)), freeze="Dense_0/bias")
    algorithm = FedAvg(training, {"it": Noticing(seen)}, private="Dense_1/bias")
    rounds = engine.Rounds(network, engine.Layout(engine.Vectorized(), cohort_size=5))
    engine.trace(rounds, algorithm, engine.Data(federation.ownership), federation.train)
    held = {tuple(path for path, is_held in mask.items() if is_held) for mask in seen}
    body, frozen, private = "Dense_0/kernel", "Dense_0/bias", "Dense_1/bias"
    assert held == {(frozen, body, private), (frozen, private, "Dense_1/kernel")}


def test_nothing_to_climb(float64):
    """Where the gradient is 0, or the server did not move, it is taken where the params are."""
    params, held = {"w": jnp.zeros(2)}, {"w": False}
    server = SimpleNamespace(params=params)
    view = SimpleNamespace(held=held, server=server, shared=params, memory=Received(params, jnp.array(True)))
    for method in (FedSAM(0.5), FedSAM(0.5, True), FedASAM(), FedLESAM(0.5), FedLESAM(0.5, "server")):
        places = []
        method.gradient(lambda w, places=places: places.append(w) or {"w": A @ w["w"]}, params, view)
        assert_same_bits(places[-1], params)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([FedSAM(), FedLESAM()], "methods 0 and 1: each has a gradient of its own, expected at most one"),
        ([FedSAM(-0.1)], "FedSAM: rho -0.1 is negative"),
        ([FedASAM(eta=-0.1)], "FedASAM: eta -0.1 is negative"),
        ([FedASAM(), FedSAM()], "methods 0 and 1: each has a gradient of its own, expected at most one"),
        ([Scaffold(strength=-1.0)], "Scaffold: strength -1 is negative"),
        ([FedLESAM(float("inf"))], "FedLESAM: rho inf is not finite"),
        ([FedLESAM(stored="client")], "FedLESAM: stored 'client': expected one of own, server"),
        ([FedCM(0.0)], r"FedCM: alpha 0 is outside \(0, 1\]"),
        ([FedSAM(adaptive=1)], "FedSAM: adaptive 1: expected bool, got int"),
    ],
)
def test_invalid_values_are_rejected(methods, message):
    with pytest.raises(UserError, match=message):
        FedAvg(methods={str(number): method for number, method in enumerate(methods)}).check()
