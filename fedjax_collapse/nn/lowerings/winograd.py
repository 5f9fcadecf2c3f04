"""3x3 convolution of stride 1 as F(2x2, 3x3); Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).

Each tile of 4 x 4 pixels gives 2 x 2 outputs by 16 multiplications per channel instead of 36.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks

MAX_PADDING = 2  # the input gradient is a convolution with padding 2 - padding


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve_winograd(images: jax.Array, kernel: jax.Array, padding: int, target: Target) -> jax.Array:
    """Convolution [batch, height, width, in] * [3, 3, in, out] -> [batch, height', width', out]."""
    weights = _transform_kernel(kernel)

    def chunk(images):
        return _multiply(_transform_images(images, padding), weights, images.shape, padding), ()

    return in_chunks(chunk, (images,), _bytes_each(images, kernel), target)[0]


def _forward(images, kernel, padding, target):
    return convolve_winograd(images, kernel, padding, target), (images, kernel)


def _backward(padding, target, residuals, gradient):
    """Computes both gradients, also by products of transforms."""
    images, kernel = residuals
    weights = _transform_kernel(kernel[::-1, ::-1].swapaxes(2, 3))

    def chunk(images, gradient):
        products = jnp.einsum("ptc,ptf->pcf", _transform_images(images, padding), _transform_gradient(gradient))
        opposite = MAX_PADDING - padding
        return _multiply(_transform_images(gradient, opposite), weights, gradient.shape, opposite), products

    image_gradient, products = in_chunks(chunk, (images, gradient), _bytes_each(images, kernel), target)
    products = products.reshape(4, 4, *products.shape[1:])
    half = _apply_twice(lambda u: (u[0] + (u[1] + u[2]) / 2, (u[1] - u[2]) / 2, (u[1] + u[2]) / 2 + u[3]), products)
    return image_gradient, jnp.stack([jnp.stack(row) for row in half])


convolve_winograd.defvjp(_forward, _backward)


def winograd_tiles(image_shape: tuple[int, ...], padding: int) -> int:
    """Returns the number of tiles in a batch of images, which is the number of rows of the matrix products."""
    rows, columns = (-(-(extent + 2 * padding - 2) // 2) for extent in image_shape[1:3])
    return image_shape[0] * rows * columns


def _bytes_each(images, kernel):
    """Returns the size of one example's transform and its products, each four times the size of the image."""
    return 4 * images.shape[1] * images.shape[2] * sum(kernel.shape[2:]) * images.dtype.itemsize


def _transform_images(images, padding):
    """Transforms each 4x4 tile, two pixels apart, to the 16 points, [16, tiles, channels]."""
    ends = [(padding, padding + extent % 2) for extent in images.shape[1:3]]  # an odd row or column becomes half a tile
    padded = lax.optimization_barrier(jnp.pad(images, ((0, 0), *ends, (0, 0))))
    rows, columns = (extent // 2 - 1 for extent in padded.shape[1:3])
    tiles = [[padded[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for j in range(4)] for i in range(4)]
    points = _apply_twice(lambda d: (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]), tiles)
    return _flatten(points)


def _transform_kernel(kernel):
    """Transforms the kernel to the 16 points, [16, in, out]."""
    points = _apply_twice(lambda g: (g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]), kernel)
    return jnp.stack([point for row in points for point in row])


def _transform_gradient(gradient):
    """Transforms the gradient of the outputs to the 16 points, [16, tiles, features]."""
    even = jnp.pad(gradient, ((0, 0), *((0, extent % 2) for extent in gradient.shape[1:3]), (0, 0)))
    tiles = [[even[:, i::2, j::2] for j in range(2)] for i in range(2)]
    return _flatten(_apply_twice(lambda g: (g[0], g[0] + g[1], g[0] - g[1], -g[1]), tiles))


def _multiply(points, weights, image_shape, padding):
    """Returns the convolution of images with transform ``points``."""
    batch, height, width = image_shape[0], *(extent + 2 * padding - 2 for extent in image_shape[1:3])
    rows, columns = -(-height // 2), -(-width // 2)
    products = jnp.einsum("ptc,pcf->ptf", points, weights).reshape(4, 4, batch, rows, columns, -1)
    tiles = _apply_twice(lambda m: (m[0] + m[1] + m[2], m[1] - m[2] - m[3]), products)
    outputs = jnp.stack([jnp.stack(row, axis=3) for row in tiles], axis=2)  # [batch, rows, 2, columns, 2, features]
    return outputs.reshape(batch, 2 * rows, 2 * columns, -1)[:, :height, :width]


def _flatten(points):
    return jnp.stack([point.reshape(-1, point.shape[-1]) for row in points for point in row])


def _apply_twice(transform, grid):
    """Applies a one-dimensional transform along the columns and then the rows of a grid of arrays."""
    columns = [transform([row[j] for row in grid]) for j in range(len(grid[0]))]
    return [transform([column[i] for column in columns]) for i in range(len(columns[0]))]
