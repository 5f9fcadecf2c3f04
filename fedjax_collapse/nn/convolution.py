"""Convolutions that stay fast and exact when every client has its own weights.

``jax.vmap`` over a convolution's weights makes XLA emit a grouped convolution, and a convolution inside a loop body
runs on a slow path: 5 to 1000 times too slow on a CPU. The lowerings here are products with their own gradients,
which batch over clients as batched products (``docs/performance.md`` has the figures).
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.nn.patches import convolve_patches
from fedjax_collapse.nn.shifted import convolve_shifted
from fedjax_collapse.nn.strips import convolve_strips
from fedjax_collapse.nn.winograd import MAX_PADDING, convolve_winograd, winograd_tiles
from fedjax_collapse.records import UserError

LOWERINGS = ("auto", "patches", "shifted", "strips", "winograd", "xla")
_MIN_WINOGRAD_CHANNELS = 32  # with fewer, the transforms cost more than the products that they save
_MAX_STRIP_CHANNELS = 4  # with more, strips cost more products than they save copies


def convolve(
    images: jax.Array, kernel: jax.Array, stride: int, padding: int, lowering: str = "auto", groups: int = 1
) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in / groups, out] -> [batch, height', width', out].

    ``padding`` zeros surround the images and each group of output channels sees its own group of input channels, as in
    PyTorch. Lowerings:

    * ``patches``: image patches times the kernel as a matrix;
    * ``winograd``: F(2x2, 3x3), 2.25 times fewer multiplications, only for 3x3 kernels of stride 1 and padding <= 2;
    * ``strips``: several outputs of a row at once, for few channels, only for stride 1 and padding < size;
    * ``shifted``: a sum of shifted images times one weight a channel, only for as many groups as input channels;
    * ``xla``: ``lax.conv_general_dilated``;
    * ``auto``: ``choose_lowering``.

    Raises:
        UserError: unknown lowering, one that does not apply, or shapes that do not fit.
    """
    _check(images.shape, kernel.shape, stride, padding, groups)
    lowering = choose_lowering(images.shape, kernel.shape, stride, padding, groups, images.dtype, lowering)
    if lowering == "xla":
        return lax.conv_general_dilated(
            images,
            kernel,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
    if lowering == "shifted":
        multiplier = kernel.shape[3] // groups
        return convolve_shifted(
            jnp.repeat(images, multiplier, -1) if multiplier > 1 else images, kernel, stride, padding
        )

    def one_group(images, kernel):
        if lowering == "winograd":
            return convolve_winograd(images, kernel, padding)
        if lowering == "strips":
            return convolve_strips(images, kernel, padding)
        return convolve_patches(images, kernel, stride, padding)

    if groups == 1:
        return one_group(images, kernel)
    images = images.reshape(*images.shape[:3], groups, -1)
    kernel = kernel.reshape(*kernel.shape[:3], groups, -1)
    outputs = jax.vmap(one_group, in_axes=3, out_axes=3)(images, kernel)
    return outputs.reshape(*outputs.shape[:3], -1)


def choose_lowering(
    image_shape: tuple[int, ...],
    kernel_shape: tuple[int, ...],
    stride: int,
    padding: int,
    groups: int = 1,
    dtype: jax.typing.DTypeLike = "float32",
    lowering: str = "auto",
) -> str:
    """The lowering that ``convolve`` uses: what ``auto`` stands for at these shapes, else ``lowering`` if it applies.

    Never ``xla``, whatever the device: it cannot be fast with a weight per client.

    Raises:
        UserError: unknown lowering, or one that does not apply.
    """
    size, _, channels, features = kernel_shape
    if lowering not in LOWERINGS:
        raise UserError(f"lowering {lowering!r}: expected one of {', '.join(LOWERINGS)}")
    winograd_applies = (size, stride) == (3, 1) and padding <= MAX_PADDING
    if lowering == "winograd" and not winograd_applies:
        raise UserError(
            f"lowering 'winograd' needs kernel size 3, stride 1, padding <= {MAX_PADDING}, "
            f"not {size}, {stride}, {padding}"
        )
    if lowering == "strips" and (stride != 1 or padding >= size):
        raise UserError(f"lowering 'strips' needs stride 1 and padding < kernel size {size}, not {stride}, {padding}")
    if lowering == "shifted" and channels != 1:
        raise UserError(
            f"lowering 'shifted' needs as many groups as input channels, not {groups} groups of {channels} channels"
        )
    if lowering != "auto":
        return lowering
    if channels == 1 and groups > 1:
        return "shifted"
    if channels <= _MAX_STRIP_CHANNELS and stride == 1 and padding < size and size > 1:
        return "strips"
    wide = min(channels, features // groups) >= _MIN_WINOGRAD_CHANNELS
    many = winograd_tiles(image_shape, padding) >= max(
        channels, features // groups
    )  # or the kernel's transform is dear
    exact = jnp.finfo(dtype).bits >= 32  # sums of up to 16 values would round 16-bit images
    return "winograd" if winograd_applies and wide and many and exact else "patches"


def _check(image_shape, kernel_shape, stride, padding, groups):
    size, _, channels, features = kernel_shape
    if image_shape[3] != groups * channels or features % groups:
        raise UserError(
            f"convolution of {image_shape[3]} channels to {features} in {groups} groups: both must be divisible by the "
            f"number of groups"
        )
    if min(image_shape[1:3]) + 2 * padding < size:
        raise UserError(
            f"images of {image_shape[1]}x{image_shape[2]} pixels are too small for a {size}x{size} convolution with "
            f"padding {padding}: it needs at least {size - 2 * padding}; use larger images or a shallower network"
        )
