"""The arithmetic of BatchNorm without padding rows, and of GroupNorm, with custom gradients."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.sums import at_least_float32, sum_computed, sum_pixels, sum_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def normalize_batch(
    inputs: jax.Array, mask: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, target: Target
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns normalised inputs [batch, ..., channels], and mean and biased variance [channels] of the true rows.

    The moments are at least float32; the normalised inputs have the dtype of the inputs. The gradient takes two sums
    over the batch, fewer passes than automatic differentiation.
    """
    values, rows, count = _prepare(inputs, mask)
    mean = sum_computed(jnp.where(rows, values, 0), target) / count
    variance = sum_computed(jnp.where(rows, values - mean, 0) ** 2, target) / count
    outputs = (values - mean) * (lax.rsqrt(variance + epsilon) * scale) + bias
    return outputs.astype(inputs.dtype), mean, variance


def _forward(inputs, mask, scale, bias, epsilon, target):
    outputs, mean, variance = normalize_batch(inputs, mask, scale, bias, epsilon, target)
    return (outputs, mean, variance), (inputs, mask, scale, mean, variance)


def _backward(epsilon, target, residuals, gradients):
    inputs, mask, scale, mean, variance = residuals
    values, rows, count = _prepare(inputs, mask)
    gradient, mean_gradient, variance_gradient = gradients
    gradient = gradient.astype(values.dtype)
    centred = values - mean
    inverse = lax.rsqrt(variance + epsilon)
    total = sum_computed(gradient, target)
    correlation = sum_computed(gradient * centred, target)
    through_mean = (mean_gradient - scale * inverse * total) / count
    through_variance = (2 * variance_gradient - scale * inverse**3 * correlation) / count
    input_gradient = scale * inverse * gradient + jnp.where(rows, through_mean + through_variance * centred, 0)
    return input_gradient.astype(inputs.dtype), None, inverse * correlation, total


normalize_batch.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def normalize_fused(
    inputs: jax.Array, mask: jax.Array, scale: jax.Array, bias: jax.Array, shift: jax.Array, epsilon: float, relu: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As ``normalize_batch``, with ReLU if ``relu``: two passes over the inputs forward, and two in the gradient.

    One pass sums both moments of the values minus ``shift`` [channels], such as the running mean. The variance is exact
    to ``1 + (mean - shift)^2 / variance`` roundings, instead of one rounding in two passes. The gradient stores only
    the inputs, neither outputs nor their signs. It is for devices bound by memory (``docs/accelerators.md``).
    """
    values, count = at_least_float32(inputs) - shift, count_values(inputs, mask)
    first, second = _sum_of_rows(values, mask) / count, _sum_of_rows(values**2, mask) / count
    mean, variance = first + shift, jnp.maximum(second - first**2, 0)
    outputs = (at_least_float32(inputs) - mean) * (lax.rsqrt(variance + epsilon) * scale) + bias
    return (jax.nn.relu(outputs) if relu else outputs).astype(inputs.dtype), mean, variance


def _forward_fused(inputs, mask, scale, bias, shift, epsilon, relu):
    outputs, mean, variance = normalize_fused(inputs, mask, scale, bias, shift, epsilon, relu)
    return (outputs, mean, variance), (inputs, mask, scale, bias, mean, variance)


def _backward_fused(epsilon, relu, residuals, gradients):
    inputs, mask, scale, bias, mean, variance = residuals
    values, rows, count = _prepare(lax.optimization_barrier(inputs), mask)  # else XLA stores the signs of the outputs
    gradient, mean_gradient, variance_gradient = gradients
    gradient, centred, inverse = gradient.astype(values.dtype), values - mean, lax.rsqrt(variance + epsilon)
    if relu:
        gradient = jnp.where(centred * (inverse * scale) + bias > 0, gradient, 0)
    axes = tuple(range(inputs.ndim - 1))
    total, correlation = jnp.sum(gradient, axes), jnp.sum(gradient * centred, axes)
    through_mean = (mean_gradient - scale * inverse * total) / count
    through_variance = (2 * variance_gradient - scale * inverse**3 * correlation) / count
    input_gradient = scale * inverse * gradient + (through_mean + through_variance * centred)
    return jnp.where(rows, input_gradient, 0).astype(inputs.dtype), None, inverse * correlation, total, None


normalize_fused.defvjp(_forward_fused, _backward_fused)


def _sum_of_rows(values, mask):
    """Returns the sum over all axes but the last. The mask applies to sums of rows: XLA fuses no larger mask."""
    of_each = values.reshape(len(values), -1, values.shape[-1]).sum(1)
    return jnp.where(mask[:, None], of_each, 0).sum(0)


def count_values(inputs: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the number of values per channel in the rows of ``mask``, counting at least one row."""
    return jnp.maximum(jnp.sum(mask), 1) * math.prod(inputs.shape[1:-1])


def _prepare(inputs, mask):
    values = at_least_float32(inputs)
    rows = mask.reshape(-1, *[1] * (inputs.ndim - 1))
    return values, rows, count_values(inputs, mask).astype(values.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def normalize_groups(
    inputs: jax.Array, scale: jax.Array, bias: jax.Array, groups: int, epsilon: float, target: Target
) -> jax.Array:
    """Returns inputs [batch, ..., channels] normalised over all pixels and a group's channels of each example.

    The moments are at least float32; the outputs have the dtype of the inputs. Sums are over the pixels first: those
    over a group's channels and over the batch are then small, and the gradient takes two, as that of BatchNorm.
    """
    return _forward_groups(inputs, scale, bias, groups, epsilon, target)[0]


def _forward_groups(inputs, scale, bias, groups, epsilon, target):
    values = at_least_float32(inputs)
    mean = _of_groups(sum_pixels(values, target), inputs.shape, groups)
    variance = _of_groups(sum_pixels((values - mean) ** 2, target), inputs.shape, groups)
    inverse = lax.rsqrt(variance + epsilon)
    outputs = (values - mean) * (inverse * scale) + bias
    return outputs.astype(inputs.dtype), (inputs, scale, mean, inverse)


def _backward_groups(groups, epsilon, target, residuals, gradient):
    inputs, scale, mean, inverse = residuals
    gradient = at_least_float32(gradient)
    normalized = (at_least_float32(inputs) - mean) * inverse
    total, correlation = (sum_pixels(values, target) for values in (gradient, gradient * normalized))
    of_mean, of_variance = (_of_groups(scale * sums, inputs.shape, groups) for sums in (total, correlation))
    input_gradient = inverse * (scale * gradient - of_mean - normalized * of_variance)
    return input_gradient.astype(inputs.dtype), sum_rows(correlation, target), sum_rows(total, target)


normalize_groups.defvjp(_forward_groups, _backward_groups)


def _of_groups(sums, shape, groups):
    """Returns the means over pixels and a group's channels, [batch, channels] -> [batch, 1, ..., channels]."""
    batch, *pixels, channels = shape
    means = sums.reshape(batch, groups, -1).mean(-1) / math.prod(pixels)
    return jnp.repeat(means, channels // groups, axis=1).reshape(batch, *(1 for _ in pixels), channels)
