"""FedRCL: its two losses, the levels of networks, and what is rejected."""

from types import SimpleNamespace

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, one_line
from loss_checks import evaluate
from tiny_networks import TINY, batch_of, initialize, least_model, tiny_model

from fedjax_collapse import FedAvg, LocalTraining, Model, Outputs
from fedjax_collapse.losses.relaxed_contrastive import excess_similarity, hardest_contrast
from fedjax_collapse.methods.collapse.fedrcl import FedRCL

F3 = np.array([[1, 2, 2], [3, 0, 4], [0, 1, -1]], float)
F4 = np.array([[1, 2, 2], [2, 2, 3], [3, 0, 4], [0, 1, -1]], float)
CONTRAST = [  # features, labels, temperature, value
    (F3, [0, 0, 2], 0.5, 0.1480063062),
    (F4, [0, 0, 0, 2], 0.5, 0.1510466889),
    (F3, [0, 1, 2], 0.5, 0.3989676964),
    (F3, [1, 1, 1], 0.5, 0.0),
    (F3[:1], [1], 0.5, 0.0),
    (F3, [0, 0, 2], 0.05, 1.430e-7),
]
EXCESS = [
    (F3, [0, 0, 2], 0.5, 0.3137983044),
    (F3, [0, 0, 2], 0.05, 0.0032108885),
    (F4, [0, 0, 0, 2], 0.5, 0.3789242663),
    (F3, [0, 1, 2], 0.5, 0.0181499279),
]


@pytest.mark.parametrize(("loss", "vectors"), [(hardest_contrast, CONTRAST), (excess_similarity, EXCESS)])
def test_vectors(loss, vectors):
    for features, labels, temperature, expected in vectors:
        value, gradient = evaluate(loss, features, labels, (temperature,))
        assert value == pytest.approx(expected, abs=1e-10) and (value != 0 or not gradient.any())


def test_definitions():
    """Both by loops; in places there is no other row of the class, one row of other classes, or none."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows, labels = rng.normal(size=(5, 3)) + rng.integers(0, 2), rng.integers(0, 1 + seed % 4, 5)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        contrast, excess, threshold = [], [], (0.4, -0.5)[seed % 2]
        for i in range(5):
            same, others = (sorted(unit[kind] @ unit[i]) for kind in (labels == labels[i], labels != labels[i]))
            weights = np.exp(np.array([same[0], *others[-2:]]) / 0.3)
            contrast.append(-np.log(weights[0] / weights.sum()))
            least = min((unit[j] @ unit[i] for j in range(5) if j != i and labels[j] == labels[i]), default=-1)
            excess.append(np.log1p(np.exp(((least if least >= threshold else -1) - 1) / 0.3)))
        assert evaluate(hardest_contrast, rows, labels, extras=(0.3,))[0] == pytest.approx(np.mean(contrast))
        assert evaluate(excess_similarity, rows, labels, extras=(0.3, threshold))[0] == pytest.approx(np.mean(excess))


LEVELS = {  # of the tiny networks: numbers of channels
    "alexnet": (2, 6, 12, 8, 8, 128, 128),
    "efficientnet_b0": (4, 6, 160),
    "feduv_cnn": (4, 4, 8, 8, 8, 16, 16, 16),
    "mlp": (12, 8),
    "mobilenet_v2": (4, 6, 320),
    "moon_cnn": (6, 16, 20, 10),
    "pfllib_cnn": (5, 8, 12),
    "resnet18": (8, 8, 16),
    "resnet20": (16, 16, 32),
    "resnet32": (16, 16, 32),
    "resnet50": (8, 32),
    "small_cnn": (5, 8),
    "vit": (64,),
    "wide_resnet": (16, 32, 64),
}


@pytest.mark.parametrize("name", TINY)
def test_levels_of_networks(name):
    """In float32 whatever the network computes in; none unless asked for."""
    model = tiny_model(name, dtype="bfloat16")
    levels = model.initial_shapes().levels
    assert sorted(level.shape for level in levels) == sorted((1, channels) for channels in LEVELS[name])
    assert {level.dtype for level in levels} == {jnp.dtype("float32")}
    assert model.output_shapes(jax.eval_shape(model.init, jax.random.key(0))).levels == ()


def test_levels_are_taken_before_the_last_activation():
    model = tiny_model("mlp")
    variables, batch = initialize(model), batch_of(model.input_shape)
    outputs, _ = model.apply(variables, batch, train=True, levels=True)
    first, last = outputs.levels
    np.testing.assert_array_equal(outputs.features, np.maximum(last, 0))
    kernel, bias = (variables.params["Dense_1"][leaf] for leaf in ("kernel", "bias"))
    assert_close(last, np.maximum(first, 0) @ kernel + bias, 1e-5)
    assert (last < 0).any()


def test_levels_with_rematerialization(float64):
    """The same numbers, and gradients, as without."""
    found = []
    for remat in (False, True):
        model = least_model("resnet18", remat=remat, lowering="xla")
        variables, batch = initialize(least_model("resnet18", lowering="xla")), batch_of(model.input_shape)

        def total(params, model=model, variables=variables, batch=batch):
            levels = model.apply(variables._replace(params=params), batch, train=True, levels=True)[0].levels
            return sum(jnp.sum(level[batch.mask] ** 3) for level in levels), levels

        found.append(jax.jit(jax.grad(total, has_aux=True))(variables.params))
    assert_close(*found, 1e-12)


def test_all_levels_count_alike(float64):
    """The mean over levels, of which one is the features: with one level all is last, and padding weighs nothing."""
    rng, labels = np.random.default_rng(0), jnp.asarray([0, 0, 1, 1, 0, 2])
    levels = tuple(jnp.asarray(rng.normal(size=(6, dim))) for dim in (3, 5))
    mask = jnp.arange(6) < 4

    def values(method, features, levels):
        batch = SimpleNamespace(labels=labels, mask=mask)
        terms = method.penalty(SimpleNamespace(outputs=Outputs(features, None, levels), batch=batch))
        return np.array([float(terms[name].value) for name in ("contrast", "relaxation")])

    each = [values(FedRCL(levels="last"), level, ()) for level in levels]
    np.testing.assert_allclose(values(FedRCL(), None, levels), np.mean(each, axis=0), rtol=1e-12)
    other = tuple(jnp.where(mask[:, None], level, jnp.nan) for level in levels)
    np.testing.assert_array_equal(values(FedRCL(), None, other), values(FedRCL(), None, levels))


class WithoutLevels(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, images, mask, train):
        features = flax.linen.Dense(3)(images.reshape(len(images), -1))
        return Outputs(features, flax.linen.Dense(4, name="head")(features))


def test_a_network_without_levels_has_the_last():
    model = Model(WithoutLevels(), (4, 4, 1))
    with one_line("network WithoutLevels offers no levels; sow them"):
        FedAvg(LocalTraining(), {"fedrcl": FedRCL()}).check(model)
    FedAvg(LocalTraining(), {"fedrcl": FedRCL(levels="last")}).check(model)
