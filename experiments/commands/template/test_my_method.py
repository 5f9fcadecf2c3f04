"""FeatureNorm: its term is the formula, and a greater strength makes the features shorter."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
from my_method import FeatureNorm
from my_network import MyNetwork

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Outputs, partition, simulate, sources


def test_padding_rows_do_not_count():
    outputs = Outputs(jnp.array([[3.0, 4.0], [9.0, 9.0]]), jnp.zeros((2, 10)))
    view = SimpleNamespace(outputs=outputs, batch=SimpleNamespace(mask=jnp.array([True, False])))
    assert FeatureNorm(0.1).penalty(view)["norm"].value == 25


def norm_after_training(strength):
    digits = sources.digits()
    federation = Federation.from_source(digits, partition.dirichlet(digits.labels, num_clients=4, alpha=1.0))
    model = Model(MyNetwork(federation.num_classes, width=8), federation.input_shape)
    algorithm = FedAvg(LocalTraining(epochs=1, learning_rate=0.05), {"feature_norm": FeatureNorm(strength)})
    result = simulate(federation, model, algorithm, rounds=2, key=jax.random.key(0))
    return result.metrics[-1]["train/feature_norm/norm"]


def test_features_are_shorter():
    assert norm_after_training(1.0) < norm_after_training(0.001)
