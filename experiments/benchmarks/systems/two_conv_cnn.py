"""The network of pfl-research's benchmark on CIFAR-10, without its dropout."""

import jax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.layers import Conv, Dense, max_pool
from fedjax_collapse.nn.lowerings.convolution import TimedLowerings
from fedjax_collapse.nn.network import Network


class TwoConvCNN(Network):
    """Two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 max-pool, dense 128, ReLU after each layer."""

    num_classes: int
    channels: tuple[int, ...] = (32, 64)
    hidden: int = 128
    lowering: str | TimedLowerings = "auto"
    target: Target = Target()

    smallest_image = 6

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        del mask, train
        for channels in self.channels:
            conv = Conv(channels, 3, padding=0, lowering=self.lowering, dtype=self.dtype, target=self.target)
            images = jax.nn.relu(conv(images))
        images = max_pool(images, target=self.target)
        return jax.nn.relu(Dense(self.hidden, dtype=self.dtype)(images.reshape(len(images), -1)))
