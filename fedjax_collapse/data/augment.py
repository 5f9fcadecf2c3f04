"""Augmentation of one training image, on the device: functions of an image and a key, for the caller to map.

An image is [height, width, channels], floats with the integer values 0 to 255 (not yet normalised), and so is the
result. The key should come from the identity of client, round, epoch and example, never from a position in a batch.
Each function follows the Pillow-based transform of torchvision that the released codes of the papers use.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.data import pixels
from fedjax_collapse.data.auto_augment import apply_operation, draw
from fedjax_collapse.records import Key, UserError

Image = jax.Array
Augmentation = Callable[[Image, Key], Image]

PADDINGS = ("constant", "reflect")


def crop(image: Image, key: Key, padding: int = 4, mode: str = "constant") -> Image:
    """A random part of the image's own size, of the image padded with black or with its reflection."""
    if mode not in PADDINGS:
        raise UserError(f"crop mode {mode!r}: expected one of {', '.join(PADDINGS)}")
    padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode=mode)
    row, column = jax.random.randint(key, (2,), 0, 2 * padding + 1)
    return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


def flip(image: Image, key: Key, axis: int = 1) -> Image:
    """Left and right exchanged (top and bottom for ``axis=0``), half of the time."""
    return jnp.where(jax.random.bernoulli(key), jnp.flip(image, axis), image)


def rotate(image: Image, key: Key, degrees: float, scale: float = 0.0) -> Image:
    """Turned around the middle by up to ``degrees`` to either side: nearest pixels, black corners.

    And magnified by up to ``1 + scale``, or made smaller by as much.
    """
    angle_key, scale_key = jax.random.split(key)
    angle = jax.random.uniform(angle_key, (), minval=-degrees, maxval=degrees)
    magnification = jax.random.uniform(scale_key, (), minval=1 - scale, maxval=1 + scale)
    return pixels.warp_nearest(image, pixels.rotation(angle) / magnification)


def jitter(image: Image, key: Key, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0) -> Image:
    """The three changed in random order, by factors uniform between ``max(0, 1 - strength)`` and ``1 + strength``."""
    strengths = jnp.array([brightness, contrast, saturation])
    order_key, factor_key = jax.random.split(key)
    factors = jax.random.uniform(factor_key, (3,), minval=jnp.maximum(0, 1 - strengths), maxval=1 + strengths)
    operations = (pixels.brightness, pixels.contrast, pixels.saturation)
    for kind in jax.random.permutation(order_key, 3):
        image = jax.lax.switch(kind, operations, image, factors[kind])
    return image


def cutout(image: Image, key: Key, size: int) -> Image:
    """A black square around a random pixel, cut off at the border (DeVries and Taylor 2017)."""
    height, width, _ = image.shape
    row, column = (jax.random.randint(k, (), 0, n) for k, n in zip(jax.random.split(key), (height, width), strict=True))
    rows, columns = (jnp.arange(n) - centre + size // 2 for n, centre in ((height, row), (width, column)))
    hit = ((rows >= 0) & (rows < size // 2 * 2))[:, None] & ((columns >= 0) & (columns < size // 2 * 2))[None]
    return jnp.where(hit[..., None], 0, image)


def auto_augment(image: Image, key: Key) -> Image:
    """AutoAugment's CIFAR-10 policy with the magnitudes of FedDecorr's released code (``data/auto_augment.py``)."""

    def step(image, drawn):
        return jnp.where(drawn.applied, apply_operation(image, drawn.operation, drawn.magnitude), image), None

    return jax.lax.scan(step, image, draw(key))[0]


def chain(*augmentations: Augmentation) -> Augmentation:
    """One after the other, each with its own key."""

    def augment(image, key):
        for index, augmentation in enumerate(augmentations):
            image = augmentation(image, jax.random.fold_in(key, index))
        return image

    return augment


_crop_flip = chain(crop, flip)
_reflect_crop_flip = chain(functools.partial(crop, mode="reflect"), flip)
_crop_flip_rotate = chain(crop, flip, functools.partial(rotate, degrees=15.0))
_none = chain()

# per paper and data set, as in the released code; what is not released follows the paper's text
PRESETS: dict[str, Augmentation] = {
    "none": _none,
    "feddecorr_cifar10": _crop_flip,
    "feddecorr_cifar100": chain(crop, flip, auto_augment),
    "feddecorr_tiny_imagenet": auto_augment,
    "moon_cifar10": _reflect_crop_flip,
    "moon_cifar100": _crop_flip_rotate,
    "moon_tiny_imagenet": _none,
    "fedmr_cifar10": _reflect_crop_flip,
    "fedmr_cifar100": _crop_flip_rotate,
    "fedmr_svhn": _none,
    "fedmr_fashion_mnist": _none,
    "feduv_cifar10": _none,
    "feduv_cifar100": _crop_flip,
    "feduv_stl10": _crop_flip,
    "feduv_tiny_imagenet": _crop_flip,
    "feduv_domains": _crop_flip,
    # without the crop to 200 of 224 pixels, each change always made, and four holes where there are one to eight
    "flamby_isic2019": chain(
        functools.partial(rotate, degrees=50.0, scale=0.07),
        functools.partial(jitter, brightness=0.15, contrast=0.1),
        flip,
        functools.partial(flip, axis=0),
        *[functools.partial(cutout, size=16)] * 4,
    ),
    "fedbn_domains": chain(flip, functools.partial(rotate, degrees=30.0)),
}


def preset(name: str) -> Augmentation:
    """The augmentation of a paper for a data set, by its name in ``PRESETS``; the same object every time.

    Raises:
        UserError: there is none of that name.
    """
    if name not in PRESETS:
        raise UserError(f"augmentation {name!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
