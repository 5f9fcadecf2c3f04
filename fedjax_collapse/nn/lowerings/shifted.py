"""Depthwise convolution as a sum of shifted products."""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks, with_gradient
from fedjax_collapse.nn.lowerings.patches import gradient_of_images, pad, windows
from fedjax_collapse.nn.lowerings.sums import at_least_float32, sum_computed


def _gradient(stride, padding, target, residuals, gradient):
    images, kernel = residuals

    def chunk(images, gradient):
        image_gradient = gradient_of_images(_add_shifted, gradient, kernel, images.shape, stride, padding)
        padded = pad(images, padding)
        if target.is_cpu:  # arrays that are not fused with the slices of a loop over chunks
            padded, gradient = jax.lax.optimization_barrier((padded, pad(gradient, 1)))
            gradient = gradient[:, 1:-1, 1:-1]
        shifted = windows(padded, kernel.shape[:2], stride)
        products = [at_least_float32(window) * gradient for window in shifted]
        return image_gradient, jnp.stack([sum_computed(product, target) for product in products])

    bytes_each = 4 * images.size // len(images) * images.dtype.itemsize
    image_gradient, kernel_gradient = in_chunks(chunk, (images, gradient), bytes_each, target)
    return image_gradient, kernel_gradient.reshape(kernel.shape).astype(kernel.dtype)


@with_gradient(_gradient)
def convolve_shifted(images: jax.Array, kernel: jax.Array, stride: int, padding: int, target: Target) -> jax.Array:
    """Depthwise convolution [batch, height, width, c] * [size, size, 1, c] -> [batch, height', width', c]."""
    return _add_shifted(pad(images, padding), kernel, stride)


def _add_shifted(images, kernel, stride=1):
    shifted = windows(images, kernel.shape[:2], stride)
    return sum(window * weight for window, weight in zip(shifted, kernel.reshape(-1, kernel.shape[3]), strict=True))
