"""Layers with PyTorch's initialisation, padding and normalisation. They ignore padding rows.

``dtype`` is the dtype in which a layer computes its product: ``None`` (the dtype of its inputs), ``"float32"`` or
``"bfloat16"``, to which inputs and parameters are cast. Parameters and statistics of normalisation are always float32.
"""

import math
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.records import PyTree, UserError, check_choice
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.convolution import Convolution, TimedLowerings, convolve
from fedjax_collapse.nn.lowerings.pooling import max_pool as max_pool
from fedjax_collapse.nn.lowerings.products import multiply
from fedjax_collapse.nn.lowerings.sums import add_bias, at_least_float32
from fedjax_collapse.nn.normalization import count_values, normalize_batch, normalize_fused, normalize_groups

DTYPES = (None, "float32", "bfloat16")
NORMS = ("batch", "group", "none")
DType = Annotated[str, DTYPES[1:]] | None
Norm = Annotated[str, NORMS]
Init = Callable[[int, int], jax.nn.initializers.Initializer]  # arguments: fan_in and fan_out of a weight


def torch_uniform(fan_in: int, fan_out: int = 0) -> jax.nn.initializers.Initializer:
    """PyTorch's default initialiser of weights and biases: uniform in +-1/sqrt(fan_in)."""
    del fan_out
    bound = 1 / math.sqrt(fan_in)
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def no_bias(fan_in: int, fan_out: int = 0) -> jax.nn.initializers.Initializer:
    """Keras' default initialiser of biases: 0."""
    return nn.initializers.zeros


def kaiming_normal(mode: str = "fan_in") -> Init:
    """PyTorch's ``kaiming_normal_``: normal with variance 2 / fan_in or 2 / fan_out, for weights."""

    def init(fan_in, fan_out):
        scale = math.sqrt(2 / {"fan_in": fan_in, "fan_out": fan_out}[mode])
        return lambda key, shape, dtype=float: scale * jax.random.normal(key, shape, dtype)

    return init


