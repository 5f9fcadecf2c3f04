"""Convolutions that are fast and exact when each client has different weights.

``jax.vmap`` over a convolution's weights makes XLA emit a grouped convolution, and on a CPU a convolution inside a loop
body takes a slow path, 5 to 1000 times slower. The other lowerings are products with custom gradients, which clients
batch (figures: ``docs/performance.md``). They are also faster on a GPU, where timed; on a TPU they are slower by its
compiler's estimate (``docs/accelerators.md``).
"""

import dataclasses
import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.patches import convolve_patches
from fedjax_collapse.nn.lowerings.shifted import convolve_shifted
from fedjax_collapse.nn.lowerings.strips import convolve_strips
from fedjax_collapse.nn.lowerings.winograd import convolve_winograd, winograd_tiles
from fedjax_collapse.schema.options import OpenChoice

DType = jax.typing.DTypeLike
LOWERINGS = ("auto", "patches", "product", "shifted", "strips", "winograd2", "winograd4", "xla")
Lowering = Annotated[str, OpenChoice((*LOWERINGS, "timed"), "")]
FUSED_NORM = "fused_norm"  # in a list of lowerings: BatchNorm and ReLU together
_WINOGRAD = {"winograd2": 2, "winograd4": 4}  # outputs in a row of a tile
_KERNEL_ROWS = 64  # as many rows of Winograd's products take as long as the transforms of a kernel
_PATCH_COST = 1.5  # of a multiply-add, with the copies of patches, over Winograd's
_MAX_STRIP_CHANNELS = 4  # with more, the additional products cost more than the saved copies
_MAX_CHANNELS_ON_GPU = {"strips": 16, "patches": 64}  # of the 3x3 layers in 32 bits that were timed there


