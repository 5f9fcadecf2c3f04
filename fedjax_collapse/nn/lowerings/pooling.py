"""Pooling of NHWC images with PyTorch's semantics, without ``lax.reduce_window``, which is slow in loops on a CPU.

On a TPU ``max_pool`` uses ``lax.reduce_window``, which is one operation there, as is its gradient; by the compiler's
estimate a small CNN takes 0.7 of the time. On a GPU our lowering moves a third of the bytes (``docs/accelerators.md``).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.patches import pad, windows

_CPU = Target()


def max_pool(
    images: jax.Array, size: int = 2, stride: int | None = None, padding: int = 0, target: Target = _CPU
) -> jax.Array:
    """Maximum over windows ``stride`` apart (``None``: ``size``), as in PyTorch; partial windows are dropped.

    The gradient goes to the first maximum of a window, as in PyTorch.
    """

    if target.is_tpu:
        _check(images, size, padding)
        steps, ends = (1, *[stride or size] * 2, 1), ((0, 0), *[(padding, padding)] * 2, (0, 0))
        return lax.reduce_window(images, -jnp.inf, lax.max, (1, size, size, 1), steps, ends)

    def maximum(first, second):
        return jnp.where((second > first) | jnp.isnan(second), second, first)

    return functools.reduce(maximum, _windows(images, size, stride, padding, -jnp.inf))


def avg_pool(images: jax.Array, size: int, stride: int | None = None) -> jax.Array:
    """Mean over windows ``stride`` apart (``None``: ``size``), as in PyTorch; partial windows are dropped."""
    return sum(_windows(images, size, stride, 0, 0.0)) / size**2


def _windows(images, size, stride, padding, value):
    _check(images, size, padding)
    padded = pad(images, padding, value) if padding else images
    return windows(padded, (size, size), size if stride is None else stride)


def _check(images, size, padding):
    if min(images.shape[1:3]) + 2 * padding < size:
        raise UserError(
            f"images of {images.shape[1]}x{images.shape[2]} pixels are too small for {size}x{size} pooling with "
            f"padding {padding}: it needs at least {size - 2 * padding}; use larger images or a shallower network"
        )
