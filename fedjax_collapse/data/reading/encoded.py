"""Encoded images with labels, from files or tables, and their decoding to arrays."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.natural_clients import Client, held_out, number_clients
from fedjax_collapse.data.text import multi_hot

VERSION = 2  # of the decoding; increase it whenever the arrays of a file change
_GREY = ("1", "L", "LA", "La", "F")  # and modes of 16 bits, which start with I


class Encoded(NamedTuple):
    """One image, not yet decoded."""

    content: bytes | Path
    where: str  # for messages
    label: int | tuple[str, ...]  # the class, or the names of all labels of an example
    domain: int = 0
    client: Client | None = None  # all examples of a part have one, or none has; as for ``coarse``
    coarse: int | None = None  # the class above the class


class Listing(NamedTuple):
    """A data set, not yet decoded."""

    train: list[Encoded]
    test: list[Encoded]
    class_names: Sequence[str]
    domain_names: Sequence[str] = ()


def decode_listing(
    listing: Listing, classes: Sequence[str], image_size: int, channels: int, fit: str = "stretch"
) -> Arrays:
    """Decodes a listing to images, labels, domains, owners and names, the fields of ``Source``.

    Args:
        classes: names of the classes to keep, in their new order; none selects all.
        image_size: height and width to resize to; 0 keeps the size of the images, which must all be equal.
        channels: 1 (grey) or 3; 0 is 1 if the first image is grey, else 3.
        fit: whether to ``stretch`` an image to a square, or to ``crop`` its central square.

    Raises:
        UserError: if a class is unknown, a part is empty, a label is out of range, or an image cannot be decoded or
            differs in size from the first.
    """
    names = list(classes or listing.class_names)
    for name in names:
        if name not in listing.class_names:
            shown = ", ".join(listing.class_names[:10]) + (", ..." if len(listing.class_names) > 10 else "")
            raise UserError(f"data: no class {name!r} among {shown}")
    new_label = {listing.class_names.index(name): label for label, name in enumerate(names)}
    arrays, clients = {"class_names": np.array(names)}, []
    for prefix, part in (("", listing.train), ("test_", listing.test)):
        is_multi = isinstance(part[0].label, tuple) if part else False
        kept = [e for e in part if is_multi or _checked_label(e, listing.class_names) in new_label]
        if not kept:
            raise UserError(
                f"data: the {'test' if prefix else 'training'} part has no image of the {len(names)} classes"
            )
        arrays[f"{prefix}images"] = decode_all(kept, image_size, channels, fit)
        labels = [example.label for example in kept]
        arrays[f"{prefix}labels"] = multi_hot(labels, names) if is_multi else np.array([new_label[x] for x in labels])
        if listing.domain_names:
            arrays[f"{prefix}domains"] = np.array([example.domain for example in kept])
        if kept[0].coarse is not None:
            arrays[f"{prefix}coarse_labels"] = np.array([example.coarse for example in kept])
        clients.append([example.client for example in kept])
    train, test = clients
    if train[0] is not None:
        arrays |= number_clients(train, None if test[0] is None else test)
    if listing.domain_names:
        arrays["domain_names"] = np.array(listing.domain_names)
    if arrays["images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise UserError(
            f"data: training images are {arrays['images'].shape[1:]}, test images {arrays['test_images'].shape[1:]}; "
            f"set data.image_size and data.channels"
        )
    return arrays


def divide_by_client(
    path: str | Path, examples: Sequence[Encoded], test_fraction: float, seed: int
) -> tuple[list[Encoded], list[Encoded]]:
    """Returns training and test examples: of each client with ``n`` examples, ``floor(test_fraction * n)`` are tested.

    Raises:
        UserError: if no example would be tested.
    """
    is_test = held_out([example.client for example in examples], test_fraction, seed)
    if not is_test.any():
        raise UserError(
            f"{path}: it has no test part, and test_fraction {test_fraction:g} of each client's examples is none of "
            "any; raise data.test_fraction"
        )
    train, test = ([example for example, out in zip(examples, is_test, strict=True) if out == part] for part in (0, 1))
    return train, test


def _checked_label(example, class_names):
    if not 0 <= example.label < len(class_names):
        raise UserError(
            f"{example.where}: label {example.label} is not among the {len(class_names)} classes, 0 to "
            f"{len(class_names) - 1}; correct it, or use a part whose labels are known"
        )
    return example.label


def decode_all(examples: Sequence[Encoded], image_size: int, channels: int, fit: str = "stretch") -> np.ndarray:
    """Returns the images [examples, height, width, channels]; for arguments and errors, see ``decode_listing``."""
    images, channels = None, channels or _channels_of(examples[0])
    for row, example in enumerate(examples):
        pixels = _decode(example, image_size, channels, fit)
        if images is None:
            images = np.empty((len(examples), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise UserError(
                f"{example.where}: {pixels.shape[1]} x {pixels.shape[0]} pixels, but {examples[0].where} has "
                f"{images.shape[2]} x {images.shape[1]}; set data.image_size to resize all"
            )
        images[row] = pixels
    return images


def _decode(example, image_size, channels, fit):
    """Decodes an image to [height, width, channels] uint8."""
    from PIL import Image, ImageOps

    picture = _open(example, "L" if channels == 1 else "RGB")
    if image_size:
        resize = ImageOps.fit if fit == "crop" else Image.Image.resize
        picture = resize(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _channels_of(example):
    mode = _open(example).mode
    return 1 if mode in _GREY or mode.startswith("I") else 3


def _open(example, mode=None):
    """Loads an image, converted to ``mode`` if given."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(example.content) if isinstance(example.content, bytes) else example.content) as file:
            file.load()
            return _convert(file, mode) if mode else file
    except PermissionError:
        raise UserError(f"{example.where}: cannot be opened (permission denied); allow reading it") from None
    except Exception as error:  # for damaged files, decoders raise various exceptions
        raise UserError(
            f"{example.where}: cannot be read as an image ({_reason(error, example)}); repair, replace or remove it"
        ) from None


def _convert(picture, mode):
    """Keeps the upper eight of 16 bits, as Pillow does with colours; drops transparency, as torchvision does."""
    from PIL import Image

    if picture.mode == "F":
        raise ValueError("its pixels are floats, expected 8 or 16 bits")
    if picture.mode.startswith("I"):  # Pillow would clip values above 255
        values = np.asarray(picture)
        if values.min() < 0 or values.max() >= 2**16:
            raise ValueError("its pixels have more than 16 bits, expected 8 or 16 bits")
        picture = Image.fromarray((values.astype(np.int32) >> 8).astype(np.uint8))
    if picture.mode == "P":  # palette entries may be transparent, of which Pillow warns
        picture = picture.convert("RGBA")
    return picture.convert(mode)


def _reason(error, example):
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        size = len(example.content) if isinstance(example.content, bytes) else example.content.stat().st_size
        return "no known image format" if size else "it is empty"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
