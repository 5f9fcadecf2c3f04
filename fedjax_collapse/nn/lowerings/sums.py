"""Sums over rows and pixels, computed on CPUs as products with ones.

On CPUs XLA fuses a sum with its operand and then adds one number at a time, strided over channels: a step of a small
network with BatchNorm took two to three times as long (docs/performance.md). A product is not fused. Each client has
its own vector of ones, so its sum has the same bits for any number of clients.
"""

import functools

import jax
import jax.numpy as jnp

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import largest_divisor

_ADDED = 8  # most rows of an image that are added before a product; with 32, mobilenet_v2 takes 1.2 times as long


def sum_rows(values: jax.Array, target: Target) -> jax.Array:
    """Returns the sum over all axes but the last, [..., channels] -> [channels]."""
    if not target.is_cpu:
        return jnp.sum(values, axis=tuple(range(values.ndim - 1)))
    return _sum(values.reshape(1, -1, values.shape[-1]))[0]


def sum_computed(values: jax.Array, target: Target) -> jax.Array:
    """Returns ``sum_rows`` of computed values [batch, height, ..., channels].

    On a CPU up to eight rows of an image, as many as divide the height, are added in at least float32 where they are
    computed, before anything is written: XLA unrolls a sum of so few terms, and adds it for many channels at once.
    """
    return sum_rows(_added(values) if target.is_cpu else values, target)


def sum_pixels(values: jax.Array, target: Target) -> jax.Array:
    """Returns the sum over the pixels of computed values, [batch, ..., channels] -> [batch, channels]."""
    if not target.is_cpu:
        return jnp.sum(values, axis=tuple(range(1, values.ndim - 1)))
    return _sum(_added(values).reshape(len(values), -1, values.shape[-1]))


def _added(values):
    """[batch, height, ..., channels] -> [batch, fewer rows, ..., channels]; rows without pixels stay as they are."""
    if values.ndim < 3:
        return values
    parts = values.reshape(len(values), largest_divisor(values.shape[1], _ADDED), -1, *values.shape[2:])
    return jnp.sum(at_least_float32(parts), axis=1)


def at_least_float32(inputs: jax.Array) -> jax.Array:
    """Casts inputs to float32 if their dtype has fewer bits."""
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def mean_pixels(images: jax.Array, target: Target) -> jax.Array:
    """Returns the mean over the pixels, [batch, height, width, channels] -> [batch, channels]."""
    if not target.is_cpu:
        return jnp.mean(images, axis=(1, 2))
    batch, height, width, channels = images.shape
    return _sum(images.reshape(batch, height * width, channels)) / (height * width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def add_bias(outputs: jax.Array, bias: jax.Array, target: Target) -> jax.Array:
    """Returns ``outputs + bias`` [..., channels]; the gradient of the bias uses ``sum_rows``."""
    return outputs + bias


add_bias.defvjp(
    lambda outputs, bias, target: (outputs + bias, None),
    lambda target, _, gradient: (gradient, sum_rows(gradient, target)),
)


@jax.custom_vjp
def _sum(values):
    """[batch, rows, channels] -> [batch, channels]."""
    return _product(values)


_sum.defvjp(
    lambda values: (_sum(values), jnp.zeros((1, values.shape[1], 1), values.dtype)),
    lambda zeros, gradient: (gradient[:, None] + zeros,),
)


@jax.custom_batching.custom_vmap
def _product(values):
    """[..., rows, channels] -> [..., channels]; all leading axes are batches of both factors."""
    accumulator = jnp.promote_types(values.dtype, jnp.float32)
    ones = jnp.ones((*values.shape[:-2], 1, values.shape[-2]), values.dtype)
    product = jnp.matmul(ones, values, precision="highest", preferred_element_type=accumulator)
    return product[..., 0, :].astype(values.dtype)


@_product.def_vmap
def _of_each_client(axis_size, in_batched, values):
    return _product(values), True
