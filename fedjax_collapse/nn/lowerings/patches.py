"""Convolution as a matrix product of image patches."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks, with_gradient
from fedjax_collapse.nn.lowerings.products import of_columns


def _gradient(stride, padding, target, residuals, gradient):
    images, kernel = residuals
    channels, features = kernel.shape[2:]

    def chunk(images, gradient):
        flat = gradient.reshape(-1, features)
        shifted = windows(pad(images, padding), kernel.shape[:2], stride)
        if target.is_cpu or channels == 1:  # a wide product would first write the patches, at little gain
            kernel_gradient = jnp.stack([of_columns(window.reshape(-1, channels), flat, target) for window in shifted])
        else:
            kernel_gradient = jnp.concatenate(shifted, axis=-1).reshape(len(flat), -1).T @ flat
        image_gradient = gradient_of_images(
            _multiply_patches, gradient, kernel.swapaxes(2, 3), images.shape, stride, padding
        )
        return image_gradient, kernel_gradient

    image_gradient, kernel_gradient = in_chunks(chunk, (images, gradient), _bytes_each(images, kernel, stride), target)
    return image_gradient, kernel_gradient.reshape(kernel.shape)


@with_gradient(_gradient)
def convolve_patches(images: jax.Array, kernel: jax.Array, stride: int, padding: int, target: Target) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in, out] -> [batch, height', width', out]."""

    def chunk(images):
        return _multiply_patches(pad(images, padding), kernel, stride), ()

    return in_chunks(chunk, (images,), _bytes_each(images, kernel, stride), target)[0]


def _multiply_patches(images, kernel, stride=1):
    shifted = windows(images, kernel.shape[:2], stride)
    patches = shifted[0] if len(shifted) == 1 else jnp.concatenate(shifted, axis=-1)
    products = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(patches.shape[-1], -1)
    return products.reshape(*patches.shape[:3], -1)


def _bytes_each(images, kernel, stride):
    """Returns the approximate bytes of one example's patches; 0 for a 1x1 kernel, whose patches are the images."""
    size = len(kernel)
    pixels = images.shape[1] * images.shape[2] // stride**2
    return pixels * (size**2 if size > 1 else 0) * max(kernel.shape[2:]) * images.dtype.itemsize


def windows(images: jax.Array, size: tuple[int, int], stride: int) -> list[jax.Array]:
    """Returns, for each position in the kernel, the pixels that it multiplies, [batch, height', width', channels]."""
    height, width = ((extent - s) // stride + 1 for extent, s in zip(images.shape[1:3], size, strict=True))
    return [
        images[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        for i, j in itertools.product(*map(range, size))
    ]


def pad(images: jax.Array, padding: int) -> jax.Array:
    """Pads images with zeros on all sides."""
    return jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def gradient_of_images(
    correlate: Callable[[jax.Array, jax.Array], jax.Array],
    gradient: jax.Array,
    kernel: jax.Array,
    image_shape: tuple[int, ...],
    stride: int,
    padding: int,
) -> jax.Array:
    """Returns the gradient with respect to a convolution's images, given the gradient of its outputs.

    The same weights multiply pixels that are ``stride`` apart. So the gradient at every ``stride``-th row and column is
    a convolution of stride 1, ``correlate(gradient, weights)``, with a part of the flipped ``kernel``. Interleaving
    these parts avoids products with zeros between dilated outputs.
    """

    # weights of the pixels first, first + stride, ...; and the rows to pad the outputs with at both ends
    def along(axis, first):
        shift, start = divmod(first + padding, stride)
        taps = len(range(start, kernel.shape[axis - 1], stride))
        count = -(-image_shape[axis] // stride)
        return slice(start, None, stride), (taps - 1 - shift, count + shift - gradient.shape[axis], 0)

    def phase(row, column):
        (rows, row_ends), (columns, column_ends) = along(1, row), along(2, column)
        weights = kernel[rows, columns][::-1, ::-1]
        if 0 in weights.shape:
            return jnp.zeros(
                (len(gradient), *(-(-e // stride) for e in image_shape[1:3]), image_shape[3]), gradient.dtype
            )
        ends = [(0, 0, 0), row_ends, column_ends, (0, 0, 0)]
        return correlate(lax.pad(gradient, jnp.zeros((), gradient.dtype), ends), weights)

    if stride == 1:
        return phase(0, 0)
    grid = jnp.stack([jnp.stack([phase(i, j) for j in range(stride)], 3) for i in range(stride)], 2)
    interleaved = grid.reshape(len(grid), grid.shape[1] * stride, grid.shape[3] * stride, -1)
    return interleaved[:, : image_shape[1], : image_shape[2]]
