"""Federated averaging and its server optimizers on two clients with known trajectories, and SGD's test vector."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Given, one_line

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.methods import FedProx
from fedjax_collapse.optim.aggregation import Upload, damped_momentum, sum_clients, weigh


class Scalar(nn.Module):
    """One parameter w; an "image" is (curvature, target) of the client's quadratic."""

    @nn.compact
    def __call__(self, images, mask, train):
        w = self.param("w", nn.initializers.zeros, ())
        return Outputs(features=images[:, 0, 0, :], logits=jnp.broadcast_to(w, (len(images), 2)))


def quadratic(view):
    """Mean over true rows of ``curvature (w - target)^2 / 2``."""
    outputs, batch = view.outputs, view.batch
    curvature, target = outputs.features[:, 0], outputs.features[:, 1]
    losses = curvature * (outputs.logits[:, 0] - target) ** 2 / 2
    return jnp.sum(jnp.where(batch.mask, losses, 0)) / jnp.maximum(jnp.sum(batch.mask), 1)


def two_clients():
    images, labels = np.array([[1.0, 2.0], [3.0, -1.0]]).reshape(2, 1, 1, 2), np.zeros(2, int)
    return Federation.from_arrays(images, labels, [[0], [1]], images, labels, class_names=("a", "b"))


SCALAR = Model(Scalar(), (1, 1, 2))
FULL = [(1, 2)] * 3


def states(algorithm, federation, cohorts):
    """The state after each round, with the given cohorts (numbered from 1)."""
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    state = engine.init(algorithm, SCALAR, SCALAR.init(jax.random.key(0)), 2, jax.random.key(1))
    after = []
    for cohort in cohorts:
        rounds = engine.RoundSpec(SCALAR, engine.Layout(engine.Chunked(2), len(cohort)))
        data = engine.Assignment(federation.ownership, Given(cohort=jnp.array(cohort) - 1))
        state = engine.run_rounds(rounds, algorithm, state, data, federation.train, 1).state
        after.append(jax.device_get(state._replace(key=None)))  # the next round reuses its buffers
    return after


def server_path(after):
    return [float(state.server.variables.params["w"]) for state in after]


def training(**changes):
    return LocalTraining(**{**dict(epochs=2, batch_size=2, learning_rate=0.1, task_loss=quadratic), **changes})


def test_a_loss_may_be_a_number():
    assert server_path(states(FedAvg(training(task_loss=lambda view: 3.0)), two_clients(), FULL[:1])) == [0.0]


PARTIAL = jax.tree_util.Partial
TABLE = {
    "fedavg": (FedAvg(training()), [-0.065, -0.10725, -0.1347125]),
    "momentum": (FedAvg(training(momentum=0.9)), [-0.11, -0.1617, -0.185999]),
    "damped": (
        FedAvg(training(), server_optimizer=PARTIAL(damped_momentum, 0.5)),
        [-0.0325, -0.0755625, -0.1163703125],
    ),
    "undamped": (
        FedAvg(training(), server_optimizer=PARTIAL(optax.sgd, 1.0, momentum=0.5)),
        [-0.065, -0.13975, -0.1932125],
    ),
    "proximal": (FedAvg(training(), {"fedprox": FedProx(0.5)}), [-0.0625, -0.10375, -0.130975]),
}


@pytest.mark.parametrize("name", TABLE)
def test_two_scalar_clients(float64, name):
    algorithm, expected = TABLE[name]
    np.testing.assert_allclose(server_path(states(algorithm, two_clients(), FULL)), expected, atol=1e-7)


def test_sgd_is_torchs(float64):
    """Loss w^2 from w = 1: learning rate 0.1, momentum 0.9, weight decay 0.1."""
    optimizer = LocalTraining(learning_rate=0.1, momentum=0.9, weight_decay=0.1).make_optimizer()
    w, path = jnp.array(1.0), []
    state = optimizer.init(w)
    for _ in range(3):
        updates, state = optimizer.update(2 * w, state, w)
        w = optax.apply_updates(w, updates)
        path.append(float(w))
    np.testing.assert_allclose(path, [0.79, 0.4351, 0.024319], rtol=1e-12)


def test_aggregation_is_a_weighted_mean_and_padding_clients_add_nothing():
    stacked = {"a": jnp.arange(12.0).reshape(3, 2, 2), "n": jnp.array([1, 2, 3])}
    weights, is_real = jnp.array([0.25, 0.75, 0.0]), jnp.array([True, True, False])
    stacked["a"] = stacked["a"].at[2].set(jnp.nan)
    upload = jax.vmap(weigh)(Upload({"a": stacked["a"]}, {"n": stacked["n"]}), weights, is_real)
    total = sum_clients(upload)
    np.testing.assert_allclose(
        total.mean["a"], 0.25 * np.arange(4).reshape(2, 2) + 0.75 * np.arange(4, 8).reshape(2, 2)
    )
    assert total.total["n"] == 3 and total.total["n"].dtype == stacked["n"].dtype


OUT_OF_RANGE = dict(
    batch_size=0, epochs=0, steps=0, learning_rate=0.0, weight_decay=-1.0, momentum=1.0, clip_norm=0.0,
    schedule="linear",
)  # fmt: skip


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_wrong_hyper_parameters(option):
    with one_line(f"LocalTraining: {option} "):
        FedAvg(training(**{option: OUT_OF_RANGE[option]})).check()
