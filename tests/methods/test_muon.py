"""Muon as local optimizer, and the two methods that correct it: test vectors, and which weights are matrices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, UserError, simulate
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.methods import AlignedMuon, CorrectedMuon
from fedjax_collapse.optim.muon import muon, orthogonalize

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
    optimizer, params = muon(1.0), {"kernel": jnp.zeros((3, 5)), "bias": jnp.zeros(5)}
    state, gradients = optimizer.init(params), [S(3, 5), C(3, 5)]
    for gradient in gradients:
        updates, state = optimizer.update({"kernel": jnp.asarray(gradient), "bias": jnp.ones(5)}, state, params)
    np.testing.assert_allclose(updates["kernel"][0, 0], -0.7332764167, rtol=1e-6)
    np.testing.assert_allclose(updates["kernel"][2, 4], -0.2399057588, rtol=1e-6)
    of_bias = optax.adamw(1.0, nesterov=True, weight_decay=0.0)
    state = of_bias.init(params["bias"])
    for _ in gradients:
        expected, state = of_bias.update(jnp.ones(5), state, params["bias"])
    np.testing.assert_allclose(updates["bias"], expected, rtol=1e-12)
    kernel = jnp.asarray(S(4, 12)).reshape(2, 2, 3, 4)
    found, _ = muon(1.0).update({"w": kernel}, muon(1.0).init({"w": kernel}), {"w": kernel})
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


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [(1, [0.09163522346, -0.1335209887, -0.6427419283]), (2, [0.1996930492, -0.2970728153, -0.5510316960])],
)
def test_corrected_muon_vectors(float64, rounds, expected):
    weight, variate = after(CorrectedMuon(exact=True), rounds, steps=2)
    np.testing.assert_allclose([weight[0, 0], weight[1, 2], variate["head"]["kernel"][0, 0]], expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [(1, [0.04309329524, -0.08075907592, -0.02692711431]), (2, [0.1074548075, -0.2174896984, -0.0508657102])],
)
def test_aligned_muon_vectors(float64, rounds, expected):
    weight, means = after(AlignedMuon(weight_decay=0.0), rounds, steps=2)
    found = weight[0, 0], weight[1, 2], means.momentum["head"]["kernel"][0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("kind", [CorrectedMuon, AlignedMuon])
def test_what_changes_the_directions_is_rejected(model, kind):
    changes = dict(clip_norm=1.0, optimizer=Partial(optax.adam))
    for name, value in changes.items():
        with pytest.raises(UserError, match=f"{kind.__name__}: it computes .*; leave out training.{name}"):
            FedAvg(LocalTraining(**{name: value}), {"it": kind()}).check(model)
