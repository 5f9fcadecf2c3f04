"""MOON's simple convolutional network: LeNet-5 with ReLU and max-pools."""

import jax

from fedjax_collapse.nn.layers import Conv, Dense, max_pool
from fedjax_collapse.nn.lowerings.convolution import Lowering, TimedLowerings
from fedjax_collapse.nn.network import Network, as_level
from fedjax_collapse.schema.options import Count


class MOONCNN(Network):
    """Two 5x5 convolutions without padding, each with ReLU and a 2x2 max-pool, then dense 120 and 84 with ReLU.

    Li et al., "Model-Contrastive Federated Learning" (CVPR 2021), by its released code; with ``projector="moon"`` it is
    the published network.

    Attributes:
        channels: channels of each convolution.
        hidden: width of each dense layer.
        lowering: how convolutions are computed (``lowerings/``): ``auto`` follows rules, ``timed`` measures once on the
            device.
    """

    num_classes: int
    channels: tuple[Count, ...] = (6, 16)
    hidden: tuple[Count, ...] = (120, 84)
    lowering: Lowering | TimedLowerings = "auto"

    @property
    def smallest_image(self) -> int:
        return 5 * 2 ** len(self.channels) - 4  # 1 after the last max-pool; before each block twice as many, and 4 more

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        options = dict(lowering=self.lowering, dtype=self.dtype, target=self.target)
        for channels in self.channels:
            images = as_level(self, Conv(channels, 5, padding=0, **options)(images))
            images = max_pool(jax.nn.relu(images), target=self.target)
        features = images.reshape(len(images), -1)
        for width in self.hidden:
            features = jax.nn.relu(as_level(self, Dense(width, dtype=self.dtype, target=self.target)(features)))
        return features
