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
from fedjax_collapse.nn.lowerings.patches import windows

_CPU = Target()


def max_pool(images: jax.Array, size: int = 2, stride: int | None = None, target: Target = _CPU) -> jax.Array:
    """Maximum over windows ``stride`` apart (``None``: ``size``), as in PyTorch; partial windows are dropped.

    The gradient goes to the first maximum of a window, as in PyTorch.
    """
    stride = stride or size
    if min(images.shape[1:3]) < size:
        raise UserError(
            f"images of {images.shape[1]}x{images.shape[2]} pixels are too small for {size}x{size} pooling: it needs "
            f"at least {size}; use larger images or a shallower network"
        )
    if target.is_tpu:
        return lax.reduce_window(images, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), "VALID")

    def maximum(first, second):
        return jnp.where((second > first) | jnp.isnan(second), second, first)

    return functools.reduce(maximum, windows(images, (size, size), stride))
