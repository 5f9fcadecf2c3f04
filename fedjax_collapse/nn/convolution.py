"""Convolutions that stay fast and exact when every client has its own weights.

``jax.vmap`` over a convolution's weights makes XLA emit a grouped convolution, and a convolution inside a loop body
runs on a slow path: 5 to 1000 times too slow on a CPU. The lowerings here are matrix products with their own
gradients, which batch over clients as batched matrix products (``docs/performance.md`` has the figures).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.records import UserError

LOWERINGS = ("auto", "patches", "winograd", "xla")
_MIN_WINOGRAD_CHANNELS = 16  # with fewer, the transforms cost more than the products that they save


def convolve(images: jax.Array, kernel: jax.Array, stride: int, padding: int, lowering: str = "auto") -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in, out] -> [batch, height', width', out].

    ``padding`` zeros surround the images, as in PyTorch. Lowerings:

    * ``patches``: image patches times the kernel as a matrix;
    * ``winograd``: F(2x2, 3x3), 2.25 times fewer multiplications, only for 3x3 kernels of stride 1 and padding <= 2;
    * ``xla``: ``lax.conv_general_dilated``;
    * ``auto``: ``winograd`` where it applies and there are at least 16 channels on both sides, else ``patches``.

    Raises:
        UserError: unknown lowering, or one that does not apply.
    """
    if lowering not in LOWERINGS:
        raise UserError(f"lowering {lowering!r}: expected one of {', '.join(LOWERINGS)}")
    size, _, channels, features = kernel.shape
    applies = (size, stride) == (3, 1) and padding <= 2
    if lowering == "winograd" and not applies:
        raise UserError(
            f"lowering 'winograd' needs kernel size 3, stride 1, padding <= 2, not {size}, {stride}, {padding}"
        )
    if lowering == "xla":
        return lax.conv_general_dilated(
            images, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    if lowering == "winograd" or (lowering == "auto" and applies and min(channels, features) >= _MIN_WINOGRAD_CHANNELS):
        return _winograd(images, kernel, padding)
    return _by_patches(images, kernel, stride, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _by_patches(images, kernel, stride, padding):
    patches = jnp.concatenate(_windows(_pad(images, padding, padding), len(kernel), stride), axis=-1)
    products = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(patches.shape[-1], -1)
    return products.reshape(*patches.shape[:3], -1)


def _by_patches_forward(images, kernel, stride, padding):
    return _by_patches(images, kernel, stride, padding), (images, kernel)


def _by_patches_backward(stride, padding, residuals, gradient):
    """The input gradient is a convolution with the flipped kernel of the gradient, its entries a stride apart."""
    images, kernel = residuals
    size, _, channels, features = kernel.shape
    flat = gradient.reshape(-1, features)
    windows = _windows(_pad(images, padding, padding), size, stride)
    kernel_gradient = jnp.stack([window.reshape(-1, channels).T @ flat for window in windows]).reshape(kernel.shape)
    spread = lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *[(0, 0, stride - 1)] * 2, (0, 0, 0)])
    before = size - 1 - padding
    after = [images.shape[axis] - spread.shape[axis] + padding for axis in (1, 2)]
    spread = lax.pad(spread, jnp.zeros((), spread.dtype), [(0, 0, 0), *[(before, a, 0) for a in after], (0, 0, 0)])
    return _by_patches(spread, _flip(kernel), 1, 0), kernel_gradient


_by_patches.defvjp(_by_patches_forward, _by_patches_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _winograd(images, kernel, padding):
    """2x2 outputs from each 4x4 tile; Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks" (2016)."""
    batch, height, width = images.shape[0], *(extent + 2 * padding - 2 for extent in images.shape[1:3])
    products = jnp.einsum("ptc,pcf->ptf", _transform_images(images, padding), _transform_kernel(kernel))
    rows, columns = -(-height // 2), -(-width // 2)
    products = products.reshape(4, 4, batch, rows, columns, -1)
    tiles = _apply_twice(lambda m: (m[0] + m[1] + m[2], m[1] - m[2] - m[3]), products)
    outputs = jnp.stack([jnp.stack(row, axis=3) for row in tiles], axis=2)  # [batch, rows, 2, columns, 2, features]
    return outputs.reshape(batch, 2 * rows, 2 * columns, -1)[:, :height, :width]


def _winograd_forward(images, kernel, padding):
    return _winograd(images, kernel, padding), (images, kernel)


def _winograd_backward(padding, residuals, gradient):
    """Both gradients by products of transforms again."""
    images, kernel = residuals
    features = kernel.shape[3]
    even = jnp.pad(gradient, ((0, 0), *((0, extent % 2) for extent in gradient.shape[1:3]), (0, 0)))
    tiles = [[even[:, i::2, j::2] for j in range(2)] for i in range(2)]
    spread = _apply_twice(lambda g: (g[0], g[0] + g[1], g[0] - g[1], -g[1]), tiles)
    spread = jnp.stack([point.reshape(-1, features) for row in spread for point in row])
    products = jnp.einsum("ptc,ptf->pcf", _transform_images(images, padding), spread)
    products = products.reshape(4, 4, *products.shape[1:])
    half = _apply_twice(lambda u: (u[0] + (u[1] + u[2]) / 2, (u[1] - u[2]) / 2, (u[1] + u[2]) / 2 + u[3]), products)
    kernel_gradient = jnp.stack([jnp.stack(row) for row in half])
    return _winograd(gradient, _flip(kernel), 2 - padding), kernel_gradient


_winograd.defvjp(_winograd_forward, _winograd_backward)


def _transform_images(images, padding):
    """[16, tiles, channels]: every 4x4 tile, two pixels apart, at the 16 points of the transform."""
    extra = [padding + (extent % 2) for extent in images.shape[1:3]]  # an odd row or column becomes half a tile
    padded = jnp.pad(images, ((0, 0), *((padding, after) for after in extra), (0, 0)))
    rows, columns = (extent // 2 - 1 for extent in padded.shape[1:3])
    tiles = [[padded[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for j in range(4)] for i in range(4)]
    points = _apply_twice(lambda d: (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]), tiles)
    return jnp.stack([point.reshape(-1, images.shape[-1]) for row in points for point in row])


def _transform_kernel(kernel):
    """[16, in, out]: the kernel at the 16 points of the transform."""
    points = _apply_twice(lambda g: (g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]), kernel)
    return jnp.stack([point for row in points for point in row])


def _apply_twice(transform, grid):
    """A one-dimensional transform along the columns, then along the rows, of a grid of arrays."""
    columns = [transform([row[j] for row in grid]) for j in range(len(grid[0]))]
    return [transform([column[i] for column in columns]) for i in range(len(columns[0]))]


def _windows(images, size, stride):
    """For each position in the kernel, the pixels that it meets: [batch, height', width', channels]."""
    height, width = ((extent - size) // stride + 1 for extent in images.shape[1:3])
    return [
        images[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        for i in range(size)
        for j in range(size)
    ]


def _pad(images, before, after):
    return jnp.pad(images, ((0, 0), (before, after), (before, after), (0, 0)))


def _flip(kernel):
    """The kernel of the input gradient: turned by 180 degrees, in and out exchanged."""
    return kernel[::-1, ::-1].swapaxes(2, 3)
