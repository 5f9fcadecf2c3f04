"""Arrays of examples in 32 bits, as devices store them. Numbers whose value would change are rejected."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.annotations import as_array as as_array
from fedjax_collapse.core.options import check_value
from fedjax_collapse.core.records import UserError

_LARGEST = 2**31 - 1  # of int32
_EXACT = 2**24  # the largest integer up to which float32 is exact
_CHANNELS = (1, 3, 4)  # of images
_MIN_CLASS_LIMIT = 1000  # this many classes are accepted, however few the examples


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Converts integers of more than 32 bits to int32, and all other numbers to float32.

    Raises:
        UserError: as in ``as_array``; if a number is not finite, or does not fit.
    """
    array = as_array(name, values)
    if array.dtype.kind in "biu":
        return array if array.dtype.itemsize <= 4 else _narrow(name, array)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.all(np.isfinite(narrow)):
        if not np.all(np.isfinite(array)):
            kind = "pixels" if "images" in name else "values"
            raise UserError(f"{name}: NaN or infinity among the {kind}; expected finite numbers")
        raise UserError(f"{name}: {np.max(np.abs(array)):g} does not fit into float32; scale the values")
    return narrow


def channels_last(name: str, images: np.ndarray, channels_first: bool) -> np.ndarray:
    """Returns [examples, channels, height, width] as [examples, height, width, channels] if ``channels_first``.

    Raises:
        UserError: unless ``channels_first``, if that is the shape: as PyTorch has them. [examples, 3, 3, 3] is taken as
            it is documented, with the channels last.
    """
    if images.ndim != 4:
        return images
    if channels_first:
        return np.moveaxis(images, 1, -1)
    _, first, height, width = images.shape
    if first in _CHANNELS and width not in _CHANNELS and min(height, width) > max(_CHANNELS):
        raise UserError(
            f"{name}: shape {list(images.shape)} is {first} high with {width} channels, or has its channels first: "
            "give np.moveaxis(images, 1, -1), or channels_first=True"
        )
    return images


def as_images(name: str, images: Any, channels_first: bool = False) -> np.ndarray:
    """Converts images to uint8 or float32, channels last, and adds an axis of channels if there is none.

    Raises:
        UserError: as in ``as_numbers`` and ``channels_last``; for another shape, or for integers that float32 cannot
            represent.
    """
    images = channels_last(f"{name} images", as_array(f"{name} images", images), channels_first)
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise UserError(
            f"{name} images: shape {images.shape}, expected [examples, height, width(, channels)], none of them 0"
        )
    if images.dtype.kind in "iu" and images.dtype.itemsize > 2 and images.size:
        largest = max(int(images.max()), -int(images.min()))
        if largest > _EXACT:
            raise UserError(f"{name} images: {largest} is more than float32 can count to, {_EXACT}; scale the values")
    return images if images.dtype == np.uint8 else as_numbers(f"{name} images", images.astype(_real(images)))


def as_labels(name: str, labels: Any) -> np.ndarray:
    """Converts class labels to int32.

    Raises:
        UserError: if they are not integers from 0 in one dimension, or do not fit.
    """
    labels = as_array(name, labels)
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise UserError(
            f"{name}: expected at least one integer >= 0 in one dimension, got {labels.dtype} {labels.shape}"
        )
    return _narrow(name, labels)


def number_of_classes(labels: np.ndarray, test_labels: np.ndarray) -> int:
    """Returns the number of classes of labels without names: the largest label plus one.

    Raises:
        UserError: if it is far above the number of examples, since one wrong label would make the network that large.
    """
    count, most = 1 + int(max(labels.max(), test_labels.max())), max(_MIN_CLASS_LIMIT, len(labels) + len(test_labels))
    if count > most:
        raise UserError(
            f"data: label {count - 1} would make {count} classes of {len(labels) + len(test_labels)} examples; correct "
            f"it, or give class_names, such as tuple(map(str, range({count})))"
        )
    return count


def check_normalized(name: str, inputs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Raises UserError if ``(inputs - mean) / std`` overflows."""
    ends = np.array([[inputs.min()], [inputs.max()]] if inputs.size else [[0], [0]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        is_finite = np.all(np.isfinite((ends - mean) / std))
    if not is_finite:
        raise UserError(
            f"{name}: values of {ends.min():g} to {ends.max():g} minus the mean over the std do not fit into float32; "
            f"expected mean and std in their units"
        )


def _narrow(name, integers):
    """Converts integers to int32."""
    for end in (integers.min(), integers.max()) if integers.size else ():
        if abs(int(end)) > _LARGEST:
            raise UserError(f"{name}: {end} does not fit into 32 bits, expected at most {_LARGEST}")
    return integers.astype(np.int32)


def _real(array):
    """Returns a floating-point dtype in which finite numbers of the array stay finite."""
    return array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else np.float32


def as_names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names as a tuple; raises UserError unless they are different texts."""
    names = tuple(names) if isinstance(names, (list, np.ndarray)) else names
    check_value(what, names, tuple[str, ...])
    if len(set(names)) < len(names):
        raise UserError(f"{what} {', '.join(names)}: expected each exactly once")
    return names


def check_named(class_names: tuple[str, ...], labels: np.ndarray, test_labels: np.ndarray) -> None:
    """Raises UserError if there are class names and a label is not an index into them."""
    for name, values in (("train", labels), ("test", test_labels)) if class_names else ():
        largest = as_labels(f"{name} labels", values).max() if values.ndim == 1 else values.max(initial=0)
        if largest >= len(class_names):
            raise UserError(f"data: label {largest} has no name among {len(class_names)} class names")