class Dense(nn.Module):
    """``inputs @ kernel + bias`` over the last axis, initialised as PyTorch's Linear.

    ``kernel_init`` does not affect the bias. ``part``: the name of a part of the network (``masks.py``), if any.
    ``target``: the device whose fast gradients are used, if given (``lowerings/products.py``, ``lowerings/sums.py``).
    """

    features: int
    use_bias: bool = True
    kernel_init: Init = torch_uniform
    bias_init: Init = torch_uniform
    dtype: str | None = None
    part: str | None = None
    target: Target | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        channels = inputs.shape[-1]
        kernel = self.param("kernel", self.kernel_init(channels, self.features), (channels, self.features))
        outputs = self.multiply(*cast((inputs, kernel), self.dtype))
        return _plus_bias(self, outputs, channels, self.bias_init) if self.use_bias else outputs

    @nn.nowrap
    def multiply(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the product with a kernel [in, any number of features]."""
        return multiply(inputs, kernel, self.target)


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its kernel's size, as one product of images [batch, height, width, in].

    Returns patches [batch, height / size * width / size, features], row by row. The kernel is as in ``Conv``.
    ``target``: as in ``Dense``.
    """

    features: int
    size: int
    dtype: str | None = None
    target: Target | None = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        size, (height, width, channels) = self.size, images.shape[1:]
        if height % size or width % size:
            raise UserError(f"images of {height}x{width} pixels: expected multiples of the patches' {size} pixels")
        fan_in = size * size * channels
        kernel = self.param("kernel", torch_uniform(fan_in), (size, size, channels, self.features))
        return _plus_bias(self, self.multiply(*cast((images, kernel), self.dtype)), fan_in)

    @nn.nowrap
    def multiply(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the product with a kernel [size, size, in, any number of features]."""
        size, (batch, height, width, channels) = self.size, images.shape
        patches = images.reshape(batch, height // size, size, width // size, size, channels).swapaxes(2, 3)
        patches = patches.reshape(batch, -1, size * size * channels)
        return multiply(patches, kernel.reshape(-1, kernel.shape[-1]), self.target)


class Conv(nn.Module):
    """2-D convolution of NHWC images with zero padding on both sides, initialised as PyTorch's Conv2d.

    The kernel is [kernel_size, kernel_size, channels / groups, features]. ``kernel_init`` does not affect the bias.
    """

    features: int
    kernel_size: int = 3
    stride: int = 1
    padding: int | None = None  # None: (kernel_size - 1) // 2
    groups: int = 1
    use_bias: bool = True
    lowering: str | TimedLowerings = "auto"
    kernel_init: Init = torch_uniform
    dtype: str | None = None
    target: Target = Target()

    @property
    def convolution(self) -> Convolution:
        """The options of the convolution."""
        padding = (self.kernel_size - 1) // 2 if self.padding is None else self.padding
        return Convolution(self.stride, padding, self.groups, self.lowering, self.target)

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        size, channels = self.kernel_size, images.shape[-1] // self.groups
        fan_in, fan_out = size * size * channels, size * size * self.features // self.groups
        kernel = self.param("kernel", self.kernel_init(fan_in, fan_out), (size, size, channels, self.features))
        outputs = self.multiply(*cast((images, kernel), self.dtype))
        return _plus_bias(self, outputs, fan_in) if self.use_bias else outputs

    @nn.nowrap
    def multiply(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the convolution with a kernel [kernel_size, kernel_size, in, any number of features]."""
        return convolve(images, kernel, self.convolution)


def normalize(kind: str, inputs: jax.Array, mask: jax.Array, train: bool, target: Target, **options) -> jax.Array:
    """Normalises inputs by ``"batch"``, ``"group"`` or ``"none"``; for use inside a compact method."""
    check_choice("norm", kind, NORMS)
    if kind == "batch":
        return BatchNorm(**options, target=target)(inputs, mask, train)
    return GroupNorm(target=target)(inputs) if kind == "group" else inputs


class BatchNorm(nn.Module):
    """BatchNorm over all axes but the last, with PyTorch's semantics and without padding rows.

    Training normalises with the biased variance of the true rows; the running variance is updated with the **unbiased**
    variance (in Flax with the biased one). A batch of one value per channel contributes a variance of 0.

    ``relu``: whether ReLU follows. ``fused``: whether training uses ``normalize_fused``, with fewer passes on a GPU.
    """

    momentum: float = 0.1  # PyTorch's: weight of the new value
    epsilon: float = 1e-5
    target: Target = Target()
    relu: bool = False
    fused: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        channels = inputs.shape[-1]
        scale, bias = _scale_and_bias(self, inputs)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        if not train:
            factor = lax.rsqrt(running_var.value + self.epsilon) * scale
            outputs = ((inputs - running_mean.value) * factor + bias).astype(inputs.dtype)
            return jax.nn.relu(outputs) if self.relu else outputs
        if self.fused:
            shift = running_mean.value
            outputs, mean, variance = normalize_fused(inputs, mask, scale, bias, shift, self.epsilon, self.relu)
        else:
            outputs, mean, variance = normalize_batch(inputs, mask, scale, bias, self.epsilon, self.target)
        count = count_values(inputs, mask).astype(variance.dtype)
        unbiased = variance * (count / jnp.maximum(count - 1, 1))
        running_mean.value += self.momentum * (mean - running_mean.value)
        running_var.value += self.momentum * (unbiased - running_var.value)
        return jax.nn.relu(outputs) if self.relu and not self.fused else outputs


class GroupNorm(nn.Module):
    """GroupNorm of each example, as in PyTorch: over all pixels and ``channels / groups`` channels."""

    groups: int = 2
    epsilon: float = 1e-5
    target: Target = Target()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        channels = inputs.shape[-1]
        if channels % self.groups:
            raise UserError(f"GroupNorm of {channels} channels: expected a divisor of them, not {self.groups} groups")
        scale, bias = _scale_and_bias(self, inputs)
        return normalize_groups(inputs, scale, bias, self.groups, self.epsilon, self.target)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, as in PyTorch."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        scale, bias = _scale_and_bias(self, inputs)
        values = at_least_float32(inputs)
        centred = values - values.mean(-1, keepdims=True)
        normalized = centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + self.epsilon)
        return (normalized * scale + bias).astype(inputs.dtype)


def cast(arrays: PyTree, dtype: str | None) -> PyTree:
    """Casts arrays to the dtype in which a layer computes."""
    check_choice("dtype", dtype, DTYPES)
    return arrays if dtype is None else jax.tree.map(lambda array: array.astype(dtype), arrays)


def _scale_and_bias(layer, inputs):
    inits = dict(scale=nn.initializers.ones, bias=nn.initializers.zeros)
    return (layer.param(name, init, inputs.shape[-1:]) for name, init in inits.items())


def _plus_bias(layer, outputs, fan_in, init=torch_uniform):
    bias = cast(layer.param("bias", init(fan_in, layer.features), (layer.features,)), layer.dtype)
    return outputs + bias if layer.target is None else add_bias(outputs, bias, layer.target)
