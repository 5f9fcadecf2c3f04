"""Residual networks of basic or bottleneck blocks, for small images; ``resnet18.py`` and others configure them."""

import functools
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import UserError
from fedjax_collapse.nn.layers import Init, kaiming_normal, torch_uniform
from fedjax_collapse.nn.network import ConvNetwork, LayerOptions, as_level, global_mean, rematerialized, scale
from fedjax_collapse.schema.options import Count, Positive

INITS = {
    "uniform": torch_uniform,
    "kaiming_fan_in": kaiming_normal("fan_in"),
    "kaiming_fan_out": kaiming_normal("fan_out"),
}
KernelInit = Annotated[str, tuple(INITS)]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    channels: int
    stride: int
    layers: LayerOptions
    padded_shortcut: bool
    ends_stage: bool

    expansion = 1

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        conv = functools.partial(self.layers.conv_norm, mask=mask, train=train)
        outputs = self.branch(conv, images) + self.shortcut(conv, images)
        return jax.nn.relu(as_level(self, outputs) if self.ends_stage else outputs)

    def branch(self, conv: Callable[..., jax.Array], images: jax.Array) -> jax.Array:
        """Returns the outputs of the convolutions."""
        return conv(conv(images, self.channels, stride=self.stride, relu=True), self.channels)

    def shortcut(self, conv: Callable[..., jax.Array], images: jax.Array) -> jax.Array:
        """Returns images, or if the shape changes a 1x1 convolution, or every other pixel with channels of zeros."""
        features = self.expansion * self.channels
        if self.stride == 1 and images.shape[-1] == features:
            return images
        if not self.padded_shortcut:
            return conv(images, features, 1, stride=self.stride)
        missing = features - images.shape[-1]
        ends = (missing // 2, missing - missing // 2)
        return jnp.pad(images[:, :: self.stride, :: self.stride], (*[(0, 0)] * 3, ends))


class Bottleneck(BasicBlock):
    """Convolutions 1x1, 3x3 with the stride, and 1x1 to four times the channels, and a shortcut."""

    expansion = 4

    def branch(self, conv: Callable[..., jax.Array], images: jax.Array) -> jax.Array:
        outputs = conv(images, self.channels, 1, relu=True)
        outputs = conv(outputs, self.channels, stride=self.stride, relu=True)
        return conv(outputs, self.expansion * self.channels, 1)


class ResidualNetwork(ConvNetwork):
    """A convolution, stages of blocks, and the mean over the image.

    Attributes:
        blocks: blocks of each stage; every stage doubles the channels.
        strides: stride of the first block of each stage.
        stem_size: height and width of the first kernel; no max-pool follows.
        stem_stride: stride of the first convolution.
        kernel_init: initialiser of the convolutions, ``uniform`` as in PyTorch; ``kaiming_fan_in`` is also the
            classifier's.
        width_multiplier: factor of the numbers of channels.
        remat: whether the gradient recomputes activations: less memory, more time.
    """

    num_classes: int
    blocks: tuple[Count, ...] = (2, 2, 2, 2)
    strides: tuple[Count, ...] = (1, 2, 2, 2)
    stem_size: Count = 3
    stem_stride: Count = 1
    kernel_init: KernelInit = "uniform"
    width_multiplier: Positive = 1.0
    remat: bool = False

    block = BasicBlock
    width = 64  # channels of the first stage
    padded_shortcut = False

    @property
    def head_init(self) -> Init:
        return INITS["kaiming_fan_in" if self.kernel_init == "kaiming_fan_in" else "uniform"]

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        if len(self.blocks) != len(self.strides):
            raise UserError(f"blocks {self.blocks} and strides {self.strides}: expected a number a stage in both")
        layers, block = self.layers(INITS[self.kernel_init]), rematerialized(self.block, self.remat)
        width = scale(self.width, self.width_multiplier)
        stem = dict(size=self.stem_size, stride=self.stem_stride)
        images = as_level(self, layers.conv_norm(images, width, **stem, mask=mask, train=train))
        images = jax.nn.relu(images)
        for stage, (blocks, stride) in enumerate(zip(self.blocks, self.strides, strict=True)):
            for index in range(blocks):
                options = (width * 2**stage, 1 if index else stride, layers, self.padded_shortcut)
                images = block(*options, index == blocks - 1, name=f"stage_{stage}_block_{index}")(images, mask, train)
        return global_mean(images, self.target)
