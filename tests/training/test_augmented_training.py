"""Augmentation inside local training: by identity, never by position, and what frozen models then see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TWO_EPOCHS as TRAINING
from conftest import assert_close, assert_same_bits, check, one_line
from engine_rounds import run_rounds
from flax import linen

from experiments.configs import base as config_base
from fedjax_collapse import MOON, FedAvg, FedProc, Model, engine, nn, simulate
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.records import Variables
from fedjax_collapse.data import augment
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.run.evaluation import evaluate

FLIP = augment.chain(augment.flip)


def run(federation, algorithm, input_shape=None):
    """The server's variables and the clients' metrics of two rounds of three clients, one after another."""
    model = Model(nn.MLP(4, hidden=(8,)), input_shape or federation.input_shape)
    state, record, _ = run_rounds(federation, model, algorithm, engine.Chunked(1), cohort_size=3)
    return state.server.variables, record.metrics


def in_grey(examples):
    """With the first of their channels alone."""
    return examples._replace(inputs=examples.inputs[..., :1], mean=examples.mean[:1], std=examples.std[:1])


@pytest.mark.slow
def test_an_image_is_augmented_by_its_row_whatever_its_place(federation):
    rows, mask = jnp.array([3, 17, 40, 5]), jnp.ones(4, bool)
    batch = get_batch(federation.train, rows, mask, FLIP, jax.random.key(0))
    turned = get_batch(federation.train, rows[::-1], mask, FLIP, jax.random.key(0))
    assert_same_bits(batch.inputs, turned.inputs[::-1])
    plain = get_batch(federation.train, rows, mask)
    is_flipped = [np.any(a != b) for a, b in zip(batch.inputs, plain.inputs, strict=True)]
    assert 0 < sum(is_flipped) < 4
    other = get_batch(federation.train, rows, mask, FLIP, jax.random.key(1))
    assert np.any(other.inputs != batch.inputs)


@pytest.mark.slow
def test_the_policy_on_images_in_turn_is_that_on_all_together(federation, monkeypatch):
    """As on a CPU, and as on an accelerator."""
    images, keys = in_grey(federation.train).inputs[:24].astype(jnp.float32), jax.random.split(jax.random.key(0), 24)
    in_turn = jax.jit(jax.vmap(augment.auto_augment))(images, keys)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    together = jax.jit(jax.vmap(lambda image, key: augment.auto_augment(image, key)))(images, keys)
    assert_same_bits(in_turn, together)


@pytest.mark.slow
def test_frozen_models_see_the_augmented_images(federation):
    """Flipping every image is training on flipped images: outputs made in every step, or once from a table."""
    flipped = federation.train._replace(inputs=federation.train.inputs[:, :, ::-1])
    moon = FedAvg(TRAINING, {"moon": MOON(1.0)})
    often = moon.replace(training=TRAINING.replace(augmentation=lambda image, key: image[:, ::-1]))
    once = run(federation._replace(train=flipped), moon)
    assert_close(run(federation, often), once, 1e-5)


@pytest.fixture(scope="module")
def larger(federation):
    """The federation's images with noise around them, 12 x 12."""

    def surround(examples):
        images = np.random.default_rng(0).integers(0, 256, (len(examples.labels), 12, 12, 2)).astype(np.uint8)
        images[:, 2:10, 2:10] = examples.inputs
        return examples._replace(inputs=jnp.asarray(images))

    return federation._replace(train=surround(federation.train), test=surround(federation.test))


def middle(image, key):
    return image[2:10, 2:10]


@pytest.mark.slow
def test_a_model_sees_the_middle_of_larger_images(federation, larger):
    model = Model(nn.MLP(4, hidden=(8,)), federation.input_shape)
    variables = model.init(jax.random.key(0))
    assert_same_bits(evaluate(model, variables, larger.test), evaluate(model, variables, federation.test))
    batch = get_batch(federation.train, jnp.arange(4), jnp.ones(4, bool))
    traced = jax.make_jaxpr(lambda batch: model.apply(variables, batch, True))
    assert "slice" not in str(traced(batch))  # images of the right size are not touched
    images = jnp.arange(15.0 * 13).reshape(1, 15, 13, 1)
    shown = Model(Shown(), (8, 8, 1)).apply(Variables({}, {}), batch._replace(inputs=images), False)[0]
    assert_same_bits(shown, images[:, 4:12, 2:10])  # half a pixel goes to the even side
    with one_line("images of 7 x 8 pixels: the model expects at least 8 x 8"):
        model.apply(variables, batch._replace(inputs=batch.inputs[:, 1:]), False)


class Shown(linen.Module):
    @linen.compact
    def __call__(self, images, mask, train):
        return images


@pytest.mark.slow
def test_cropping_to_the_middle_changes_nothing(federation, larger):
    """Not the local steps, nor what MOON's frozen models and FedProc's prototypes, never augmented, see."""
    plain = FedAvg(TRAINING, {"moon": MOON(1.0), "fedproc": FedProc()})
    cropping = plain.replace(training=TRAINING.replace(augmentation=middle))
    shape = federation.input_shape
    expected = run(larger, plain, shape)
    assert_close(run(larger, cropping, shape), expected, 1e-5)


@pytest.mark.slow
def test_a_random_crop_runs_from_end_to_end(larger):
    crop = functools.partial(augment.crop, padding=0, size=8)
    algorithm = FedAvg(TRAINING.replace(augmentation=crop), {"fedproc": FedProc()})
    model = Model(nn.MLP(4, hidden=(8,)), augment.output_shape(crop, larger.input_shape))
    result = simulate(larger, model, algorithm, rounds=2, key=jax.random.key(0))
    assert result.rounds_done == 2 and np.isfinite([row["loss"] for row in result.metrics]).all()
    assert result.variables.params["Dense_0"]["kernel"].shape == (8 * 8 * 2, 8)
    accuracy = evaluate(model, result.variables, larger.test).score
    assert result.metrics[-1]["accuracy"] == pytest.approx(accuracy)
    for augmentation, found in ((None, r"\(12, 12, 2\); an augmentation crops"), (middle, r"after .* \(8, 8, 2\)")):
        wrong = Model(nn.MLP(4, hidden=(8,)), (6, 6, 2) if augmentation else (8, 8, 2))
        algorithm = FedAvg(TRAINING.replace(augmentation=augmentation))
        with one_line(f"model: its inputs have shape .*, those of the federation .*{found}"):
            simulate(larger, wrong, algorithm, rounds=1, key=jax.random.key(0))


@pytest.mark.slow
def test_the_network_is_built_for_what_the_augmentation_leaves(monkeypatch, federation, larger):
    config = config_base.get_config()
    monkeypatch.setitem(augment.PRESETS, "middle", middle)
    config.training.augmentation = "middle"
    assert build.model(plain(config), larger).input_shape == federation.input_shape
    config.training.augmentation = "flamby_isic2019"
    check(r"12 x 12 pixels .* at least 200 x 200; set data\.image_size", build.model, plain(config), larger)
