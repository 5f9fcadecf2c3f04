"""Encoded images with labels, from files or tables, and their decoding to arrays."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.listings import check_is_file, reason_of
from fedjax_collapse.data.reading.natural_clients import Client, hold_out, number_clients
from fedjax_collapse.data.reading.text import multi_hot

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # for others Pillow may start programs
VERSION = 3  # of the decoding; increase it whenever the arrays of a file change
_GREY = ("1", "L", "LA", "La", "F")  # and modes of 16 and 32 bits, which start with I
_UPPER_EIGHT_OF = 2**16 - 1  # the scale that selects the upper eight of 16 bits


class Encoded(NamedTuple):
    """One image, usually encoded."""

    content: bytes | Path | np.ndarray  # an array is the pixels themselves, uint8 [height, width, channels]
    where: str  # for messages
    label: int | str | tuple[str, ...]  # the class, its name before it has a number, or the names of all labels
    domain: int = 0
    client: Client | None = None  # all examples of a part have one, or none has; as for ``coarse``
    coarse: int | None = None  # the class above the class


class Decoding(NamedTuple):
    """Options of decoding images to arrays.

    Args:
        image_size: height and width to resize to; 0 keeps the size of the images, which must all be equal.
        channels: 1 (grey) or 3; 0 is 1 if the first image is grey, else 3.
        fit: whether to ``stretch`` an image to a square, or to ``crop`` its central square.
        scale: the level that becomes 255 where grey levels have more than 8 bits; ``max`` is the largest one of the
            training part, to which others are clipped; None rejects such images.
        is_clipped: whether levels above ``scale`` become 255; otherwise they are errors.
    """

    image_size: int = 0
    channels: int = 0
    fit: str = "stretch"
    scale: float | str | None = None
    is_clipped: bool = False


class Listing(NamedTuple):
    """A data set, not yet decoded."""

    train: list[Encoded]
    test: list[Encoded]
    class_names: Sequence[str]
    domain_names: Sequence[str] = ()


def decode_listing(listing: Listing, classes: Sequence[str], decoding: Decoding) -> Arrays:
    """Decodes a listing to images, labels, domains, owners and names, the fields of ``Source``.

    Args:
        classes: names of the classes to keep, in their new order; none selects all.

    Raises:
        UserError: if a class is unknown, a part is empty, a label is out of range, or an image cannot be decoded,
            differs in size from the first, or has grey levels beyond 8 bits or ``decoding.scale``.
    """
    names = list(classes or listing.class_names)
    for name in names:
        if name not in listing.class_names:
            shown = ", ".join(listing.class_names[:10]) + (", ..." if len(listing.class_names) > 10 else "")
            raise UserError(f"data: no class {name!r} among {shown}")
    are_names = any(isinstance(example.label, str) for example in listing.train[:1])
    number = {name if are_names else row: row for row, name in enumerate(listing.class_names)}
    new_label = {listing.class_names.index(name): label for label, name in enumerate(names)}
    parts = [
        [each for each in part if isinstance(each.label, tuple) or class_of(each, number) in new_label]
        for part in (listing.train, listing.test)
    ]
    arrays, clients = {"class_names": np.array(names)}, []
    for prefix, kept in zip(("", "test_"), parts, strict=True):
        if not kept:
            raise UserError(
                f"data: the {'test' if prefix else 'training'} part has no image of the {len(names)} classes"
            )
        if decoding.scale == "max":
            decoding = decoding._replace(scale=_largest_level(kept), is_clipped=True)
        labels, is_multi = [example.label for example in kept], isinstance(kept[0].label, tuple)
        numbered = multi_hot(labels, names) if is_multi else np.array([new_label[number[x]] for x in labels])
        arrays |= {f"{prefix}images": decode_all(kept, decoding), f"{prefix}labels": numbered}
        if listing.domain_names:
            arrays[f"{prefix}domains"] = np.array([example.domain for example in kept])
        if kept[0].coarse is not None:
            arrays[f"{prefix}coarse_labels"] = np.array([example.coarse for example in kept])
        clients.append([example.client for example in kept])
    arrays |= number_clients(*clients)
    if listing.domain_names:
        arrays["domain_names"] = np.array(listing.domain_names)
    if arrays["images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise UserError(
            f"data: training images are {arrays['images'].shape[1:]}, test images {arrays['test_images'].shape[1:]}; "
            f"set data.image_size and data.channels"
        )
    return arrays


def divide(
    path: str | Path, examples: Sequence[Encoded], test_fraction: float, seed: int
) -> tuple[list[Encoded], list[Encoded]]:
    """Returns training and test examples; ``hold_out`` draws the test examples from each client, else from each class.

    Examples with several labels count as one class.
    """
    clients = [example.client for example in examples if example.client is not None]
    classes = [0 if isinstance(example.label, tuple) else example.label for example in examples]
    is_test = hold_out(path, clients, classes, test_fraction, seed)
    train, test = ([example for example, out in zip(examples, is_test, strict=True) if out == part] for part in (0, 1))
    return train, test


def class_of(example: Encoded, number: Mapping[int | str, int]) -> int:
    """Returns the class of an example; ``number`` are the classes by label.

    Raises:
        UserError: its label is no class.
    """
    if example.label not in number:
        first, *_, last = map(repr, [*number, *number])
        raise UserError(
            f"{example.where}: label {example.label!r} is not among the {len(number)} classes of training, {first} to "
            f"{last}; correct it, add it to training, or use a part whose labels are known"
        )
    return number[example.label]


def decode_all(examples: Sequence[Encoded], decoding: Decoding) -> np.ndarray:
    """Returns the images [examples, height, width, channels]; for errors, see ``decode_listing``."""
    images, decoding = None, decoding._replace(channels=decoding.channels or channels_of(examples[0]))
    for row, example in enumerate(examples):
        pixels = _decode(example, decoding)
        if images is None:
            images = _empty(examples, pixels.shape)
        if pixels.shape != images.shape[1:]:
            raise UserError(
                f"{example.where}: {pixels.shape[1]} x {pixels.shape[0]} pixels, but {examples[0].where} has "
                f"{images.shape[2]} x {images.shape[1]}; set data.image_size to resize all"
            )
        images[row] = pixels
    return images


def _empty(examples, shape):
    try:
        return np.empty((len(examples), *shape), np.uint8)
    except MemoryError:
        raise UserError(
            f"{examples[0].where}: {shape[1]} x {shape[0]} pixels, for which there is no memory {len(examples)} times; "
            "set data.image_size to reduce all"
        ) from None


def _decode(example, decoding):
    """Decodes an image to [height, width, channels] uint8."""
    from PIL import Image, ImageOps

    picture = _in_8_bits(_open(example, decoding.scale), example.where, decoding)
    if picture.mode == "P":  # Pillow warns of transparent palette entries
        picture = picture.convert("RGBA")
    picture = picture.convert("L" if decoding.channels == 1 else "RGB")  # drops transparency, as torchvision does
    if size := decoding.image_size:
        resize = ImageOps.fit if decoding.fit == "crop" else Image.Image.resize
        picture = resize(picture, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(picture.height, picture.width, decoding.channels)


def channels_of(example: Encoded) -> int:
    """Returns 1 if an image is grey, else 3; for errors, see ``decode_listing``."""
    mode = _open(example).mode
    return 1 if mode in _GREY or mode.startswith("I") else 3


def _open(example, scale=_UPPER_EIGHT_OF):
    """Loads an image, rotated to its EXIF orientation."""
    from PIL import Image, ImageOps

    if isinstance(example.content, np.ndarray):
        return Image.fromarray(example.content.squeeze(-1) if example.content.shape[-1] == 1 else example.content)
    if isinstance(example.content, Path):
        check_is_file(example.content)
    content = io.BytesIO(example.content) if isinstance(example.content, bytes) else example.content
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(content, formats=FORMATS)
        with opened as file:
            has_deep_colours = len(file.getbands()) > 1 and ";16" in str(file.tile[:1])  # how they are stored
            file.load()
            ImageOps.exif_transpose(file, in_place=True)
    except PermissionError:
        raise UserError(f"{example.where}: cannot be opened (permission denied); allow reading it") from None
    except Exception as error:  # for damaged files, decoders raise various exceptions
        raise UserError(
            f"{example.where}: cannot be read as an image ({_reason(error, example)}); repair, replace or remove it"
        ) from None
    if has_deep_colours and scale != _UPPER_EIGHT_OF:
        raise UserError(
            f"{example.where}: colours of 16 bits, of which the upper eight can be read; set "
            f"data.scale={_UPPER_EIGHT_OF}, or convert them to 8 bits"
        )
    return file


def _levels_of(picture):
    """Returns the grey levels of an image that has more than 8 bits; None for others."""
    return np.asarray(picture) if picture.mode == "F" or picture.mode.startswith("I") else None


def _largest_level(examples):
    found = [levels.max() for example in examples if (levels := _levels_of(_open(example, "max"))) is not None]
    return float(max(found, default=1) or 1)


def _in_8_bits(picture, where, decoding):
    """Returns the image with grey levels of 8 bits."""
    from PIL import Image

    scale = decoding.scale
    if (levels := _levels_of(picture)) is None:
        return picture
    found = f"{where}: grey levels of more than 8 bits, {levels.min():g} to {levels.max():g}"
    if scale is None:
        raise UserError(
            f"{found}; set data.scale to the number that becomes white, or to max for the largest of the training part"
        )
    if not 0 <= levels.min() <= levels.max() <= (np.finfo(float).max if decoding.is_clipped else scale):
        raise UserError(f"{found}, expected 0 to {scale:g}; set data.scale to the number that becomes white")
    return Image.fromarray(np.rint(np.minimum(levels / scale, 1) * 255).astype(np.uint8))


def _reason(error, example):
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels"
    if isinstance(error, UnidentifiedImageError):
        size = len(example.content) if isinstance(example.content, bytes) else example.content.stat().st_size
        return f"no known image format, expected {', '.join(FORMATS)}" if size else "it is empty"
    return reason_of(error)
