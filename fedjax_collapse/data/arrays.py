"""Arrays of examples in 32 bits, the precision of devices. Numbers that would change are rejected."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.annotations import as_array as as_array
from fedjax_collapse.schema.options import check_value

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
        UserError: the shape has the channels first, as in PyTorch, without ``channels_first``. [examples, 3, 3, 3]
            counts as channels last.
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
        UserError: if they are not integers from 0 in one dimension, or too large.
    """
    labels = as_array(name, labels)
    is_row = labels.ndim == 1 and len(labels) and labels.dtype.kind in "iu"
    if not is_row or labels.min() < 0:
        got = f"{labels.dtype} {labels.shape}" + (f" from {labels.min()}" if is_row else "")
        raise UserError(f"{name}: expected at least one integer >= 0 in one dimension, got {got}")
    return _narrow(name, labels)


def names_by_number(labels: np.ndarray, test_labels: np.ndarray) -> tuple[str, ...]:
    """Returns "0", "1", ... up to the largest label; none if labels are not integers in one dimension.

    Raises:
        UserError: if an integer is negative, or far above the number of examples, as it would make the network that
            large.
    """
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in (labels, test_labels)):
        return ()
    if (least := min(labels.min(initial=0), test_labels.min(initial=0))) < 0:
        raise UserError(f"data: label {least}: expected classes from 0, or class_names=() if labels are no classes")
    largest = int(max(labels.max(initial=0), test_labels.max(initial=0)))
    count, examples = largest + 1, len(labels) + len(test_labels)
    if count > max(_MIN_CLASS_LIMIT, examples):
        raise UserError(
            f"data: label {largest} would make {count} classes of {examples} examples; correct it, or give "
            f"class_names, such as tuple(map(str, range({count}))), or () if labels are no classes"
        )
    return tuple(map(str, range(count)))


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


def check_named(class_names: Sequence[str], name: str, labels: np.ndarray, of_tokens: bool = False) -> None:
    """Raises UserError if a label of the part ``name`` is not an index into the class names, if there are any.

    Labels [examples, classes] are 0 or 1 for each name, unless they are ``of_tokens``.
    """
    if not class_names:
        return
    if labels.ndim == 1:
        as_labels(f"{name} labels", labels)
    least, largest, count = labels.min(initial=0).item(), labels.max(initial=0).item(), len(class_names)
    if labels.ndim == 2 and not of_tokens:
        if labels.shape[1] != count or least < 0 or largest > 1:
            raise UserError(
                f"{name} labels: shape {labels.shape} from {least:g} to {largest:g}, expected integers [examples], or "
                f"a column of 0 and 1 for each of the {count} class names"
            )
    elif least < 0 or largest >= count:
        raise UserError(f"{name} data: label {least if least < 0 else largest} has no name among {count} class names")
