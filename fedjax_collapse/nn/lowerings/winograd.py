"""Convolution of stride 1 as F(2x2, 3x3), F(4x4, 3x3), F(2x2, 5x5) or F(4x4, 5x5).

A tile of n x n pixels, n = m + r - 1, gives m x m outputs of an r x r kernel by n^2 multiplications per channel: 4 or
2.25 per output of a 3x3 kernel, instead of 9, and 9 or 4 of a 5x5 kernel, instead of 25 (Lavin & Gray, "Fast Algorithms
for Convolutional Neural Networks", 2016). Both gradients are products at the same points; the gradient of the images
uses the transposed transforms and adds overlapping tiles. In 32-bit floats outputs deviate by 1.4e-7, 3e-7 (n = 6) and
1.4e-6 (n = 8) of their root mean square.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks, with_gradient
from fedjax_collapse.nn.lowerings.products import of_rows

# of interpolation, by n, and infinity: those with the smallest errors of many (for n = 6 ±1 and ±2 have twice these)
_POINTS = {4: (0, 1, -1), 6: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2), 8: (0, 1 / 2, -1 / 2, 1, -1, 2, -2)}
_MOST_BYTES = 2**24  # of points up to which a loop over chunks costs more than the cache saves
_LEAST_ROWS = 128  # tiles in a chunk: products of fewer rows wait for the transformed kernel


class _Transforms(NamedTuple):
    """``outputs.T @ ((kernel @ k) * (images @ d))`` is the correlation of pixels d [n] and weights k [r]."""

    outputs: np.ndarray  # [n, m]
    kernel: np.ndarray  # [n, r]
    images: np.ndarray  # [n, n]


@functools.cache
def _transforms(tile, size):
    """Returns the transforms for ``tile`` outputs of ``size`` weights: Toom-Cook's polynomials at the points."""
    length = tile + size - 1
    points = _POINTS[length]
    outputs, kernel, images = np.zeros((length, tile)), np.zeros((length, size)), np.zeros((length, length))
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        outputs[i] = np.power(point, range(tile), dtype=float)
        kernel[i] = np.power(point, range(size), dtype=float) / np.prod(np.subtract(point, others))
        images[i, :-1] = np.poly(others)[::-1]
    outputs[-1, -1] = kernel[-1, -1] = 1
    images[-1] = np.poly(points)[::-1]
    return _Transforms(outputs, kernel, images)


def _gradient(padding, tile, target, residuals, gradient):
    (images, kernel), size = residuals, len(residuals[1])
    transforms, counts = _transforms(tile, size), _tiles(images.shape, size, padding, tile)
    rows, columns = (slice(padding, padding + extent) for extent in images.shape[1:3])
    weights = _transform_kernel(kernel, tile)

    def chunk(images, gradient):
        points = _split(images, padding, transforms.images, counts, tile)
        of_outputs = _split(gradient, 0, transforms.outputs, counts, tile)
        products = jnp.einsum("ptc,ptf->pcf", points, of_outputs)
        of_points = jax.vmap(functools.partial(of_rows, target=target))(of_outputs, weights)
        pixels = _join(of_points, transforms.images, counts, tile, target)
        return pixels[:, rows, columns], products

    image_gradient, products = _in_chunks(chunk, (images, gradient), kernel, counts, tile, target)
    grid = products.reshape(tile + size - 1, -1, *products.shape[1:])
    return image_gradient, _apply_twice(transforms.kernel.T, grid)


