"""EfficientNet-B0 with a hidden layer before the classifier, as FedMR trains it on ISIC2019."""

import functools

import flax.linen as nn
import jax

from fedjax_collapse.nn.layers import Dense, kaiming_normal
from fedjax_collapse.nn.network import ConvNetwork, LayerOptions, as_level, dropout, global_mean, rematerialized, scale
from fedjax_collapse.schema.options import Count, Fraction, Positive

STAGES = (  # expansion, size, stride of the first block, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_FAN_OUT = kaiming_normal("fan_out")


class EfficientNetB0(ConvNetwork):
    """A 3x3 convolution, inverted residual blocks with squeeze-and-excitation, a 1x1 convolution, mean, dense 640.

    Tan & Le (ICML 2019), torchvision's definition and initialisation. FedMR's released code lacks the network. The
    dense layer follows from its sizes (4.875M parameters and buffers, prototypes of 640). Its ReLU, and PyTorch's
    default initialisation of dense layer and classifier, are our choice.

    Attributes:
        width_multiplier: factor of the numbers of channels.
        stages: expansion, size, stride of the first block, channels, and blocks of each stage.
        dropout: rate of dropout before the dense layer.
        drop_path: rate of leaving out a whole block, which rises linearly from 0 at the first.
        remat: whether the gradient recomputes activations: less memory, more time.
    """

    num_classes: int
    width_multiplier: Positive = 1.0
    stages: tuple[tuple[Count, Count, Count, Count, Count], ...] = STAGES
    dropout: Fraction = 0.2
    drop_path: Fraction = 0.2
    remat: bool = False

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        layers, block = self.layers(_FAN_OUT), rematerialized(MBConv, self.remat)
        conv = functools.partial(layers.conv_norm, mask=mask, train=train)
        images = nn.silu(conv(images, scale(32, self.width_multiplier), stride=2))
        num_blocks, done = sum(blocks for *_, blocks in self.stages), 0
        for stage, (expansion, size, stride, channels, blocks) in enumerate(self.stages):
            for index in range(blocks):
                options = (scale(channels, self.width_multiplier), expansion, size, 1 if index else stride)
                options = (*options, self.drop_path * done / num_blocks, layers)
                images = block(*options, name=f"stage_{stage}_block_{index}")(images, mask, train)
                done += 1
            images = as_level(self, images)
        images = nn.silu(conv(images, scale(1280, self.width_multiplier), 1))
        features = dropout(self, global_mean(images, self.target), self.dropout, train)
        dense = Dense(scale(640, self.width_multiplier), dtype=self.dtype, target=self.target)
        return jax.nn.relu(as_level(self, dense(features)))


class MBConv(nn.Module):
    """Expand by a 1x1 convolution, filter and weight each channel, project by another 1x1; shortcut if shapes match."""

    features: int
    expansion: int
    size: int
    stride: int
    drop_path: float
    layers: LayerOptions

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        conv = functools.partial(self.layers.conv_norm, mask=mask, train=train)
        channels = images.shape[-1]
        hidden = self.expansion * channels
        outputs = nn.silu(conv(images, hidden, 1)) if self.expansion != 1 else images
        # PyTorch's fan_out counts the outputs of all groups
        init = functools.partial(_fan_out_of, self.size**2 * hidden)
        outputs = nn.silu(conv(outputs, hidden, self.size, stride=self.stride, groups=hidden, kernel_init=init))
        outputs = outputs * _excitation(outputs, max(1, channels // 4), self.layers.target)
        outputs = conv(outputs, self.features, 1)
        if self.stride != 1 or channels != self.features:
            return outputs
        return images + dropout(self, outputs, self.drop_path, train, whole_examples=True)


def _fan_out_of(fan_out, fan_in, _):
    return _FAN_OUT(fan_in, fan_out)


def _excitation(images, squeezed, target):
    """Returns a weight in 0..1 for each channel, from the channels' means: [batch, 1, 1, channels]."""
    init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
    dense = functools.partial(nn.Dense, dtype=images.dtype, param_dtype=float, kernel_init=init)
    weights = nn.silu(dense(squeezed)(global_mean(images, target)))
    return nn.sigmoid(dense(images.shape[-1])(weights))[:, None, None]
