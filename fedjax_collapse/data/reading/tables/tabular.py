"""Images or features in an ``npz`` file or as rows of numbers, and class names for data without names."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.arrays import channels_last
from fedjax_collapse.data.reading.listings import check_is_file
from fedjax_collapse.data.reading.untrusted import Allowance, Implausible, check_member

_DOMAINS = ("domains", "test_domains", "domain_names")
_ARRAYS = {  # names of training examples, training labels, test examples and test labels
    "images": (  # ours, Keras', MedMNIST's
        ("images", "labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ),
    "features": (("features", "labels", "test_features", "test_labels"),),
}
_OPTIONAL = ("class_names", *_DOMAINS, "owners", "test_owners", "client_names")
_EXPECTED = {  # type, number of axes, and these in words
    "images": ("uint8", 4, "[examples, height, width(, channels)]"),
    "features": ("float32", 2, "[examples, features]"),
}
_NAMED = {"labels": "class_names", "domains": "domain_names", "owners": "client_names"}  # indices, and their names


def read_arrays(path: str | Path, what: str = "images", channels_first: bool = False) -> dict[str, np.ndarray]:
    """Reads the fields of ``Source`` from an ``npz`` file; domains, owners and names are optional.

    Args:
        path: the file.
        what: ``images`` or ``features``.
        channels_first: whether images have their channels before height and width.

    Raises:
        UserError: if the file cannot be read, if it lacks arrays of the known names, types and shapes, if images have
            their channels first but not ``channels_first``, or if a label, domain or owner has no name.
    """
    keys, found = _load_arrays(path, what)
    arrays = dict(zip(_ARRAYS["images"][0], map(found.pop, keys), strict=True))  # the others are optional
    if 0 < len(given := [name for name in found if name in _DOMAINS]) < len(_DOMAINS):
        raise UserError(f"{path}: holds {', '.join(given)}; expected all of {', '.join(_DOMAINS)}, or none")
    for prefix, key in (("", keys[0]), ("test_", keys[2])):
        images, labels = arrays[f"{prefix}images"], arrays[f"{prefix}labels"].squeeze()
        if what == "images":
            images = channels_last(f"{path}: {key}", images, channels_first)
            images = images[..., None] if images.ndim == 3 else images
        kind, axes, shape = _EXPECTED[what]
        fits = images.ndim == axes and images.size and len(images) == labels.size
        if images.dtype != kind or labels.dtype.kind not in "iu" or not fits:
            raise UserError(
                f"{path}: {prefix}{what} are {images.dtype}{list(images.shape)} for {labels.size} labels of "
                f"{labels.dtype}; expected {kind} {shape} with an integer label each; convert and save them again"
            )
        arrays |= {f"{prefix}images": images, f"{prefix}labels": labels.reshape(-1)}
    shape, test_shape = (arrays[name].shape[1:] for name in ("images", "test_images"))
    if shape != test_shape:
        raise UserError(f"{path}: training {what} are {shape}, test {what} {test_shape}; expected the same shape")
    arrays = {"class_names": np.array(numbered(path, arrays["labels"]))} | found | arrays
    for prefix, (field, names) in itertools.product(("", "test_"), _NAMED.items()):
        values, labels = arrays.get(f"{prefix}{field}"), arrays[f"{prefix}labels"]
        if values is None:
            continue
        if values.shape != labels.shape or values.dtype.kind not in "iu":
            raise UserError(f"{path}: {prefix}{field} are no {labels.size} integers; expected one for every label")
        known = arrays.get(names)
        if known is not None and (known.ndim != 1 or not 0 <= values.min() <= values.max() < len(known)):
            raise UserError(
                f"{path}: {prefix}{field} are {values.min()} to {values.max()}, but there are {known.size} names for "
                "them; correct one or the other"
            )
    return arrays


def to_levels(pixels: np.ndarray) -> np.ndarray:
    """Returns pixels of 0 to 1 in units of 0 to 255: uint8 if all are multiples of 1/255, else float32.

    Raises:
        ValueError: if a pixel is not a number of 0 to 1.
    """
    values = np.asarray(pixels, np.float32)
    if not (values.min(initial=0) >= 0 and values.max(initial=0) <= 1):  # NaN, too
        raise ValueError(f"pixels are {values.min():g} to {values.max():g}, expected 0 to 1")
    values = values * 255
    levels = np.rint(values)
    return levels.astype(np.uint8) if np.abs(values - levels).max(initial=0) < 1e-3 else values


def as_square(rows: np.ndarray) -> np.ndarray:
    """Returns rows of numbers as images [examples, height, height, 1 or 3].

    Raises:
        ValueError: if the length of a row is neither a square nor three times a square.
    """
    count, length = rows.shape
    for channels in (1, 3):
        side = math.isqrt(length // channels)
        if side and side * side * channels == length:
            return rows.reshape(count, side, side, channels)
    raise ValueError(f"rows of {length} numbers, expected square images with 1 or 3 channels")


def numbered(path: str | Path, labels: Sequence[int] | np.ndarray) -> list[str]:
    """Returns numbers as class names: 0 to the largest training label.

    Raises:
        UserError: if a label exceeds the number of examples, because the network would become that large.
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < labels.size:
        raise UserError(
            f"{path}: training labels are {labels.min()} to {labels.max()} for {labels.size} examples; "
            f"correct them to classes counted from 0"
        )
    return list(map(str, range(1 + labels.max(initial=-1))))