@with_gradient(_gradient)
def convolve_winograd(images: jax.Array, kernel: jax.Array, padding: int, tile: int, target: Target) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in, out] -> [batch, height', width', out].

    ``tile`` is m, 2 or 4; ``size`` is 3 or 5.
    """
    size = len(kernel)
    transforms, counts = _transforms(tile, size), _tiles(images.shape, size, padding, tile)
    height, width = (extent + 2 * padding - size + 1 for extent in images.shape[1:3])
    weights = _transform_kernel(kernel, tile)

    def chunk(images):
        points = _split(images, padding, transforms.images, counts, tile)
        outputs = _join(jnp.einsum("ptc,pcf->ptf", points, weights), transforms.outputs, counts, tile, target)
        return outputs[:, :height, :width], ()

    return _in_chunks(chunk, (images,), kernel, counts, tile, target)[0]


def winograd_tiles(image_shape: tuple[int, ...], size: int, padding: int, tile: int) -> int:
    """Returns the number of tiles in a batch of images, which is the number of rows of the matrix products."""
    return image_shape[0] * math.prod(_tiles(image_shape, size, padding, tile))


def _tiles(image_shape, size, padding, tile):
    """Returns the number of rows and of columns of an image's tiles."""
    return [-(-(extent + 2 * padding - size + 1) // tile) for extent in image_shape[1:3]]


def _in_chunks(chunk, arrays, kernel, counts, tile, target):
    each = math.prod(counts)
    bytes_each = each * (tile + len(kernel) - 1) ** 2 * sum(kernel.shape[2:]) * kernel.dtype.itemsize
    return in_chunks(chunk, arrays, bytes_each, target, least=-(-_LEAST_ROWS // each), most=_MOST_BYTES)


def _transform_kernel(kernel, tile):
    """[r, r, in, out] -> [n^2 points, in, out]."""
    return _apply_twice(_transforms(tile, len(kernel)).kernel, kernel).reshape(-1, *kernel.shape[2:])


def _split(pixels, padding, matrix, counts, tile):
    """Applies ``matrix`` [points, pixels] to rows and columns of tiles that are ``tile`` pixels apart.

    ``padding`` zeros precede the first row and column; as many as the tiles need follow the last. Returns [points^2,
    tiles, channels], with points of columns first, as for the kernel.
    """
    size = matrix.shape[1]

    def along(axis, values, count):
        pieces = [lax.slice_in_dim(values, i, i + tile * (count - 1) + 1, tile, axis) for i in range(size)]
        return jnp.stack([_combine(weights, pieces) for weights in matrix])

    extents = zip(counts, pixels.shape[1:3], strict=True)
    ends = [(padding, tile * (count - 1) + size - extent - padding) for count, extent in extents]
    padded = jnp.pad(pixels, ((0, 0), *ends, (0, 0)))
    rows = along(1, padded.reshape(*padded.shape[:2], -1), counts[0])  # loops over few channels would be short
    points = along(3, rows.reshape(*rows.shape[:3], *padded.shape[2:]), counts[1])
    return points.reshape(len(matrix) ** 2, -1, pixels.shape[-1])


def _join(points, matrix, counts, tile, target):
    """Applies the transposed ``matrix`` to points; pixels of neighbouring tiles that overlap are added."""
    size, reach = len(matrix), -(-matrix.shape[1] // tile)  # tiles that have a pixel in common

    def along(axis, values):
        pixels = [_shift(_combine(weights, values), axis, i // tile, reach) for i, weights in enumerate(matrix.T)]
        values = jnp.stack([functools.reduce(jnp.add, pixels[i::tile]) for i in range(tile)], axis + 1)
        return values.reshape(*values.shape[:axis], -1, *values.shape[axis + 2 :])

    columns = along(3, points.reshape(size, size, -1, *counts, points.shape[-1]))
    pixels = columns.reshape(*columns.shape[:-2], -1)
    rows = along(1, lax.optimization_barrier(pixels) if target.is_cpu else pixels)  # fused, they are computed twice
    return rows.reshape(*rows.shape[:-1], *columns.shape[-2:])


def _shift(values, axis, by, size):
    """Returns the values with ``by`` zeros before them along an axis, and ``size - 1`` in total."""
    return jnp.pad(values, [(by, size - 1 - by) if a == axis else (0, 0) for a in range(values.ndim)])


def _apply_twice(matrix, grid):
    """Applies ``matrix`` to the first axis of the grid, then to the second, which becomes the first."""
    first = jnp.stack([_combine(weights, grid) for weights in matrix])
    return jnp.stack([_combine(weights, first.swapaxes(0, 1)) for weights in matrix])


def _combine(weights, values):
    """Returns the weighted sum of arrays."""
    terms = zip(weights.tolist(), values, strict=True)
    return functools.reduce(jnp.add, [v if weight == 1 else weight * v for weight, v in terms if weight])
