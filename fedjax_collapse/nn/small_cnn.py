"""A small convolutional network: the default for digits and other small images."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.nn.layers import BatchNorm, Conv, Dense, max_pool
from fedjax_collapse.records import Outputs


class SmallCNN(nn.Module):
    """3x3 convolutions, each with BatchNorm and ReLU, 2x2 max-pools between them, mean over the image, linear
    classifier.

    The features are the mean over the image: as many as the last convolution has channels.
    """

    num_classes: int
    channels: tuple[int, ...] = (32, 64, 128)
    norm: str = "batch"  # or "none"
    lowering: str = "auto"

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> Outputs:
        for block, channels in enumerate(self.channels):
            images = max_pool(images) if block else images
            images = Conv(channels, use_bias=self.norm == "none", lowering=self.lowering)(images)
            images = BatchNorm()(images, mask, train) if self.norm == "batch" else images
            images = jax.nn.relu(images)
        features = jnp.mean(images, axis=(1, 2))
        return Outputs(features, Dense(self.num_classes)(features))
