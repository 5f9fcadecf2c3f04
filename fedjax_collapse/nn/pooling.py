"""Pooling of NHWC images as PyTorch's, without ``lax.reduce_window``, which is slow in loops."""

import functools

import jax
import jax.numpy as jnp

from fedjax_collapse.nn.patches import pad, windows
from fedjax_collapse.records import UserError


def max_pool(images: jax.Array, size: int = 2, stride: int | None = None, padding: int = 0) -> jax.Array:
    """Maximum over windows ``stride`` apart (``None``: ``size``), as PyTorch's; pixels of no full window are dropped.

    The gradient goes to the first maximum of a window, as in PyTorch.
    """

    def later(first, second):
        return jnp.where((second > first) | jnp.isnan(second), second, first)

    return functools.reduce(later, _windows(images, size, stride, padding, -jnp.inf))


def avg_pool(images: jax.Array, size: int, stride: int | None = None) -> jax.Array:
    """Mean over windows ``stride`` apart (``None``: ``size``), as PyTorch's; pixels of no full window are dropped."""
    return sum(_windows(images, size, stride, 0, 0.0)) / size**2


def _windows(images, size, stride, padding, value):
    if min(images.shape[1:3]) + 2 * padding < size:
        raise UserError(
            f"images of {images.shape[1]}x{images.shape[2]} pixels are too small for {size}x{size} pooling with "
            f"padding {padding}: it needs at least {size - 2 * padding}; use larger images or a shallower network"
        )
    padded = pad(images, padding, value) if padding else images
    return windows(padded, (size, size), size if stride is None else stride)
