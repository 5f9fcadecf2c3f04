"""The network of pfl-research's benchmark on CIFAR-10, without its dropout."""

import jax

from fedjax_collapse.nn.layers import Dense, max_pool
from fedjax_collapse.nn.network import ConvNetwork


class TwoConvCNN(ConvNetwork):
    """Two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 max-pool, dense 128, ReLU after each layer."""

    num_classes: int
    channels: tuple[int, ...] = (32, 64)
    hidden: int = 128

    smallest_image = 6

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        del mask, train
        for channels in self.channels:
            images = jax.nn.relu(self.layers().conv(images, channels, padding=0))
        images = max_pool(images, target=self.target)
        return jax.nn.relu(Dense(self.hidden, dtype=self.dtype)(images.reshape(len(images), -1)))
