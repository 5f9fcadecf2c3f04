"""Pillow's operations on one image, in JAX: [height, width, channels] floats with the integer values 0 to 255.

Results are integers, rounded as in Pillow. Only ``autocontrast`` may differ, by one grey level, where Pillow's
floating-point result misses an exact integer.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError

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
    """Stretches each channel to 0 ... 255; a constant channel does not change."""
    pixels = image.astype(jnp.int32)
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    stretched = (pixels - low[None, None]) * 255 // jnp.maximum(high - low, 1)[None, None]
    return jnp.where((high > low)[None, None], stretched.astype(image.dtype), image)


def equalize(image: Image) -> Image:
    """Equalises the histogram of each channel by a lookup table."""
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
    """Scales brightness; factor 0 is black, 1 the image."""
    return _blend(jnp.zeros_like(image), image, factor)


def contrast(image: Image, factor: jax.Array) -> Image:
    """Scales contrast; factor 0 is the mean grey, 1 the image."""
    mean = jnp.floor(jnp.mean(_grey(image)) + 0.5)
    return _blend(jnp.full_like(image, mean), image, factor)


def saturation(image: Image, factor: jax.Array) -> Image:
    """Scales saturation; factor 0 is grey, 1 the image (Pillow's Color)."""
    return _blend(jnp.broadcast_to(_grey(image), image.shape), image, factor)


def sharpness(image: Image, factor: jax.Array) -> Image:
    """Scales sharpness; factor 0 is smoothed by a 3 x 3 kernel except at the border, 1 the image, above 1 sharpens."""
    height, width, _ = image.shape
    if min(height, width) < 3:
        return image
    shifted = [image[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    smooth = jnp.floor((sum(shifted) + 4 * shifted[4]) / 13 + 0.5)
    return _blend(image.at[1:-1, 1:-1].set(smooth), image, factor)


def hue(image: Image, turn: jax.Array) -> Image:
    """Rotates hues by a fraction of the colour circle, -0.5 to 0.5, in Pillow's 8-bit HSV; grey does not change."""
    if _is_grey(image):
        return image
    red, green, blue = jnp.moveaxis(image.astype(jnp.int32), -1, 0)
    value, lowest = jnp.maximum(jnp.maximum(red, green), blue), jnp.minimum(jnp.minimum(red, green), blue)
    chroma = jnp.maximum(value - lowest, 1)
    from_green, from_blue = 2 * chroma + blue - red, 4 * chroma + red - green
    angle = jnp.where(red == value, green - blue, jnp.where(green == value, from_green, from_blue))
    angle, rest = jnp.divmod(angle % (6 * chroma) * 85, 2 * chroma)  # 255 are the circle
    angle -= jnp.asarray(_hues_rounded_down())[angle] & (rest == 0)
    angle = (angle + jnp.trunc(255 * turn).astype(jnp.int32)) % 256
    saturation = 255 * (value - lowest) // jnp.maximum(value, 1)

    def channel(start):
        place = (2 * angle + 85 * start) % 510  # 510 are the circle, 85 from one corner of the colour cube to the next
        depth = jnp.clip(jnp.minimum(place, 340 - place), 0, 85)
        return (2 * value * (21675 - saturation * depth) + 21675) // 43350  # value * (1 - saturation * depth), rounded

    return jnp.stack([channel(5), channel(3), channel(1)], axis=-1).astype(image.dtype)


def warp_cubic(image: Image, matrix: jax.Array, offset: jax.Array) -> Image:
    """Samples the image at ``matrix @ (row, column) + offset`` by cubic splines; black outside.

    The same as SciPy's ``affine_transform`` of order 3 in mode "constant".
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


def warp_nearest(image: Image, matrix: jax.Array, offset: jax.Array, mode: str = "constant") -> Image:
    """Samples the pixel that contains ``matrix @ (row, column) + offset``; coordinates start at the image's corner.

    Outside, the result is black or the image's reflection (``mode="reflect"``). Computed in steps of 1/65536 pixel, as
    in Pillow.
    """
    height, width, channels = image.shape
    start = offset + jnp.sum(matrix, axis=1) / 2  # for the middle of the first pixel
    matrix, start = (jnp.floor(65536 * value + 0.5).astype(jnp.int32) for value in (matrix, start))
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)[None]
    row, column = (step[0] * rows + step[1] * columns + first >> 16 for step, first in zip(matrix, start, strict=True))
    if mode == "reflect":
        row, column = _reflect(row, height), _reflect(column, width)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = jnp.where(inside, row * width + column, 0)
    return jnp.where(inside[..., None], image.reshape(-1, channels).at[index].get(mode="promise_in_bounds"), 0)


def resize(image: Image, top: jax.Array, left: jax.Array, height: jax.Array, width: jax.Array) -> Image:
    """Returns the part of the image from (top, left) of that height and width, enlarged to the size of the image.

    Bilinear, first along rows, then along columns, each rounded.
    """
    columns = _enlarging(image.shape[1], left, width).astype(image.dtype)
    rows = _enlarging(image.shape[0], top, height).astype(image.dtype)
    image = jnp.floor(jnp.einsum("ji,yic->yjc", columns, image, precision="highest") + 0.5)
    return jnp.floor(jnp.einsum("ji,ixc->jxc", rows, image, precision="highest") + 0.5)


def _enlarging(size, first, length):
    """Returns the weights [size, size] with which a part of an axis is interpolated, at the middle of each pixel."""
    place = jnp.clip((jnp.arange(size) + 0.5) * length / size - 0.5, 0, length - 1) + first
    return jnp.maximum(1 - jnp.abs(place[:, None] - jnp.arange(size)[None]), 0)


def offset_about(matrix: jax.Array, point: jax.Array) -> jax.Array:
    """Returns the offset with which a warp leaves ``point`` in place."""
    return point - jnp.sum(matrix * point[None], axis=1)


def rotation(degrees: jax.Array) -> jax.Array:
    """Returns the matrix on (row, column) that rotates the image counter-clockwise, as in Pillow."""
    angle = jnp.deg2rad(degrees)
    return jnp.array([[jnp.cos(angle), jnp.sin(angle)], [-jnp.sin(angle), jnp.cos(angle)]])


def _grey(image):
    """Converts to grey, [height, width, 1]."""
    if _is_grey(image):
        return image
    weighted = image.astype(jnp.int32) * jnp.array(_LUMINANCE)[None, None]
    return (jnp.sum(weighted, axis=-1, keepdims=True) + 32768 >> 16).astype(image.dtype)


def _is_grey(image):
    channels = image.shape[-1]
    if channels not in (1, 3):
        raise UserError(f"images of {channels} channels: this augmentation expects 1 (grey) or 3 (colours)")
    return channels == 1


def _blend(first, second, factor):
    """Interpolates (or extrapolates) from ``first`` at 0 to ``second`` at 1, clipped as in Pillow."""
    return jnp.floor(jnp.clip(first + factor * (second - first), 0, 255))


def _hues_rounded_down():
    """Returns a mask of the 256 hues that are integers, but one less in Pillow's single precision."""
    sextant, place = np.divmod(2 * np.arange(256), 85)
    distance = np.where(sextant % 2, place, 85 - place).astype(np.float32) / np.float32(85)
    start = sextant - 6 * (sextant == 5)
    angle = np.where(sextant % 2, start + distance, start + 1 - distance).astype(np.float32)
    angle = ((angle.astype(float) / 6 + 1) % 1).astype(np.float32)
    return np.floor(255 * angle.astype(float)) < np.arange(256)


def _reflect(index, length):
    """Maps an index into ``length`` by reflection at the first and last element."""
    period = max(2 * length - 2, 1)
    return jnp.minimum(index % period, period - index % period)


def _spline_filter(length):
    """The matrix from samples to cubic spline coefficients, mirrored at the ends: the inverse of (1, 4, 1) / 6."""
    values = np.eye(length) * 4 + np.eye(length, k=1) + np.eye(length, k=-1)
    if length > 1:
        values[0, 1] = values[-1, -2] = 2
    return jnp.asarray(np.linalg.inv(values / 6), jnp.float32)


def _spline_weights(fraction):
    """Returns the weights of the four nearest samples, [4, ...]."""
    rest = 1 - fraction
    return jnp.stack([rest**3, 3 * fraction**3 - 6 * fraction**2 + 4, 3 * rest**3 - 6 * rest**2 + 4, fraction**3]) / 6