def check_columns(path: str | Path, names: Sequence[str]) -> None:
    """Raises UserError if two columns of a table have the same name."""
    twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
    if twice:
        raise UserError(f"{path}: more than one column {twice[0]!r}; rename or remove all but one")


def check_class(where: str, label: object) -> None:
    """Raises UserError if a label is empty or negative, which marks an unknown class, or a number of many digits."""
    if not str(label).strip():
        raise UserError(f"{where}: the label is empty, expected a class; add it, or remove the row")
    if re.fullmatch(r"-\d+|\d{19,}", str(label).strip()):
        raise UserError(
            f"{where}: label {str(label).strip():.30}, expected a class from 0 or a name; correct it, or remove the row"
        )


def class_order(name: str | int) -> tuple[int, int | str]:
    """Sorts names of classes: numbers by value, before others."""
    return (0, int(name)) if str(name).isdecimal() else (1, str(name))


def number_classes(path: str | Path, labels: Sequence[str]) -> tuple[list[str], Callable[[str, str], int]]:
    """Returns the class names, and a function ``(place of a label, label) -> class``.

    Labels that are all numbers are the classes, 0 to the largest; others are names, which are sorted.

    Args:
        labels: the training labels.

    Raises:
        UserError: as in ``numbered``; the function, for a class that training does not have.
    """
    are_numbers = all(label.isdecimal() for label in labels)
    names = numbered(path, list(map(int, labels))) if are_numbers else sorted(set(labels), key=class_order)
    number = {name: row for row, name in enumerate(names)}

    def class_of(where, label):
        name = str(int(label)) if are_numbers and label.isdecimal() else label
        if name not in number:
            raise UserError(f"{where}: class {label!r} is none of the {len(names)} classes of training")
        return number[name]

    return names, class_of


def _load_arrays(path, what):
    """Returns the names of the needed arrays, the first of ``_ARRAYS`` that exist, and all arrays."""
    known = _ARRAYS[what]
    check_is_file(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = stored.files
            keys = next((keys for keys in known if all(key in names for key in keys)), ())
            wanted, allowance = [name for name in (*keys, *_OPTIONAL) if name in names], Allowance(path)
            for name in wanted:
                check_member(stored.zip, f"{name}.npy", allowance)
            arrays = {name: stored[name] for name in wanted}
    except Exception as error:  # for damaged files, zipfile and NumPy raise various exceptions
        reason = str(error) if isinstance(error, Implausible) else getattr(error, "strerror", None)
        reason = reason or type(error).__name__
        if "pickle" in str(error):
            reason = "it holds Python objects, which are never loaded"
        raise UserError(
            f"{path}: cannot be read as npz ({reason}); expected np.savez's arrays of numbers, save or fetch it again"
        ) from None
    if not keys:
        raise UserError(f"{path}: holds {', '.join(names) or 'nothing'}; expected {', '.join(known[0])}")
    return keys, arrays
