"""3x3 convolution of stride 1 as F(2x2, 3x3) or F(4x4, 3x3).

A tile of (m + 2) x (m + 2) pixels gives m x m outputs by (m + 2)^2 multiplications per channel: 4 per output for m = 2
and 2.25 for m = 4, instead of 9 (Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). Both
gradients are products at the same points: that of the images by the transposed transforms, whose overlapping tiles are
added. In 32-bit floats outputs of F(4x4) deviate by 5e-7 of their root mean square, three times as much as of F(2x2).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks
from fedjax_collapse.nn.lowerings.patches import shift

# of interpolation, and infinity: of those tried, the four with the smallest errors (1, -1, 2 and -2 have twice these)
_POINTS = {2: (0, 1, -1), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}
_LEAST_ROWS = 128  # tiles in a chunk: products of fewer rows wait for the transformed kernel


class _Transforms(NamedTuple):
    """``outputs.T @ ((kernel @ k) * (images @ d))`` is the correlation of pixels d [m + 2] and weights k [3]."""

    outputs: np.ndarray  # [m + 2, m]
    kernel: np.ndarray  # [m + 2, 3]
    images: np.ndarray  # [m + 2, m + 2]


@functools.cache
def _transforms(tile):
    """Returns the transforms for ``tile`` outputs: Toom-Cook's polynomials at the points."""
    points, size = _POINTS[tile], tile + 2
    outputs, kernel, images = np.zeros((size, tile)), np.zeros((size, 3)), np.zeros((size, size))
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        outputs[i] = np.power(point, range(tile), dtype=float)
        kernel[i] = np.power(point, range(3), dtype=float) / np.prod(np.subtract(point, others))
        images[i, :-1] = np.poly(others)[::-1]
    outputs[-1, -1] = kernel[-1, -1] = 1
    images[-1] = np.poly(points)[::-1]
    return _Transforms(outputs, kernel, images)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolve_winograd(images: jax.Array, kernel: jax.Array, padding: int, tile: int, target: Target) -> jax.Array:
    """Convolution [batch, height, width, in] * [3, 3, in, out] -> [batch, height', width', out].

    ``tile`` is m, 2 or 4.
    """
    transforms, counts = _transforms(tile), _tiles(images.shape, padding, tile)
    height, width = (extent + 2 * padding - 2 for extent in images.shape[1:3])
    weights = _transform_kernel(kernel, tile)

    def chunk(images):
        points = _split(images, padding, transforms.images, counts, tile)
        outputs = _join(jnp.einsum("ptc,pcf->ptf", points, weights), transforms.outputs, counts, tile)
        return outputs[:, :height, :width], ()

    return _in_chunks(chunk, (images,), kernel, counts, tile, target)[0]


def _forward(images, kernel, padding, tile, target):
    return convolve_winograd(images, kernel, padding, tile, target), (images, kernel)


def _backward(padding, tile, target, residuals, gradient):
    images, kernel = residuals
    transforms, counts = _transforms(tile), _tiles(images.shape, padding, tile)
    rows, columns = (slice(padding, padding + extent) for extent in images.shape[1:3])
    weights = _transform_kernel(kernel, tile)

    def chunk(images, gradient):
        points = _split(images, padding, transforms.images, counts, tile)
        of_outputs = _split(gradient, 0, transforms.outputs, counts, tile)
        products = jnp.einsum("ptc,ptf->pcf", points, of_outputs)
        pixels = _join(jnp.einsum("ptf,pcf->ptc", of_outputs, weights), transforms.images, counts, tile)
        return pixels[:, rows, columns], products

    image_gradient, products = _in_chunks(chunk, (images, gradient), kernel, counts, tile, target)
    grid = products.reshape(tile + 2, tile + 2, *products.shape[1:])
    return image_gradient, _apply_twice(transforms.kernel.T, grid)


convolve_winograd.defvjp(_forward, _backward)


def winograd_tiles(image_shape: tuple[int, ...], padding: int, tile: int) -> int:
    """Returns the number of tiles in a batch of images, which is the number of rows of the matrix products."""
    return image_shape[0] * math.prod(_tiles(image_shape, padding, tile))


def _tiles(image_shape, padding, tile):
    """Returns the number of rows and of columns of an image's tiles."""
    return [-(-(extent + 2 * padding - 2) // tile) for extent in image_shape[1:3]]


def _in_chunks(chunk, arrays, kernel, counts, tile, target):
    each = math.prod(counts)
    bytes_each = each * (tile + 2) ** 2 * sum(kernel.shape[2:]) * kernel.dtype.itemsize
    return in_chunks(chunk, arrays, bytes_each, target, least=-(-_LEAST_ROWS // each))


def _transform_kernel(kernel, tile):
    """[3, 3, in, out] -> [(m + 2)^2 points, in, out]."""
    return _apply_twice(_transforms(tile).kernel, kernel).reshape(-1, *kernel.shape[2:])


def _split(pixels, padding, matrix, counts, tile):
    """Applies ``matrix`` [points, pixels] to rows and columns of tiles that are ``tile`` pixels apart.

    ``padding`` zeros are put before the first row and column, and behind the last as many as the tiles need. Returns
    [points^2, tiles, channels]; as of the kernel, points of the columns come first.
    """
    size = matrix.shape[1]

    def along(axis, values, count):
        pieces = [lax.slice_in_dim(values, i, i + tile * (count - 1) + 1, tile, axis) for i in range(size)]
        return jnp.stack([_combine(weights, pieces) for weights in matrix])

    extents = zip(counts, pixels.shape[1:3], strict=True)
    ends = [(padding, tile * (count - 1) + size - extent - padding) for count, extent in extents]
    padded = jnp.pad(pixels, ((0, 0), *ends, (0, 0)))
    return along(3, along(1, padded, counts[0]), counts[1]).reshape(len(matrix) ** 2, -1, pixels.shape[-1])


def _join(points, matrix, counts, tile):
    """Applies the transposed ``matrix`` to points; pixels of neighbouring tiles that overlap are added."""
    size = len(matrix)

    def along(axis, values):
        pixels = [_combine(weights, values) for weights in matrix.T]
        if len(pixels) > tile:  # the last two of a tile are the first two of the next
            own = [shift(pixel, axis, 0, 2) for pixel in pixels[:tile]]
            overlapping = [shift(pixel, axis, 1, 2) for pixel in pixels[tile:]]
            pixels = [*map(jnp.add, own, overlapping), *own[len(overlapping) :]]
        values = jnp.stack(pixels, axis + 1)
        return values.reshape(*values.shape[:axis], -1, *values.shape[axis + 2 :])

    columns = along(3, points.reshape(size, size, -1, *counts, points.shape[-1]))
    return along(1, columns)


def _apply_twice(matrix, grid):
    """Applies ``matrix`` to the first axis of the grid, then to the second, which becomes the first."""
    first = jnp.stack([_combine(weights, grid) for weights in matrix])
    return jnp.stack([_combine(weights, first.swapaxes(0, 1)) for weights in matrix])


def _combine(weights, values):
    """Returns the weighted sum of arrays."""
    terms = zip(weights.tolist(), values, strict=True)
    return functools.reduce(jnp.add, [v if weight == 1 else weight * v for weight, v in terms if weight])
