"""The arithmetic of BatchNorm without padding rows, with a custom gradient."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.sums import sum_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def normalize_batch(
    inputs: jax.Array, mask: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, target: Target
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns normalised inputs [batch, ..., channels], and mean and biased variance [channels] of the true rows.

    The moments are at least float32; the normalised inputs have the dtype of the inputs. The gradient takes two sums
    over the batch; automatic differentiation would take more passes over it.
    """
    values, rows, count = _prepare(inputs, mask)
    mean = sum_rows(jnp.where(rows, values, 0), target) / count
    variance = sum_rows(jnp.where(rows, values - mean, 0) ** 2, target) / count
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
    total, correlation = sum_rows(gradient, target), sum_rows(gradient * centred, target)
    through_mean = (mean_gradient - scale * inverse * total) / count
    through_variance = (2 * variance_gradient - scale * inverse**3 * correlation) / count
    input_gradient = scale * inverse * gradient + jnp.where(rows, through_mean + through_variance * centred, 0)
    return input_gradient.astype(inputs.dtype), None, inverse * correlation, total


normalize_batch.defvjp(_forward, _backward)


def count_values(inputs: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the number of values per channel in the rows of ``mask``, counting at least one row."""
    return jnp.maximum(jnp.sum(mask), 1) * math.prod(inputs.shape[1:-1])


def at_least_float32(inputs: jax.Array) -> jax.Array:
    """Casts inputs to float32 if their dtype has fewer bits."""
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def _prepare(inputs, mask):
    values = at_least_float32(inputs)
    rows = mask.reshape(-1, *[1] * (inputs.ndim - 1))
    return values, rows, count_values(inputs, mask).astype(values.dtype)
