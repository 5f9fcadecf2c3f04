"""A multilayer perceptron on flattened images, or on vectors."""

import jax

from fedjax_collapse.core.options import Count
from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.nn.network import Network, as_level


class MLP(Network):
    """Dense layers with ReLU. The features are the output of the last hidden layer.

    Attributes:
        hidden: width of each layer; without any, ``()``, it is the linear model.
    """

    num_classes: int
    hidden: tuple[Count, ...] = (128, 128)

    needs_images = False

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        del mask, train
        features = images.reshape(len(images), -1)
        for width in self.hidden:
            features = jax.nn.relu(as_level(self, Dense(width, dtype=self.dtype)(features)))
        return features
