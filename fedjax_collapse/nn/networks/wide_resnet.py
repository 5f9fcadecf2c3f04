"""Wide residual networks: WRN-28-10, as FedMR trains it on CIFAR100."""

import functools

import flax.linen as nn
import jax

from fedjax_collapse.core.records import UserError
from fedjax_collapse.nn.network import ConvNetwork, LayerOptions, as_level, dropout, global_mean, rematerialized, scale
from fedjax_collapse.schema.options import Count, Fraction, Positive


class WideResNet(ConvNetwork):
    """A convolution, three stages of pre-activation blocks, BatchNorm, ReLU, mean over the image: 640 features.

    Zagoruyko & Komodakis (BMVC 2016), by FedMR's released code: convolutions have biases, the second one of a block
    has the stride, and the last BatchNorm has momentum 0.9 (the weight of the new value).

    Attributes:
        depth: number of layers, 6 n + 4 for n blocks in each stage.
        width_multiplier: factor of the channels 16, 32 and 64 of the stages.
        dropout: rate of dropout between the convolutions of a block.
        remat: whether the gradient recomputes activations: less memory, more time.
    """

    num_classes: int
    depth: Count = 28
    width_multiplier: Positive = 10.0
    dropout: Fraction = 0.3
    remat: bool = False

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        if self.depth < 10 or self.depth % 6 != 4:
            raise UserError(f"WideResNet: depth {self.depth}, expected 6 n + 4, such as 10, 16, 22 or 28")
        layers, block = self.layers(), rematerialized(PreActivation, self.remat)
        images = layers.conv(images, 16)
        for stage in range(3):
            for index in range(self.depth // 6):
                stride = 2 if stage and not index else 1
                options = (scale(16 * 2**stage, self.width_multiplier), stride, self.dropout, layers)
                images = block(*options, name=f"stage_{stage}_block_{index}")(images, mask, train)
            images = as_level(self, images)
        return global_mean(jax.nn.relu(layers.normalize(images, mask, train, momentum=0.9)), self.target)


class PreActivation(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice, with dropout in between, and a shortcut from the block's input."""

    channels: int
    stride: int
    dropout: float
    layers: LayerOptions

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        normalize = functools.partial(self.layers.normalize, mask=mask, train=train)
        outputs = self.layers.conv(jax.nn.relu(normalize(images)), self.channels)
        outputs = dropout(self, outputs, self.dropout, train)
        outputs = self.layers.conv(jax.nn.relu(normalize(outputs)), self.channels, stride=self.stride)
        if self.stride != 1 or images.shape[-1] != self.channels:
            images = self.layers.conv(images, self.channels, 1, stride=self.stride)
        return outputs + images
