"""Convolution of stride 1 with few channels, as a product of strips: several neighbouring outputs of a row at once.

A matrix product with few columns is slow, and so are copies of 3 channels. ``length`` neighbouring outputs of a row
depend on ``length + size - 1`` pixels for each row of the kernel; the product of this strip of pixels and a banded
matrix gives all of their channels. It takes ``(length + size - 1) / size`` times as many multiplications, in wide
products, and less than half of the copies.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.chunks import in_chunks, largest_divisor, with_gradient

_COLUMNS = 64  # columns of the product that suffice for full speed


def _gradient(padding, target, residuals, gradient):
    images, kernel = residuals
    size, _, channels, features = kernel.shape
    length = _length(images, kernel, padding)
    flipped = kernel[::-1, ::-1].swapaxes(2, 3)

    def chunk(images, gradient):
        strips = _strips(images, size, padding, length)
        missing = strips.shape[2] * length - gradient.shape[2]
        blocks = jnp.pad(gradient, ((0, 0), (0, 0), (0, missing), (0, 0)))
        product = strips.reshape(-1, strips.shape[-1]).T @ blocks.reshape(-1, length * features)
        return _multiply(gradient, flipped, size - 1 - padding), product

    bytes_each = _bytes_each(images, kernel, padding) + _bytes_each(gradient, flipped, size - 1 - padding)
    image_gradient, product = in_chunks(chunk, (images, gradient), bytes_each, target)
    band = product.reshape(size, length + size - 1, channels, length, features)
    return image_gradient, sum(band[:, t : t + size, :, t] for t in range(length))


@with_gradient(_gradient)
def convolve_strips(images: jax.Array, kernel: jax.Array, padding: int, target: Target) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in, out] -> [batch, height', width', out]."""

    def chunk(images):
        return _multiply(images, kernel, padding), ()

    return in_chunks(chunk, (images,), _bytes_each(images, kernel, padding), target)[0]


def _width(images, kernel, padding):
    """Returns the number of outputs of a row."""
    return images.shape[2] + 2 * padding - len(kernel) + 1


def _length(images, kernel, padding):
    """Returns the number of outputs of a row that are computed at once."""
    most = max(1, _COLUMNS // kernel.shape[3])
    length = largest_divisor(_width(images, kernel, padding), most)
    return length if 2 * length > most else most  # strips of a few outputs are slower than padding


def _multiply(images, kernel, padding):
    size, features = kernel.shape[0], kernel.shape[3]
    length = _length(images, kernel, padding)
    strips = _strips(images, size, padding, length)
    ends = [(t, length - 1 - t) for t in range(length)]
    band = jnp.stack([jnp.pad(kernel, ((0, 0), end, (0, 0), (0, 0))) for end in ends], axis=3)
    products = strips.reshape(-1, strips.shape[-1]) @ band.reshape(strips.shape[-1], length * features)
    return products.reshape(*strips.shape[:2], -1, features)[:, :, : _width(images, kernel, padding)]


def _strips(images, size, padding, length):
    """Inputs of each block of outputs, [batch, height', blocks, size * (length + size - 1) * channels]."""
    batch, height, width, channels = images.shape
    height, width = (extent + 2 * padding - size + 1 for extent in (height, width))
    blocks = -(-width // length)
    further = -(-(size - 1) // length)  # following blocks of pixels that a block overlaps
    after = (blocks + further) * length - images.shape[2] - padding
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, max(after, 0)), (0, 0)))
    padded = padded[:, :, : (blocks + further) * length].reshape(batch, padded.shape[1], blocks + further, -1)
    pieces = []
    for row in range(size):
        rows = padded[:, row : row + height]
        for block in range(further + 1):
            pixels = min(length, size - 1 + length - block * length)
            pieces.append(rows[:, :, block : block + blocks, : pixels * channels])
    return jnp.concatenate(pieces, axis=-1)


def _bytes_each(images, kernel, padding):
    """Returns the size of one example's strips."""
    size, length = len(kernel), _length(images, kernel, padding)
    per_pixel = size * (length + size - 1) / length * images.shape[3]
    return int(images.shape[1] * images.shape[2] * per_pixel * images.dtype.itemsize)