class Layer(NamedTuple):
    """Shapes and dtype of a convolution, for batches of any size."""

    image: tuple[int, ...]  # height, width, channels
    kernel: tuple[int, ...]
    stride: int
    padding: int
    groups: int
    dtype: str

    @property
    def work(self) -> int:
        """The number of multiply-adds per image in the forward pass."""
        height, width, _ = self.image
        size, *_ = self.kernel
        outputs = [(n + 2 * self.padding - size) // self.stride + 1 for n in (height, width)]
        return math.prod(outputs) * math.prod(self.kernel)

    def convolution(self, lowering: str, target: Target) -> "Convolution":
        """Returns the options of this layer's convolution with a lowering."""
        return Convolution(self.stride, self.padding, self.groups, lowering, target)


@dataclasses.dataclass(frozen=True)
class TimedLowerings:
    """The fastest lowering of each layer on a device (``engine/timing.py``); ``auto`` for other layers."""

    timed: tuple[tuple[Layer, str], ...]

    def of(self, layer: Layer) -> str:
        """Returns the lowering of a layer."""
        return dict(self.timed).get(layer, "auto")


class Convolution(NamedTuple):
    """Options of a convolution.

    As in PyTorch, images are padded with ``padding`` zeros, and each group of output channels uses only the
    corresponding group of input channels. Lowerings:

    * ``patches``: image patches times the kernel as a matrix;
    * ``winograd2``, ``winograd4``: F(2x2) and F(4x4), 2.25 and 4 times fewer multiplications of 3x3 kernels, 2.8 and
      6.3 times fewer of 5x5 kernels, only for these and stride 1;
    * ``strips``: several outputs of a row at once, for few channels, only for stride 1 and padding < size;
    * ``shifted``: a sum of shifted images times one weight per channel, only for depthwise convolutions;
    * ``product``: as ``patches``, only for 1x1 kernels without padding and groups;
    * ``xla``: ``lax.conv_general_dilated``, which clients in parallel make a grouped convolution;
    * ``auto``: the lowering that ``choose_lowering`` selects for the target;
    * several names with ``+`` between them, as ``product+xla``: the first lowering that applies to the layer;
    * ``TimedLowerings``: the fastest lowering measured for this layer.

    With ``fused_norm`` among the names, networks compute BatchNorm and ReLU together (``normalization.py``).
    """

    stride: int = 1
    padding: int = 0
    groups: int = 1
    lowering: str | TimedLowerings = "auto"
    target: Target = Target()

    def layer(self, image_shape: tuple[int, ...], kernel_shape: tuple[int, ...], dtype: DType) -> Layer:
        """Returns the layer, shapes and dtype, of this convolution."""
        sizes = self.stride, self.padding, self.groups
        return Layer(tuple(image_shape[1:]), tuple(kernel_shape), *sizes, jnp.dtype(dtype).name)


def convolve(images: jax.Array, kernel: jax.Array, how: Convolution) -> jax.Array:
    """Convolution [batch, height, width, in] * [size, size, in / groups, out] -> [batch, height', width', out].

    Raises:
        UserError: if the lowering is unknown or does not apply, or if shapes do not match.
    """
    _check(images.shape, kernel.shape, how)
    lowering, groups = choose_lowering(images.shape, kernel.shape, how, images.dtype), how.groups
    if lowering == "xla":
        return lax.conv_general_dilated(
            images,
            kernel,
            window_strides=(how.stride, how.stride),
            padding=[(how.padding, how.padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
    if lowering == "shifted":
        multiplier = kernel.shape[3] // groups
        images = jnp.repeat(images, multiplier, -1) if multiplier > 1 else images
        return convolve_shifted(images, kernel, how.stride, how.padding, how.target)

    if kernel.shape[:2] == (1, 1) and how.stride > 1 and how.padding == 0 and not how.target.is_cpu:
        # without the barrier, XLA of JAX 0.10.2 aborts when it fuses the slices with the product for a GPU
        images = lax.optimization_barrier(images[:, :: how.stride, :: how.stride])
        how = how._replace(stride=1)

    def one_group(images, kernel):
        if lowering in _WINOGRAD:
            return convolve_winograd(images, kernel, how.padding, _WINOGRAD[lowering], how.target)
        if lowering == "strips":
            return convolve_strips(images, kernel, how.padding, how.target)
        return convolve_patches(images, kernel, how.stride, how.padding, how.target)

    if groups == 1:
        return one_group(images, kernel)
    images = images.reshape(*images.shape[:3], groups, -1)
    kernel = kernel.reshape(*kernel.shape[:3], groups, -1)
    outputs = jax.vmap(one_group, in_axes=3, out_axes=3)(images, kernel)
    return outputs.reshape(*outputs.shape[:3], -1)


def choose_lowering(
    image_shape: tuple[int, ...], kernel_shape: tuple[int, ...], how: Convolution, dtype: DType = "float32"
) -> str:
    """Returns the lowering that ``convolve`` uses: ``auto`` resolved for these shapes, or the given lowering.

    On a CPU ``auto`` is never ``xla``, which is slow with different weights per client. On a TPU it is always ``xla``,
    the fastest by the compiler's estimate. On a GPU it is ``strips`` or ``patches`` for layers similar to timed ones, 2
    to 15 times as fast as ``xla`` on an H200, else ``xla``, which moves the fewest bytes (``docs/accelerators.md``).

    Raises:
        UserError: if the lowering is unknown or does not apply.
    """
    if isinstance(how.lowering, TimedLowerings):
        how = how._replace(lowering=how.lowering.of(how.layer(image_shape, kernel_shape, dtype)))
    named = _first_that_applies(kernel_shape, how)
    if named != "auto":
        return named
    if how.target.platform == "gpu":
        return _choose_on_gpu(kernel_shape, how, dtype)
    if not how.target.is_cpu:
        return "xla"
    size, _, channels, _ = kernel_shape
    padding, groups = how.padding, how.groups
    if channels == 1 and groups > 1:
        return "shifted"
    if channels <= _MAX_STRIP_CHANNELS and _strips_apply(size, how) and size > 1:
        return "strips"
    if not _winograd_applies(size, how) or not _is_exact(dtype):
        return "patches"
    costs = {"patches": _PATCH_COST * size**2 * math.prod(image_shape[:3])}
    for lowering, tile in _WINOGRAD.items():
        tiles = winograd_tiles(image_shape, size, padding, tile)
        costs[lowering] = (tile + size - 1) ** 2 * (tiles + _KERNEL_ROWS)
    return min(costs, key=costs.get)


def _choose_on_gpu(kernel_shape, how, dtype):
    """Returns the lowering for layers similar to layers timed on a GPU, else ``xla``."""
    size, _, channels, _ = kernel_shape
    if size != 3 or how.groups > 1 or channels > _MAX_CHANNELS_ON_GPU["patches"] or not _is_exact(dtype):
        return "xla"
    return "strips" if channels <= _MAX_CHANNELS_ON_GPU["strips"] and _strips_apply(size, how) else "patches"


def candidates(layer: Layer, target: Target) -> list[str]:
    """Returns the lowerings that apply to the layer and may be fastest on the target."""
    size, _, channels, _ = layer.kernel
    how = layer.convolution("auto", target)
    is_winograd = _winograd_applies(size, how) and _is_exact(layer.dtype)
    is_winograd &= target.is_cpu or size == 3  # F(4x4, 5x5) would amplify the rounding of TF32 and bfloat16 products
    applies = {
        "patches": True,
        "shifted": channels == 1 and layer.groups > 1,
        "strips": _strips_apply(size, how) and size > 1 and channels <= 4 * _MAX_STRIP_CHANNELS,
        **dict.fromkeys(_WINOGRAD, is_winograd),
        "xla": not target.is_cpu,
    }
    return [lowering for lowering in LOWERINGS if applies.get(lowering)]


def _is_exact(dtype):
    """Returns whether Winograd's transforms are exact enough: not for 16-bit images, which they round."""
    return jnp.finfo(dtype).bits >= 32


def _winograd_applies(size, how):
    return size in (3, 5) and how.stride == 1


def _strips_apply(size, how):
    return how.stride == 1 and how.padding < size


def is_norm_fused(lowering: str | TimedLowerings) -> bool:
    """Returns whether a network with this lowering computes BatchNorm and ReLU together."""
    return isinstance(lowering, str) and FUSED_NORM in lowering.split("+")


def _first_that_applies(kernel_shape, how):
    """Returns the first of the lowerings that applies to the kernel.

    Raises:
        UserError: if one of them is unknown, or if none applies.
    """
    names = [name for name in how.lowering.split("+") if name != FUSED_NORM] or ["auto"]
    for name in names:
        if name not in LOWERINGS:
            expected = ", ".join((*LOWERINGS, FUSED_NORM))
            raise UserError(f"lowering {name!r}: expected one of {expected}, or several with + between them")
    problems = {name: _problem(kernel_shape, how._replace(lowering=name)) for name in names}
    applying = [name for name in names if problems[name] is None]
    if not applying:
        raise UserError(problems[names[0]])
    return applying[0]


def _problem(kernel_shape, how):
    """Returns the reason why the lowering does not apply to the kernel, or None."""
    (size, _, channels, _), (stride, padding, groups, lowering, _) = kernel_shape, how
    needs = f"lowering {lowering!r} needs"
    if lowering in _WINOGRAD and not _winograd_applies(size, how):
        return f"{needs} kernel size 3 or 5 and stride 1, not {size} and {stride}"
    if lowering == "strips" and not _strips_apply(size, how):
        return f"{needs} stride 1 and padding < kernel size {size}, not {stride}, {padding}"
    if lowering == "shifted" and channels != 1:
        return f"{needs} as many groups as input channels, not {groups} groups of {channels} channels"
    if lowering == "product" and (size, padding, groups) != (1, 0, 1):
        return f"{needs} kernel size 1, padding 0 and 1 group, not {size}, {padding} and {groups}"
    return None


def _check(image_shape, kernel_shape, how):
    size, _, channels, features = kernel_shape
    padding, groups = how.padding, how.groups
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
