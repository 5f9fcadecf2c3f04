"""Augmentations of one training image on the device: functions of an image and a key. The caller maps them over images.

Images and results are [height, width, channels], floats with the integer values 0 to 255 (not yet normalised). The key
should be derived from client, round, epoch and example, never from a position in a batch. By default, functions follow
torchvision's transforms of Pillow images, as the papers' released codes do. Only ``crop`` can change the size of an
image; without augmentation, the network then takes the middle of larger images (``nn.Model``).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Key, UserError, check_choice
from fedjax_collapse.data.augment import pixels
from fedjax_collapse.data.augment.policy import apply_drawn, check_rule, draw
from fedjax_collapse.schema import user_code

Image = jax.Array
Augmentation = Callable[[Image, Key], Image]

PADDINGS = ("constant", "reflect")


def crop(image: Image, key: Key, padding: int = 4, mode: str = "constant", size: int = 0) -> Image:
    """Crops a random part of the image, padded with black or its reflection, to ``size`` by ``size`` pixels.

    With ``size`` 0 the result is as large as the image.

    Raises:
        UserError: if ``mode`` is unknown, or if the image is too small.
    """
    _check_mode("crop", mode)
    wanted = (size, size) if size else image.shape[:2]
    padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode=mode)
    freedom = [have - want + 1 for have, want in zip(padded.shape[:2], wanted, strict=True)]
    if min(freedom) < 1:
        height, width, _ = image.shape
        raise UserError(
            f"images of {height} x {width} pixels are too small for an augmentation that crops to {size} x {size}: "
            f"expected images of at least {size - 2 * padding} x {size - 2 * padding}; set data.image_size"
        )
    row, column = jax.random.randint(key, (2,), 0, jnp.array(freedom))
    return jax.lax.dynamic_slice(padded, (row, column, 0), (*wanted, image.shape[2]))


def resized_crop(image: Image, key: Key, smallest: float = 0.08, largest: float = 1.0, ratio: float = 4 / 3) -> Image:
    """Enlarges a random part of the image to the image's size (torchvision's RandomResizedCrop), bilinearly.

    Its area is a uniform fraction of the image's, from ``smallest`` to ``largest``, its width over its height
    log-uniform between 1 / ``ratio`` and ``ratio``. The first of ten draws that fits is taken, or else the whole image
    (torchvision's part in the middle is the same for square images).
    """
    height, width, _ = image.shape
    area_key, ratio_key, place_key = jax.random.split(key, 3)
    area = height * width * jax.random.uniform(area_key, (10,), minval=smallest, maxval=largest)
    shape = jnp.exp(jax.random.uniform(ratio_key, (10,), minval=-jnp.log(ratio), maxval=jnp.log(ratio)))
    sizes = jnp.stack([jnp.rint(jnp.sqrt(area / shape)), jnp.rint(jnp.sqrt(area * shape))], axis=1)
    fits = jnp.all((sizes > 0) & (sizes <= jnp.array([height, width])[None]), axis=1)
    size = jnp.where(fits.any(), sizes[jnp.argmax(fits)], jnp.array([height, width])).astype(jnp.int32)
    top, left = jax.random.randint(place_key, (2,), 0, jnp.array([height, width]) - size + 1)
    return pixels.resize(image, top, left, *size)


def grey(image: Image, key: Key) -> Image:
    """Replaces colours by their grey, in all channels."""
    del key
    return pixels.saturation(image, 0)


def flip(image: Image, key: Key, axis: int = 1) -> Image:
    """Flips left and right (top and bottom for ``axis=0``) with probability 1/2."""
    return jnp.where(jax.random.bernoulli(key), jnp.flip(image, axis), image)


def any_flip(image: Image, key: Key) -> Image:
    """Flips left and right, top and bottom, or both, with equal probability (albumentations' Flip)."""
    kind = jax.random.randint(key, (), 0, 3)
    image = jnp.where(kind == 0, image, jnp.flip(image, 0))
    return jnp.where(kind == 1, image, jnp.flip(image, 1))


def rotate(image: Image, key: Key, degrees: float, scale: float = 0.0, mode: str = "constant") -> Image:
    """Rotates around the centre by up to ``degrees`` in either direction; corners are black, or reflect the image.

    Also magnifies by a factor between ``1 - scale`` and ``1 + scale``. Interpolation is by nearest pixels.
    """
    _check_mode("rotate", mode)
    angle_key, scale_key = jax.random.split(key)
    angle = jax.random.uniform(angle_key, (), minval=-degrees, maxval=degrees)
    magnification = jax.random.uniform(scale_key, (), minval=1 - scale, maxval=1 + scale)
    matrix = pixels.rotation(angle) / magnification
    middle = jnp.array(image.shape[:2]) / 2
    return pixels.warp_nearest(image, matrix, pixels.offset_about(matrix, middle), mode)


def jitter(
    image: Image, key: Key, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
) -> Image:
    """Changes brightness, contrast, saturation and hue in random order.

    The factors of the first three are uniform between ``max(0, 1 - strength)`` and ``1 + strength``. The hue is shifted
    by up to a fraction ``hue`` of the colour circle in either direction, at most 0.5; with 0 this step is omitted.

    Raises:
        UserError: if ``hue`` is out of range.
    """
    if not 0 <= hue <= 0.5:
        raise UserError(f"jitter hue {hue}: expected a part of the colour circle from 0 to 0.5")
    strengths = jnp.array([brightness, contrast, saturation])
    lowest, highest = jnp.maximum(0, 1 - strengths), 1 + strengths
    operations = (pixels.brightness, pixels.contrast, pixels.saturation)
    if hue:
        lowest, highest, operations = jnp.append(lowest, -hue), jnp.append(highest, hue), (*operations, pixels.hue)
    order_key, factor_key = jax.random.split(key)
    factors = jax.random.uniform(factor_key, lowest.shape, minval=lowest, maxval=highest)
    for kind in jax.random.permutation(order_key, len(operations)):
        image = jax.lax.switch(kind, operations, image, factors[kind])
    return image


def brightness_contrast(image: Image, key: Key, brightness: float, contrast: float) -> Image:
    """Returns ``a * image + 255 * b`` with a in 1 +- ``contrast`` and b in +- ``brightness`` (albumentations)."""
    limits = jnp.array([contrast, brightness])
    change, shift = jax.random.uniform(key, (2,), minval=-limits, maxval=limits)
    return jnp.floor(jnp.clip((1 + change) * image + 255 * shift, 0, 255))


def coarse_dropout(image: Image, key: Key, max_holes: int = 8, size: int = 16) -> Image:
    """Draws one to ``max_holes`` black squares within the image (albumentations)."""
    count_key, *keys = jax.random.split(key, 3)
    is_hole = jnp.arange(max_holes) < jax.random.randint(count_key, (), 1, max_holes + 1)
    rows, columns = (
        jnp.arange(length)[None] - jax.random.randint(k, (max_holes, 1), 0, length - size + 1)
        for k, length in zip(keys, image.shape[:2], strict=True)
    )
    in_rows, in_columns = is_hole[:, None] & (rows >= 0) & (rows < size), (columns >= 0) & (columns < size)
    hit = jnp.any(in_rows[:, :, None] & in_columns[:, None], axis=0)
    return jnp.where(hit[..., None], 0, image)


def auto_augment(image: Image, key: Key, rule: str = "feddecorr") -> Image:
    """Applies AutoAugment's CIFAR-10 policy, as FedDecorr's released code or as torchvision.

    See ``data/augment/policy.py`` for ``rule``.
    """
    check_rule(rule)
    return jax.lax.scan(lambda image, drawn: (apply_drawn(image, drawn, rule), None), image, draw(key, rule))[0]


def chain(*augmentations: Augmentation) -> Augmentation:
    """Applies augmentations in order, each with a separate key."""

    def augment(image, key):
        for index, augmentation in enumerate(augmentations):
            image = augmentation(image, jax.random.fold_in(key, index))
        return image

    augment.__doc__ = ", ".join(map(in_words, augmentations)) or "no change"
    return augment


def sometimes(augmentation: Augmentation, probability: float = 0.5) -> Augmentation:
    """Applies the augmentation with the given probability; it must not change the size of the image."""

    def augment(image, key):
        decision_key, own_key = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(decision_key, probability), augmentation(image, own_key), image)

    augment.__doc__ = f"sometimes {in_words(augmentation)}"
    return augment


def in_words(augmentation: Augmentation) -> str:
    """Returns the functions of an augmentation of this module with their options, as text."""
    if isinstance(augmentation, functools.partial):
        options = ", ".join(f"{name}={value}" for name, value in augmentation.keywords.items())
        return f"{augmentation.func.__name__}({options})"
    return augmentation.__doc__ if augmentation.__qualname__.endswith(".augment") else augmentation.__name__


def output_shape(augmentation: Augmentation | None, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns the shape of an augmented image: height, width, channels.

    Raises:
        UserError: if the images are too small for the augmentation.
    """
    if augmentation is None:
        return image_shape
    user_code.check_signature("augmentation", augmentation, "image", "key")
    image = jax.ShapeDtypeStruct(image_shape, jnp.float32)
    augmented = user_code.call("augmentation", jax.eval_shape, augmentation, image, jax.random.key(0))
    if not isinstance(augmented, jax.ShapeDtypeStruct):
        raise UserError(f"augmentation: it returned {type(augmented).__name__}, expected an image")
    return augmented.shape


def _check_mode(what, mode):
    check_choice(f"{what} mode", mode, PADDINGS)


_crop_flip = chain(crop, flip)
_reflect_crop_flip = chain(functools.partial(crop, mode="reflect"), flip)
_crop_flip_rotate = chain(crop, flip, functools.partial(rotate, degrees=15.0))
_auto_augment_torchvision = functools.partial(auto_augment, rule="torchvision")
_none = chain()

# The shear by 0.1 degrees, less than half a pixel, is omitted. Unlike FLamby, this uses nearest pixels instead of
# linear interpolation, fills the borders of a shrunken image by reflection, and draws the number of holes per image.
_flamby_isic2019 = chain(
    sometimes(functools.partial(rotate, degrees=0.0, scale=0.07, mode="reflect")),
    sometimes(functools.partial(rotate, degrees=50.0, mode="reflect")),
    sometimes(functools.partial(brightness_contrast, brightness=0.15, contrast=0.1)),
    sometimes(any_flip),
    functools.partial(crop, padding=0, size=200),
    sometimes(coarse_dropout),
)


def _two_views(smallest):
    """Returns the augmentation of self-supervised learning on images of 32 x 32 pixels: no blur."""
    colours = functools.partial(jitter, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    crop = functools.partial(resized_crop, smallest=smallest)
    return chain(crop, flip, sometimes(colours, 0.8), sometimes(grey, 0.2))


# per paper and data set, as in the released code, or as in the paper's text where no code was released
PRESETS: dict[str, Augmentation] = {
    "none": _none,
    "feddecorr_cifar10": _crop_flip,
    "feddecorr_cifar100": chain(crop, flip, auto_augment),
    "feddecorr_tiny_imagenet": auto_augment,
    "feddecorr_cifar100_torchvision": chain(crop, flip, _auto_augment_torchvision),
    "feddecorr_tiny_imagenet_torchvision": _auto_augment_torchvision,
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
    "flamby_isic2019": _flamby_isic2019,
    "easyfl_cifar10": _two_views(0.08),
    "fedu2_cifar10": _two_views(0.2),
    "views_of_digits": functools.partial(resized_crop, smallest=0.4),  # ours: no flip, no colours
    "fedbn_domains": chain(flip, functools.partial(rotate, degrees=30.0)),
}


def preset(name: str) -> Augmentation:
    """Returns the augmentation of a paper for a data set, by its name in ``PRESETS``; always the same object.

    Raises:
        UserError: if the name is unknown.
    """
    check_choice("augmentation", name, PRESETS)
    return PRESETS[name]
