"""A multilayer perceptron on flattened images, or on vectors."""

import jax

from fedjax_collapse.nn.layers import Dense, Norm, normalize
from fedjax_collapse.nn.network import Network, as_level
from fedjax_collapse.schema.options import Count


class MLP(Network):
    """Dense layers with ReLU. The features are the output of the last hidden layer.

    Attributes:
        hidden: width of each layer; ``()`` is the linear model.
        norm: normalisation before each ReLU, in place of a bias.
    """

    num_classes: int
    hidden: tuple[Count, ...] = (128, 128)
    norm: Norm = "none"

    needs_images = False

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        features = images.reshape(len(images), -1)
        for width in self.hidden:
            outputs = Dense(width, use_bias=self.norm == "none", dtype=self.dtype, target=self.target)(features)
            outputs = normalize(self.norm, outputs, mask, train, self.target)
            features = jax.nn.relu(as_level(self, outputs))
        return features
