"""A small convolutional network: the default for digits and other small images."""

import functools

import jax

from fedjax_collapse.nn.layers import max_pool
from fedjax_collapse.nn.network import ConvNetwork, as_level, global_mean
from fedjax_collapse.schema.options import Count


class SmallCNN(ConvNetwork):
    """3x3 convolutions, each with BatchNorm and ReLU, 2x2 max-pools between them, mean over the image.

    The features are these means, one per channel of the last convolution.

    Attributes:
        channels: channels of each convolution.
    """

    num_classes: int
    channels: tuple[Count, ...] = (32, 64, 128)

    @property
    def smallest_image(self) -> int:
        return 2 ** (len(self.channels) - 1)

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        conv = functools.partial(self.layers().conv_norm, mask=mask, train=train)
        for block, channels in enumerate(self.channels):
            images = max_pool(images, target=self.target) if block else images
            images = jax.nn.relu(as_level(self, conv(images, channels)))
        return global_mean(images, self.target)
