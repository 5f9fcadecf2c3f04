"""Local steps: FedSAM, FedASAM, FedLESAM, FedCM and Muon with its corrections: test vectors, and what is left alone."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TRAINING, assert_same_bits, cases, run_at_once
from jax.tree_util import Partial

from fedjax_collapse import FedAvg, Federation, LocalTraining, Method, Model, Phase, UserError, engine, option, simulate
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.methods import AlignedMuon, CorrectedMuon
from fedjax_collapse.methods.drift.fedasam import FedASAM
from fedjax_collapse.methods.drift.fedcm import FedCM
from fedjax_collapse.methods.drift.fedlesam import FedLESAM, Received
from fedjax_collapse.methods.drift.fedsam import FedSAM
from fedjax_collapse.optim.muon import muon, orthogonalize

A = np.array([[3.0, 1], [1, 2]])
MOMENTUM = LocalTraining(learning_rate=0.1, momentum=0.9, weight_decay=1e-3)
PLAIN = LocalTraining(learning_rate=0.1)
VECTORS = {  # of two steps from (1, -2) on w^T A w / 2, rho 0.5
    "sam": (FedSAM(0.5), PLAIN, [(0.9, -1.6209430610), (0.7747339075, -1.3168556837)]),
    "sam, momentum": (FedSAM(0.5), MOMENTUM, [(0.8999, -1.6207430610), (0.6844618010, -0.9751935394)]),
    "adaptive": (FedSAM(0.5, True), PLAIN, [(0.9739795431, -1.5109411677), (0.8426218327, -1.1878308932)]),
    "adaptive, momentum": (FedSAM(0.5, True), MOMENTUM, [(0.9738795431, -1.5107411677), (0.8189165683, -0.7471972538)]),
    "lesam": (FedLESAM(0.5), PLAIN, [(0.85, -1.65), (0.71, -1.355)]),
    "lesam, server": (FedLESAM(0.5, "server"), PLAIN, [(0.85, -1.65), (0.71, -1.355)]),
    "lesam, first round": (FedLESAM(0.5), PLAIN, [(0.9, -1.7), (0.8, -1.45)]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_sharp_steps(float64, name):
    """A leaf that is held has no influence."""
    method, training, expected = VECTORS[name]
    start = {"w": jnp.array([1.0, -2]), "held": jnp.array([7.0])}
    last = jax.tree.map(jnp.add, start, {"w": jnp.array([0.3, -0.4]), "held": jnp.array([5.0])})
    view = SimpleNamespace(
        held={"w": False, "held": True},
        server=SimpleNamespace(params=start),
        memory=Received(last, jnp.array("first" not in name)),
        shared=last,
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
        np.testing.assert_allclose(params["w"], w, atol=1e-7 if "lesam" in name else 1e-10)


@cases(
    (PLAIN, [(0.9179793146, -1.4834049653, 0.6202338768), (0.6494034911, -1.2323315411, 0.5598985835)]),
    (MOMENTUM, [(0.9178793146, -1.4832049653, 0.6201838768), (0.5753032999, -0.7669263089, 0.6679310163)]),
)
def test_fedasam_is_the_step_of_its_authors(training, expected, float64):
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


def test_variants_of_fedcm():
    """The released code of MoFedSAM omits alpha; with alpha = 1 the mean gradient has no weight."""
    gradient, view = {"w": jnp.array([2.0])}, SimpleNamespace(shared={"w": jnp.array([10.0])})
    for method, expected in ((FedCM(), 9.2), (FedCM(variant="official"), 11.0), (FedCM(1.0), 2.0)):
        assert float(method.correct(gradient, None, view)["w"][0]) == pytest.approx(expected)


@pytest.mark.slow
def test_the_server_keeps_its_last_model(float64, federation, network):
    """Whoever took part: the one before the newest."""
    given = federation, network, FedAvg(TRAINING, {"it": FedLESAM(stored="server")})
    before, after = (run_at_once(*given, rounds=rounds, participation=0.6).state for rounds in (1, 2))
    assert_same_bits(after.server.shared["it"], before.server.variables.params)
    assert jax.tree.leaves(after.clients.memory) == []


class Noticing(Method):
    """Keeps what it sees of the leaves that stay where they are."""

    seen: list = option(None)

    def gradient(self, gradient_of, params, view):
        self.seen.append(masks.by_path(view.held))
        return gradient_of(params)


@pytest.mark.slow
def test_what_is_private_or_not_trained_stays_where_it_is(federation, network):
    seen = []
    training = TRAINING.replace(phases=(Phase("head", 1), Phase("body", 1)), freeze="Dense_0/bias")
    algorithm = FedAvg(training, {"it": Noticing(seen)}, private="Dense_1/bias")
    rounds = engine.RoundSpec(network, engine.Layout(engine.Vectorized(), cohort_size=5))
    engine.trace(rounds, algorithm, engine.Assignment(federation.ownership), federation.train)
    held = {tuple(path for path, is_held in mask.items() if is_held) for mask in seen}
    body, frozen, private = "Dense_0/kernel", "Dense_0/bias", "Dense_1/bias"
    assert held == {(frozen, body, private), (frozen, private, "Dense_1/kernel")}


def test_sharp_steps_where_the_gradient_is_zero(float64):
    """Where the gradient is 0, or the server did not move, it is taken where the params are."""
    params, held = {"w": jnp.zeros(2)}, {"w": False}
    server = SimpleNamespace(params=params)
    view = SimpleNamespace(held=held, server=server, shared=params, memory=Received(params, jnp.array(True)))
    for method in (FedSAM(0.5), FedSAM(0.5, True), FedASAM(), FedLESAM(0.5), FedLESAM(0.5, "server")):
        places = []
        method.gradient(lambda w, places=places: places.append(w) or {"w": A @ w["w"]}, params, view)
        assert_same_bits(places[-1], params)


S, C = (lambda n, d, f=f: f(np.arange(1.0, 1 + n * d) ** 2).reshape(n, d) for f in (np.sin, np.cos))


def test_orthogonalize_vectors(float64):
    found = orthogonalize(jnp.asarray(S(3, 5)))
    np.testing.assert_allclose([found[0, 0], found[2, 4]], [0.7545710854, -0.5818225878], rtol=1e-6)
    values = np.linalg.svd(found, compute_uv=False)
    np.testing.assert_allclose(values, [1.132936358, 1.048908044, 0.6929542315], rtol=1e-6)
    exact = orthogonalize(jnp.asarray(S(3, 5)), exact=True)
    np.testing.assert_allclose([exact[0, 0], exact[2, 4]], [0.7240121406, -0.6297358530], rtol=1e-9)
    np.testing.assert_allclose(orthogonalize(jnp.asarray(S(3, 5).T)), found.T, rtol=1e-12)
    assert not np.any(orthogonalize(jnp.zeros((2, 3)))) and not np.any(orthogonalize(jnp.zeros((2, 3)), True))


def test_muon_vectors(float64):
    """Two steps of a product; a kernel of a convolution is the matrix of its patches, a bias is trained by AdamW."""

    def last_update(optimizer, params, *gradients):
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
        return updates

    last_update = jax.jit(last_update, static_argnums=0)
    gradients = [{"kernel": of(3, 5), "bias": np.ones(5)} for of in (S, C)]
    updates = last_update(muon(1.0), jax.tree.map(jnp.zeros_like, gradients[0]), *gradients)
    np.testing.assert_allclose(updates["kernel"][0, 0], -0.7332764167, rtol=1e-6)
    np.testing.assert_allclose(updates["kernel"][2, 4], -0.2399057588, rtol=1e-6)
    of_bias = optax.adamw(1.0, nesterov=True, weight_decay=0.0)
    expected = last_update(of_bias, np.zeros(5), np.ones(5), np.ones(5))
    np.testing.assert_allclose(updates["bias"], expected, rtol=1e-12)
    alone = muon(1.0, excluded="a/*,b/kernel")
    both = {"a": {"kernel": jnp.ones((3, 5))}, "b": {"bias": jnp.ones(5)}, "c": {"kernel": jnp.ones((3, 5))}}
    updates, expected = (last_update(optimizer, both, both) for optimizer in (alone, of_bias))
    np.testing.assert_allclose(updates["a"]["kernel"], expected["a"]["kernel"], rtol=1e-12)
    assert np.abs(updates["c"]["kernel"] - expected["c"]["kernel"]).min() > 0.1
    kernel = jnp.asarray(S(4, 12)).reshape(2, 2, 3, 4)
    found = last_update(muon(1.0), {"w": kernel}, {"w": kernel})
    np.testing.assert_allclose(-found["w"].reshape(-1, 4), orthogonalize(kernel.reshape(-1, 4)), atol=1e-6)


class Weight(nn.Module):
    """Its only weight is the matrix of its classifier, which starts at 0."""

    @nn.compact
    def __call__(self, inputs, mask, train):
        head = nn.Dense(3, False, param_dtype=float, kernel_init=nn.initializers.zeros, name="head")
        features = inputs.reshape(len(inputs), -1)
        return Outputs(features, head(features))


def after(method, rounds, **local):
    """The weight and the method's state at the server, of two clients whose gradients are X - S and X - C."""
    targets = jnp.asarray([S(2, 3), C(2, 3)])

    def loss(view):
        return jnp.sum((view.params["head"]["kernel"] - targets[view.client.id]) ** 2) / 2

    training = LocalTraining(learning_rate=0.1, batch_size=1, task_loss=loss, **local)
    images, labels = np.ones((2, 2, 1, 1)), np.array([0, 2])
    federation = Federation.from_arrays(images, labels, [[0], [1]], images, labels, 0.0, 1.0)
    algorithm = FedAvg(training, {"it": method})
    run = simulate(federation, Model(Weight(), (2, 1, 1)), algorithm, rounds=rounds, key=jax.random.key(0))
    return np.asarray(run.variables.params["head"]["kernel"]), run.state.server.shared["it"]


