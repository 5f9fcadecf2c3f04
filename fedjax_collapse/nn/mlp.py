"""A multilayer perceptron on flattened images."""

import flax.linen as nn
import jax

from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.records import Outputs


class MLP(nn.Module):
    """Dense layers with ReLU, linear classifier. The features are the output of the last hidden layer."""

    num_classes: int
    hidden: tuple[int, ...] = (128, 128)

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> Outputs:
        del mask, train
        features = images.reshape(len(images), -1)
        for width in self.hidden:
            features = jax.nn.relu(Dense(width)(features))
        return Outputs(features, Dense(self.num_classes)(features))
