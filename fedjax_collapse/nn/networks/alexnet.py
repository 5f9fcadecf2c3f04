"""AlexNet with BatchNorm, for the domain experiments of FedBN and FedDecorr."""

import functools

import jax
import jax.numpy as jnp

from fedjax_collapse.nn.layers import Dense, max_pool
from fedjax_collapse.nn.network import ConvNetwork, as_level, scale
from fedjax_collapse.schema.options import Count, Natural, Positive

CONVOLUTIONS = (  # channels, size, stride, padding, whether a 3x3 max-pool of stride 2 follows
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


class AlexNet(ConvNetwork):
    """Five convolutions, means over 6x6 fields, two dense layers; each layer with a bias, BatchNorm and ReLU.

    Li et al., "FedBN" (ICLR 2021), by its released code, for images of 256x256. The features are the 4,096 outputs of
    the second dense layer.

    Attributes:
        width_multiplier: factor of the numbers of channels.
        convolutions: channels, size, stride, padding of each convolution, and whether a 3x3 max-pool follows.
    """

    num_classes: int
    width_multiplier: Positive = 1.0
    convolutions: tuple[tuple[Count, Count, Count, Natural, bool], ...] = CONVOLUTIONS

    smallest_image = 63

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        layers = self.layers()
        conv = functools.partial(layers.conv_norm, mask=mask, train=train, use_bias=True)
        for channels, size, stride, padding, pooled in self.convolutions:
            channels = scale(channels, self.width_multiplier)
            images = as_level(self, conv(images, channels, size, stride=stride, padding=padding))
            images = jax.nn.relu(images)
            images = max_pool(images, 3, 2, target=self.target) if pooled else images
        features = adaptive_avg_pool(images, 6).reshape(len(images), -1)
        for _ in range(2):
            features = Dense(scale(4096, self.width_multiplier), dtype=self.dtype, target=self.target)(features)
            features = jax.nn.relu(as_level(self, layers.normalize(features, mask, train)))
        return features


def adaptive_avg_pool(images: jax.Array, size: int) -> jax.Array:
    """Returns means over ``size`` times ``size`` fields that cover the image and may overlap, as in PyTorch."""
    rows, columns = (_field_weights(extent, size).astype(images.dtype) for extent in images.shape[1:3])
    return jnp.einsum("bhwc,ih,jw->bijc", images, rows, columns)


def _field_weights(extent, size):
    """[size, extent]: field i is the mean from pixel floor(i extent / size) to before ceil((i + 1) extent / size)."""
    field, pixel = jnp.arange(size)[:, None], jnp.arange(extent)
    inside = (pixel >= field * extent // size) & (pixel < -(-(field + 1) * extent // size))
    return inside / jnp.sum(inside, axis=1, keepdims=True)
