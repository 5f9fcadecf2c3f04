"""Layers that stay fast and exact when every client has its own weights.

``jax.vmap`` over a convolution's weights makes XLA emit a grouped convolution, and a convolution inside a loop body
runs on a slow path: 5 to 1000 times too slow on a CPU (``docs/performance.md``). Here a convolution is a matrix
product of image patches, with its own gradient, which batches over clients as a batched matrix product.
Initialisation, strides, padding and BatchNorm follow PyTorch.
"""

import functools
import math
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.records import UserError

Lowering = Literal["auto", "patches", "xla"]


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
    lowering: Lowering = "auto"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        size, channels = self.kernel_size, images.shape[-1]
        initialize = torch_uniform(size * size * channels)
        kernel = self.param("kernel", initialize, (size, size, channels, self.features))
        padding = (size - 1) // 2 if self.padding is None else self.padding
        outputs = convolve(images, kernel, self.stride, padding, self.lowering)
        return outputs + self.param("bias", initialize, (self.features,)) if self.use_bias else outputs


def convolve(images: jax.Array, kernel: jax.Array, stride: int, padding: int, lowering: Lowering) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in, out] -> [batch, height', width', out].

    ``patches`` multiplies image patches with the kernel as a matrix; ``xla`` leaves it to ``lax.conv_general_dilated``;
    ``auto`` is ``patches``.

    Raises:
        UserError: unknown lowering.
    """
    if lowering not in get_args(Lowering):
        raise UserError(f"lowering {lowering!r}: expected one of {', '.join(get_args(Lowering))}")
    if lowering == "xla":
        return lax.conv_general_dilated(
            images, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    return _convolve_patches(images, kernel, stride, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve_patches(images, kernel, stride, padding):
    size, _, _, features = kernel.shape
    patches = _patches(images, size, stride, (padding, padding))
    return (patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(-1, features)).reshape(*patches.shape[:3], features)


def _convolve_forward(images, kernel, stride, padding):
    return _convolve_patches(images, kernel, stride, padding), (images, kernel)


def _convolve_backward(stride, padding, residuals, gradient):
    """Weight gradient from recomputed patches; input gradient as a convolution with the flipped kernel."""
    images, kernel = residuals
    size, _, channels, features = kernel.shape
    patches = _patches(images, size, stride, (padding, padding))
    kernel_gradient = patches.reshape(-1, patches.shape[-1]).T @ gradient.reshape(-1, features)
    spread = lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *[(0, 0, stride - 1)] * 2, (0, 0, 0)])
    flipped = kernel[::-1, ::-1].swapaxes(2, 3).reshape(-1, channels)
    before = size - 1 - padding
    after = [extent - spread.shape[axis] + padding for axis, extent in ((1, images.shape[1]), (2, images.shape[2]))]
    spread = lax.pad(spread, jnp.zeros((), gradient.dtype), [(0, 0, 0), *[(before, a, 0) for a in after], (0, 0, 0)])
    patches = _patches(spread, size, 1, (0, 0))
    images_gradient = (patches.reshape(-1, patches.shape[-1]) @ flipped).reshape(images.shape)
    return images_gradient, kernel_gradient.reshape(kernel.shape)


_convolve_patches.defvjp(_convolve_forward, _convolve_backward)


def _patches(images, size, stride, padding):
    """[batch, height', width', size * size * channels]: every window that the kernel visits, channels last."""
    images = jnp.pad(images, ((0, 0), padding, padding, (0, 0)))
    height, width = ((extent - size) // stride + 1 for extent in images.shape[1:3])
    windows = [
        images[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        for i in range(size)
        for j in range(size)
    ]
    return jnp.concatenate(windows, axis=-1)


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
