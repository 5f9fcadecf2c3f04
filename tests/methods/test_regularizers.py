"""Regularizers: MOON's first round, prototypes of FedMR and FedProc, FedRCL's losses and levels, what does not fit."""

from types import SimpleNamespace

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, cases, check, one_line
from engine_rounds import start_rounds
from loss_checks import Z6, evaluate, pad
from tiny_networks import TINY, batch_of, initialize, least_model, tiny_model

from fedjax_collapse import FedAvg, LocalTraining, Model, Outputs, engine, nn, simulate
from fedjax_collapse.core.records import Batch
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.losses.relaxed_contrastive import excess_similarity, hardest_contrast
from fedjax_collapse.methods import MOON, FedLC, FedMR, FedProc, FedRS, FedUV, StructuredDeCov
from fedjax_collapse.methods.collapse.fedmr import draw_rows, is_submitter
from fedjax_collapse.methods.collapse.fedrcl import FedRCL


@cases((0.0, 0), (0.5, 5), (0.8, 8), (1.0, 10))
def test_the_submitters_are_a_fixed_fraction_of_the_clients(fraction, count):
    chosen = np.array([is_submitter(client, fraction, 0) for client in range(30)]).reshape(3, 10)
    assert chosen.sum(axis=1).tolist() == [count] * 3
    if count in (5, 8):
        assert len(np.unique(chosen, axis=0)) > 1  # not the same neighbours everywhere
        other = [is_submitter(client, fraction, 1) for client in range(30)]
        assert other != chosen.ravel().tolist()


def test_lite_draws_rows_without_replacement_and_padding_takes_no_place():
    mask = jnp.arange(9) % 3 > 0
    drawn = np.array(jax.jit(jax.vmap(lambda key: draw_rows(key, mask, 4)))(jax.random.split(jax.random.key(0), 500)))
    assert (drawn.sum(axis=1) == 4).all() and not drawn[:, ~mask].any()
    np.testing.assert_allclose(drawn.mean(axis=0)[mask], 4 / 6, atol=0.1)
    assert draw_rows(jax.random.key(0), mask, 8)[mask].all()


@pytest.mark.slow
def test_prototypes_of_the_initial_model(federation):
    """Before the first round: over the clients that submit, all of them, in the cohort or not."""
    model = Model(nn.SmallCNN(4, (5,)), federation.input_shape)
    variables = model.init(jax.random.key(0))
    regularizer = FedMR(initial_prototypes=True, submission=0.5)
    algorithm = FedAvg(LocalTraining(batch_size=8), {"fedmr": regularizer})
    _, _, started, *_ = start_rounds(federation, model, algorithm, engine.Chunked(2))
    submitters = [client for client in range(5) if is_submitter(client, 0.5, 0)]
    rows = [federation.ownership.rows[c, : federation.ownership.sizes[c]] for c in submitters]
    rows = jnp.concatenate(rows)
    outputs, _ = model.apply(variables, get_batch(federation.train, rows, jnp.ones(len(rows), bool)), train=False)
    labels = federation.train.labels[rows]
    expected = [outputs.features[labels == c].mean(0) for c in range(4)]
    assert 0 < len(submitters) < 5 and started.server.shared["fedmr"].valid.all()
    np.testing.assert_allclose(started.server.shared["fedmr"].means, expected, rtol=1e-5, atol=1e-6)


def test_one_hot_prototypes_stay():
    shapes = Outputs(jax.ShapeDtypeStruct((1, 3), np.float32), jax.ShapeDtypeStruct((1, 2), np.float32))
    regularizer = FedMR(prototypes="one_hot")
    shared = regularizer.init_shared(None, shapes)
    assert shared.means.tolist() == [[1, 0, 0], [0, 1, 0]] and shared.valid.all()
    assert not any(map(regularizer.has, ("finish", "combine", "measure", "after_round")))


def test_fedproc_is_rejected_with_another_task_loss(model):
    for methods in ({"fedproc": FedProc(), "fedlc": FedLC()}, {"fedlc": FedLC(), "fedproc": FedProc()}):
        with one_line("methods fedproc and fedlc: fedproc ends with plain cross-entropy"):
            FedAvg(LocalTraining(), methods).check(model)


def test_fedproc_fades_into_cross_entropy():
    weights = [float(FedProc(ramp_rounds=4.0).prototype_weight(jnp.array(r))) for r in range(6)]
    assert weights == [0, 0.75, 0.5, 0.25, 0, 0]


@cases(("received", np.log(2)), ("mask", 0.0))
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
    assert FedUV().enabled()
    assert jax.jit(lambda: [of.penalty(view)["variance"].strength for of in (FedUV(), FedUV(0.25))])() == [25, 0.25]


ON_SIMPLEX = Model(nn.MLP(4, head=nn.heads.ETF), (8, 8, 2))


@cases(
    (StructuredDeCov(num_groups=5), Model(nn.MLP(4, (6,)), (8, 8, 2)), "num_groups 5: expected a divisor of the 6"),
    (FedMR(variant="official", normalise_d2=True), ON_SIMPLEX, "normalise_d2 True: expected False"),
    (FedRS(use_bias=False), ON_SIMPLEX, "FedRS: use_bias=False needs a linear classifier, that of network MLP has"),
)
def test_mismatched_values_are_rejected_before_the_first_round(method, network, message, federation):
    check(message, simulate, federation, network, FedAvg(methods={"it": method}), rounds=1, key=jax.random.key(0))


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


@cases((hardest_contrast, CONTRAST), (excess_similarity, EXCESS))
def test_vectors_of_fedrcl(loss, vectors):
    for features, labels, temperature, expected in vectors:
        value, gradient = evaluate(loss, features, labels, (temperature,))
        assert value == pytest.approx(expected, abs=1e-10) and (value != 0 or not gradient.any())


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


def test_all_levels_of_fedrcl_count_alike(float64):
    """The mean over levels, of which one is the features: with one level all is last, and padding weighs nothing."""
    rng, labels = np.random.default_rng(0), jnp.asarray([0, 0, 1, 1, 0, 2])
    levels = tuple(jnp.asarray(rng.normal(size=(6, dim))) for dim in (3, 5))
    mask = jnp.arange(6) < 4

    @jax.jit
    def values(method, features, levels):
        batch = SimpleNamespace(labels=labels, mask=mask)
        terms = method.penalty(SimpleNamespace(outputs=Outputs(features, None, levels), batch=batch))
        return jnp.stack([terms[name].value for name in ("contrast", "relaxation")])

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
