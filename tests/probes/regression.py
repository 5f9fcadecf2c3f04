"""A regression on a table of numbers."""

import flax.linen as nn
import numpy as np

from fedjax_collapse import REGRESSION, Federation, Model, Outputs


class Tower(nn.Module):
    """Two layers and a linear prediction."""

    @nn.compact
    def __call__(self, columns, mask, train):
        features = nn.relu(nn.Dense(32)(nn.relu(nn.Dense(32)(columns))))
        return Outputs(features, nn.Dense(1, name="head")(features)[:, 0])


def federation(num_clients=4, seed=0):
    """y = x_0 x_1 + noise, every client with x_0 of its own range; and the model."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (400, 3))
    y = x[:, 0] * x[:, 1] + 0.01 * rng.standard_normal(400)
    parts = np.array_split(np.argsort(x[:320, 0]), num_clients)
    data = Federation.from_inputs(x[:320], y[:320], parts, x[320:], y[320:], mean=0.0, std=0.5)
    return data, Model(Tower(), data.input_shape, task=REGRESSION)
