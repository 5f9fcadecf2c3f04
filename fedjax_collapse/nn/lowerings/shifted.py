"""Depthwise convolution as a sum of shifted products."""

import functools

import jax
import jax.numpy as jnp

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks
from fedjax_collapse.nn.lowerings.patches import gradient_of_images, pad, windows
from fedjax_collapse.nn.lowerings.sums import sum_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolve_shifted(images: jax.Array, kernel: jax.Array, stride: int, padding: int, target: Target) -> jax.Array:
    """Depthwise convolution [batch, height, width, c] * [size, size, 1, c] -> [batch, height', width', c]."""
    return _add_shifted(pad(images, padding), kernel, stride)


def _forward(images, kernel, stride, padding, target):
    return convolve_shifted(images, kernel, stride, padding, target), (images, kernel)


def _backward(stride, padding, target, residuals, gradient):
    images, kernel = residuals
    channels = kernel.shape[3]

    def chunk(images, gradient):
        shifted = windows(pad(images, padding), kernel.shape[:2], stride)
        products = [(window * gradient).reshape(-1, channels) for window in shifted]
        return gradient_of_images(_add_shifted, gradient, kernel, images.shape, stride, padding), jnp.stack(
            [sum_rows(product, target) for product in products]
        )

    bytes_each = 4 * images.size // len(images) * images.dtype.itemsize
    image_gradient, kernel_gradient = in_chunks(chunk, (images, gradient), bytes_each, target)
    return image_gradient, kernel_gradient.reshape(kernel.shape)


convolve_shifted.defvjp(_forward, _backward)


def _add_shifted(images, kernel, stride=1):
    shifted = windows(images, kernel.shape[:2], stride)
    return sum(window * weight for window, weight in zip(shifted, kernel.reshape(-1, kernel.shape[3]), strict=True))
