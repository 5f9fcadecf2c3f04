"""Pillow's operations on one image, in JAX: [height, width, channels] floats with the integer values 0 to 255.

Results are integers again, rounded as Pillow rounds. ``autocontrast`` alone may differ from Pillow by one grey level,
where the exact result is an integer that Pillow's floating point misses.
"""

import jax
import jax.numpy as jnp
import numpy as np

Image = jax.Array

_LUMINANCE = (19595, 38470, 7471)  # of 65536: red, green and blue in Pillow's conversion to grey


def invert(image: Image) -> Image:
    return 255 - image


def solarize(image: Image, threshold: jax.Array) -> Image:
    """Inverts the values from ``threshold`` on."""
    return jnp.where(image < threshold, image, 255 - image)


def posterize(image: Image, bits: jax.Array) -> Image:
    """Keeps the upper ``bits`` of eight."""
    cut = 8 - jnp.asarray(bits, jnp.int32)
    return (image.astype(jnp.int32) >> cut << cut).astype(image.dtype)


def autocontrast(image: Image) -> Image:
    """Stretches every channel to 0 ... 255; a constant one stays."""
    pixels = image.astype(jnp.int32)
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    stretched = (pixels - low[None, None]) * 255 // jnp.maximum(high - low, 1)[None, None]
    return jnp.where((high > low)[None, None], stretched.astype(image.dtype), image)


def equalize(image: Image) -> Image:
    """Makes every channel's histogram as flat as a table of new values can."""
    pixels = image.astype(jnp.int32)
    height, width, channels = image.shape
    channel = jnp.arange(channels)[None, None]
    histogram = jnp.zeros((256, channels), jnp.int32).at[pixels, channel].add(1)
    largest = pixels.max(axis=(0, 1))
    step = (height * width - histogram[largest, channel[0, 0]]) // 255
    below = jnp.cumsum(histogram, axis=0) - histogram
    table = jnp.minimum((step[None] // 2 + below) // jnp.maximum(step, 1)[None], 255)
    return jnp.where((step > 0)[None, None], table[pixels, channel].astype(image.dtype), image)


def brightness(image: Image, factor: jax.Array) -> Image:
    """0 is black, 1 the image."""
    return _blend(jnp.zeros_like(image), image, factor)


def contrast(image: Image, factor: jax.Array) -> Image:
    """0 is the mean grey, 1 the image."""
    mean = jnp.floor(jnp.mean(_grey(image)) + 0.5)
    return _blend(jnp.full_like(image, mean), image, factor)


def saturation(image: Image, factor: jax.Array) -> Image:
    """0 is grey, 1 the image (Pillow's Color)."""
    return _blend(jnp.broadcast_to(_grey(image), image.shape), image, factor)


def sharpness(image: Image, factor: jax.Array) -> Image:
    """0 is smoothed by a 3 x 3 kernel except for the border, 1 the image, more sharpens."""
    height, width, _ = image.shape
    if min(height, width) < 3:
        return image
    shifted = [image[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    smooth = jnp.floor((sum(shifted) + 4 * shifted[4]) / 13 + 0.5)
    return _blend(image.at[1:-1, 1:-1].set(smooth), image, factor)


def warp_cubic(image: Image, matrix: jax.Array, offset: jax.Array) -> Image:
    """The image at ``matrix @ (row, column) + offset`` of every pixel, by cubic splines; black outside.

    As SciPy's ``affine_transform`` of order 3, mode "constant".
    """
    height, width, channels = image.shape
    coefficients = jnp.einsum(
        "yi,ijc,xj->yxc", *(_spline_filter(height), image, _spline_filter(width)), precision="highest"
    )
    padded = jnp.pad(coefficients, ((1, 2), (1, 2), (0, 0)), mode="reflect").reshape(-1, channels)
    grid = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
    places = jnp.einsum("pj,ij->pi", grid.astype(image.dtype), matrix, precision="highest") + offset[None]
    inside = jnp.all((places >= 0) & (places <= jnp.array([height - 1, width - 1])[None]), axis=1)
    places = jnp.where(inside[:, None], places, 0)
    corner = jnp.floor(places).astype(jnp.int32)
    rows, columns = (_spline_weights(places - corner)[..., axis] for axis in (0, 1))  # [4, pixels]
    value = 0
    for y in range(4):
        for x in range(4):
            index = (corner[:, 0] + y) * (width + 3) + corner[:, 1] + x
            value += (rows[y] * columns[x])[:, None] * padded.at[index].get(mode="promise_in_bounds")
    value = jnp.clip(jnp.floor(value + 0.5), 0, 255)
    return jnp.where(inside[:, None], value, 0).reshape(image.shape)


def warp_nearest(image: Image, matrix: jax.Array) -> Image:
    """The pixel that contains ``matrix @ (row, column)``, both measured from the middle; black outside."""
    height, width, channels = image.shape
    middle = jnp.array([height / 2, width / 2])[None]
    grid = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
    places = jnp.einsum("pj,ij->pi", grid + 0.5 - middle, matrix, precision="highest") + middle
    places = jnp.floor(places).astype(jnp.int32)
    inside = jnp.all((places >= 0) & (places < jnp.array([height, width])[None]), axis=1)
    index = jnp.where(inside, places[:, 0] * width + places[:, 1], 0)
    value = image.reshape(-1, channels).at[index].get(mode="promise_in_bounds")
    return jnp.where(inside[:, None], value, 0).reshape(image.shape)


def rotation(degrees: jax.Array) -> jax.Array:
    """The matrix on (row, column) that turns the image counter-clockwise (Pillow's sense)."""
    angle = jnp.deg2rad(degrees)
    return jnp.array([[jnp.cos(angle), jnp.sin(angle)], [-jnp.sin(angle), jnp.cos(angle)]])


def _grey(image):
    """[height, width, 1]."""
    if image.shape[-1] == 1:
        return image
    weighted = image.astype(jnp.int32) * jnp.array(_LUMINANCE)[None, None]
    return (jnp.sum(weighted, axis=-1, keepdims=True) + 32768 >> 16).astype(image.dtype)


def _blend(first, second, factor):
    """From ``first`` at 0 to ``second`` at 1 and beyond, cut off as Pillow does."""
    return jnp.floor(jnp.clip(first + factor * (second - first), 0, 255))


def _spline_filter(length):
    """The matrix from samples to cubic spline coefficients, mirrored at the ends: the inverse of (1, 4, 1) / 6."""
    values = np.eye(length) * 4 + np.eye(length, k=1) + np.eye(length, k=-1)
    if length > 1:
        values[0, 1] = values[-1, -2] = 2
    return jnp.asarray(np.linalg.inv(values / 6), jnp.float32)


def _spline_weights(fraction):
    """Of the four samples around: [4, ...]."""
    rest = 1 - fraction
    return jnp.stack([rest**3, 3 * fraction**3 - 6 * fraction**2 + 4, 3 * rest**3 - 6 * rest**2 + 4, fraction**3]) / 6
