"""Layers with PyTorch's initialisation, padding and BatchNorm, which ignore padding rows."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.nn.convolution import convolve


def torch_uniform(fan_in: int):
    """PyTorch's default initialiser of weights and biases: uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


class Dense(nn.Module):
    """``inputs @ kernel + bias`` over the last axis, initialised as PyTorch's Linear."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        initialize = torch_uniform(inputs.shape[-1])
        outputs = inputs @ self.param("kernel", initialize, (inputs.shape[-1], self.features))
        return outputs + self.param("bias", initialize, (self.features,)) if self.use_bias else outputs


class Conv(nn.Module):
    """2-D convolution of NHWC images with zero padding on both sides, initialised as PyTorch's Conv2d."""

    features: int
    kernel_size: int = 3
    stride: int = 1
    padding: int | None = None  # None: (kernel_size - 1) // 2
    use_bias: bool = True
    lowering: str = "auto"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        size, channels = self.kernel_size, images.shape[-1]
        initialize = torch_uniform(size * size * channels)
        kernel = self.param("kernel", initialize, (size, size, channels, self.features))
        padding = (size - 1) // 2 if self.padding is None else self.padding
        outputs = convolve(images, kernel, self.stride, padding, self.lowering)
        return outputs + self.param("bias", initialize, (self.features,)) if self.use_bias else outputs


def max_pool(images: jax.Array, size: int = 2) -> jax.Array:
    """Maximum over non-overlapping windows; rows and columns that do not fill a window are dropped, as in PyTorch."""
    batch, height, width, channels = images.shape
    height, width = height // size, width // size
    images = images[:, : height * size, : width * size]
    return images.reshape(batch, height, size, width, size, channels).max(axis=(2, 4))


class BatchNorm(nn.Module):
    """BatchNorm over all axes but the last, with PyTorch's semantics and without padding rows.

    Training normalises with the biased variance of the true rows; the running variance moves towards the **unbiased**
    one (Flax's own moves towards the biased one). A batch of one value per channel leaves it at 0 for that step.
    """

    momentum: float = 0.1  # PyTorch's: weight of the new value
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        channels = inputs.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        if train:
            mean, variance, count = _masked_moments(inputs, mask)
            unbiased = variance * (count / jnp.maximum(count - 1, 1))
            running_mean.value += self.momentum * (mean - running_mean.value)
            running_var.value += self.momentum * (unbiased - running_var.value)
        else:
            mean, variance = running_mean.value, running_var.value
        return (inputs - mean) * (lax.rsqrt(variance + self.epsilon) * scale) + bias


def _masked_moments(inputs, mask):
    """Mean and biased variance per channel over the true rows, and the number of values they are taken over."""
    mask = mask.reshape(-1, *[1] * (inputs.ndim - 1))
    axes = tuple(range(inputs.ndim - 1))
    count = jnp.maximum(jnp.sum(mask), 1).astype(inputs.dtype) * math.prod(inputs.shape[1:-1])
    mean = jnp.sum(jnp.where(mask, inputs, 0), axes) / count
    variance = jnp.sum(jnp.where(mask, inputs - mean, 0) ** 2, axes) / count
    return mean, variance, count
