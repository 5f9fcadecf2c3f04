"""MobileNetV2 for small images, as FedDecorr trains it on CIFAR and TinyImageNet."""

import functools

import flax.linen as nn
import jax

from fedjax_collapse.nn.network import ConvNetwork, LayerOptions, as_level, global_mean, rematerialized, scale
from fedjax_collapse.schema.options import Count, Positive

STAGES = (  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(ConvNetwork):
    """A 3x3 convolution, inverted residual blocks, a 1x1 convolution and the mean over the image: 1,280 features.

    Sandler et al. (CVPR 2018), by FedDecorr's released code, which differs: strides for images of 32x32, ReLU instead
    of ReLU6, a 1x1 convolution as shortcut where the number of channels changes at stride 1.

    Attributes:
        width_multiplier: factor of the numbers of channels.
        stages: expansion, channels, blocks, and stride of the first block of each stage.
        remat: whether the gradient recomputes activations: less memory, more time.
    """

    num_classes: int
    width_multiplier: Positive = 1.0
    stages: tuple[tuple[Count, Count, Count, Count], ...] = STAGES
    remat: bool = False

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        layers, block = self.layers(), rematerialized(InvertedResidual, self.remat)
        conv = functools.partial(layers.conv_norm, mask=mask, train=train)
        images = conv(images, scale(32, self.width_multiplier), relu=True)
        for stage, (expansion, channels, blocks, stride) in enumerate(self.stages):
            for index in range(blocks):
                options = (scale(channels, self.width_multiplier), expansion, 1 if index else stride)
                images = block(*options, layers, name=f"stage_{stage}_block_{index}")(images, mask, train)
            images = as_level(self, images)
        images = as_level(self, conv(images, scale(1280, self.width_multiplier), 1))
        return global_mean(jax.nn.relu(images), self.target)


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel by a 3x3 one, project by another 1x1; shortcut at stride 1."""

    features: int
    expansion: int
    stride: int
    layers: LayerOptions

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        conv = functools.partial(self.layers.conv_norm, mask=mask, train=train)
        hidden = self.expansion * images.shape[-1]
        outputs = conv(images, hidden, 1, relu=True)
        outputs = conv(outputs, hidden, stride=self.stride, groups=hidden, relu=True)
        outputs = conv(outputs, self.features, 1)
        if self.stride != 1:
            return outputs
        return outputs + (images if images.shape[-1] == self.features else conv(images, self.features, 1))