CORRECTED, ALIGNED = CorrectedMuon(exact=True), AlignedMuon(weight_decay=0.0)


@cases(
    (CORRECTED, 1, [0.09163522346, -0.1335209887, -0.6427419283]),
    (CORRECTED, 2, [0.1996930492, -0.2970728153, -0.5510316960]),
    (ALIGNED, 1, [0.04309329524, -0.08075907592, -0.02692711431]),
    (ALIGNED, 2, [0.1074548075, -0.2174896984, -0.0508657102]),
)
def test_vectors_of_muon_in_rounds(method, rounds, expected, float64):
    weight, kept = after(method, rounds, steps=2)
    kept = (kept if method is CORRECTED else kept.momentum)["head"]["kernel"]
    np.testing.assert_allclose([weight[0, 0], weight[1, 2], kept[0, 0]], expected, rtol=1e-8)


@pytest.mark.parametrize("kind", [CorrectedMuon, AlignedMuon])
def test_what_changes_the_directions_is_rejected(model, kind):
    changes = dict(clip_norm=1.0, optimizer=Partial(optax.adam))
    for name, value in changes.items():
        with pytest.raises(UserError, match=f"{kind.__name__}: it computes .*; leave out training.{name}"):
            FedAvg(LocalTraining(**{name: value}), {"it": kind()}).check(model)
