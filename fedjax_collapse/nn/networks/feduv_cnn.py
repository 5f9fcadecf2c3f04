"""FedUV's small convolutional network, for STL10 and PACS."""

import functools

import jax

from fedjax_collapse.nn.network import ConvNetwork, as_level, global_mean, scale
from fedjax_collapse.schema.options import Count, Positive

CONVOLUTIONS = (  # channels, size, stride
    (16, 3, 1),
    (16, 1, 1),
    (32, 3, 2),
    (32, 3, 1),
    (32, 1, 1),
    (64, 3, 2),
    (64, 3, 1),
    (64, 1, 1),
)


class FedUVCNN(ConvNetwork):
    """Eight convolutions without padding, each with BatchNorm and ReLU, mean over the image: 64 features.

    Son et al., "FedUV" (CVPR 2024), by its released code; with ``projector="feduv"`` it is the published network.

    Attributes:
        width_multiplier: factor of the numbers of channels.
        convolutions: channels, size and stride of each convolution.
    """

    num_classes: int
    width_multiplier: Positive = 1.0
    convolutions: tuple[tuple[Count, Count, Count], ...] = CONVOLUTIONS

    smallest_image = 21

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        conv = functools.partial(self.layers().conv_norm, mask=mask, train=train, padding=0)
        for channels, size, stride in self.convolutions:
            images = conv(images, scale(channels, self.width_multiplier), size, stride=stride)
            images = jax.nn.relu(as_level(self, images))
        return global_mean(images, self.target)
