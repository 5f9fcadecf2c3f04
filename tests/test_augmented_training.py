"""Augmentation inside local training: by identity, never by position, and what frozen models then see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits

from experiments import build
from experiments.configs import base as config_base
from fedjax_collapse import MOON, FedAvg, LocalTraining, Model, UserError, engine, nn
from fedjax_collapse.data import augment
from fedjax_collapse.data.batches import get_batch

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)
FLIP = augment.chain(augment.flip)


def run(federation, algorithm, client_map, rounds=2):
    model = Model(nn.MLP(4, hidden=(8,)), federation.image_shape)
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    state = engine.init(algorithm, model, model.init(jax.random.key(0)), 5, jax.random.key(1))
    layout = dict(model=model, layout=engine.Layout(client_map, cohort_size=3, max_rounds=2))
    state, record, _ = engine.run_rounds(algorithm, state, federation.train, federation.ownership, rounds, **layout)
    return jax.device_get((state.server.variables, record.metrics))


def test_an_image_is_augmented_by_its_row_whatever_its_place(federation):
    rows, mask = jnp.array([3, 17, 40, 5]), jnp.ones(4, bool)
    batch = get_batch(federation.train, rows, mask, FLIP, jax.random.key(0))
    turned = get_batch(federation.train, rows[::-1], mask, FLIP, jax.random.key(0))
    assert_same_bits(batch.images, turned.images[::-1])
    plain = get_batch(federation.train, rows, mask)
    is_flipped = [np.any(a != b) for a, b in zip(batch.images, plain.images, strict=True)]
    assert 0 < sum(is_flipped) < 4
    other = get_batch(federation.train, rows, mask, FLIP, jax.random.key(1))
    assert np.any(other.images != batch.images)


def test_layouts_agree_and_training_differs_from_that_without(federation):
    flipped = FedAvg(TRAINING.replace(augmentation=FLIP))
    alone, together = (run(federation, flipped, m) for m in (engine.Chunked(1), engine.Vectorized()))
    assert_close(alone[0], together[0], 1e-5)
    plain, _ = run(federation, FedAvg(TRAINING), engine.Chunked(1))
    assert np.abs(plain.params["Dense_0"]["kernel"] - alone[0].params["Dense_0"]["kernel"]).max() > 1e-4


def test_frozen_models_see_the_augmented_images(federation):
    """Flipping every image is training on flipped images: outputs made in every step, or once from a table."""
    flipped = federation.train._replace(images=federation.train.images[:, :, ::-1])
    moon = FedAvg(TRAINING, {"moon": MOON(1.0)})
    often = moon.replace(training=TRAINING.replace(augmentation=lambda image, key: image[:, ::-1]))
    once = run(federation._replace(train=flipped), moon, engine.Chunked(1))
    assert_close(run(federation, often, engine.Chunked(1)), once, 1e-5)


def test_presets_by_name():
    config = config_base.get_config()
    assert build.algorithm(config).training.augmentation is None
    config.training.augmentation = "feddecorr_cifar10"
    assert build.algorithm(config).training.augmentation is augment.PRESETS["feddecorr_cifar10"]
    config.training.augmentation = "feddecor_cifar10"
    with pytest.raises(UserError, match="did you mean 'feddecorr_cifar10'"):
        build.algorithm(config)
