"""Cross-entropy, of classes and of several labels, and the mean over true rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from fedjax_collapse.losses.shapes import Labels, Logits, Mask, Value


def masked_mean(values: Float[Array, " batch"], mask: Num[Array, " batch"] | Mask) -> Value:
    """Returns the mean of ``values`` weighted by ``mask``, whose sum counts as at least 1; 0 without true rows."""
    weighted = jnp.where(mask, values, 0)
    total = jnp.sum(weighted if mask.dtype == bool else mask * weighted)
    return total / jnp.maximum(jnp.sum(mask), 1)


def cross_entropy(logits: Logits, labels: Labels, mask: Mask) -> Value:
    """Returns the mean over the true rows of ``-log softmax(logits)[label]``, in nats."""
    log_probabilities = jax.nn.log_softmax(jnp.where(mask[:, None], logits, 0))
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    return masked_mean(losses, mask)


def cross_entropy_of_many(logits: Logits, labels: Labels, mask: Mask) -> Value:
    """Returns ``cross_entropy``, up to rounding, in a form that is faster with thousands of classes."""
    return masked_mean(_surprisal(logits, labels, mask), mask)


@jax.custom_vjp
def _surprisal(logits, labels, mask):
    """Returns ``-log softmax(logits)[label]`` of each row, [batch]; rows outside ``mask`` have no gradient.

    The exponentials are computed once: their sum is a product, which is not fused, and the gradient scales them.
    """
    return _surprisal_and_exponentials(logits, labels, mask)[0]


def _surprisal_and_exponentials(logits, labels, mask):
    largest = jax.lax.stop_gradient(_largest(logits))
    exponentials = jnp.exp(logits - largest[:, None])
    ones = jnp.ones(logits.shape[1], logits.dtype)
    sums = jnp.matmul(exponentials, ones, precision=jax.lax.Precision.HIGHEST)
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.log(sums) + largest - own, (exponentials, sums, labels, mask)


def _surprisal_gradient(kept, cotangents):
    exponentials, sums, labels, mask = kept
    is_label = jnp.arange(exponentials.shape[1])[None] == labels[:, None]
    scales = cotangents / sums
    gradient = exponentials * scales[:, None] - jnp.where(is_label, cotangents[:, None], 0)
    return jnp.where(mask[:, None], gradient, 0), None, None


_surprisal.defvjp(_surprisal_and_exponentials, _surprisal_gradient)


def _largest(logits, slices=8):
    """Returns the maximum of each row, mostly elementwise, as CPUs reduce an axis one number at a time."""
    width = logits.shape[1] // slices
    if not width:
        return jnp.max(logits, axis=1)
    parts = (logits[:, i * width : (i + 1) * width] for i in range(slices))
    rest = jnp.max(logits[:, slices * width :], axis=1, initial=-jnp.inf)
    return jnp.maximum(jnp.max(functools.reduce(jnp.maximum, parts), axis=1), rest)


def binary_cross_entropy(
    logits: Float[Array, "batch labels"], labels: Shaped[Array, "batch labels"], mask: Mask
) -> Value:
    """Returns the mean over true rows and labels of ``-y log sigmoid(z) - (1 - y) log sigmoid(-z)``, in nats."""
    logits, targets = jnp.where(mask[:, None], logits, 0), labels.astype(logits.dtype)
    losses = jax.nn.softplus(logits) - targets * logits
    return masked_mean(losses.mean(axis=1), mask)


def summed_binary_cross_entropy(view: Any) -> Value:
    """Returns the sum over the batch of the mean over labels, as in TensorFlow Federated's tags; a ``task_loss``.

    ``view`` is a ``LocalView``.
    """
    mask = view.batch.mask
    return jnp.sum(mask) * binary_cross_entropy(view.outputs.logits, view.batch.labels, mask)
