"""Data sets as torchvision stores them, in folders below its ``root``.

CIFAR's pickles are parsed, not executed (``stored_arrays.py``). All images are held in memory in their stored form.
"""

import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.images.encoded import Encoded, Listing
from fedjax_collapse.data.reading.listings import check_is_file, reading
from fedjax_collapse.data.reading.stored_arrays import read_pickled
from fedjax_collapse.data.reading.untrusted import Allowance, unzipped

_AS_TORCHVISION = "fetch it again, as torchvision leaves it"
_DIGITS = tuple("0123456789")
_CLOTHES = (  # of Fashion-MNIST
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


class _Layout(NamedTuple):
    folder: str  # below torchvision's ``root``
    parts: tuple[tuple[str, ...], tuple[str, ...]]  # training and test files; the first identifies the data set
    read: Callable[[Path], list[Encoded]]  # the examples of one of them
    class_names: Callable[[Path], Sequence[str]]  # of the folder
    files: str = "*"  # all of them, as a pattern


def folder_of(name: str, root: Path) -> Path | None:
    """Returns the folder with the files of a data set; None if it is not there.

    Args:
        name: one of ``LAYOUTS``.
        root: torchvision's, or that folder itself.
    """
    layout = LAYOUTS[name]
    others = {Path(other.folder).parts[0] for other in LAYOUTS.values() if other.folder} - {*Path(layout.folder).parts}
    for folder in (root / layout.folder, root, root / Path(layout.folder).name):
        is_other = others & {*folder.absolute().parts}  # MNIST and Fashion-MNIST have files of the same names
        if not is_other and any(os.path.isfile(folder / f"{layout.parts[0][0]}{end}") for end in ("", ".gz")):
            return folder
    return None


def list_files(name: str, folder: Path) -> Listing:
    """Lists the images of a folder that ``folder_of`` returned.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    layout = LAYOUTS[name]
    parts = ([each for file in part for each in _read_with(folder / file, layout.read)] for part in layout.parts)
    return Listing(*parts, layout.class_names(folder))


def _examples(file, images, labels, coarse=None):
    """Returns the examples of a file, after checks of its arrays; images are channels last."""
    labels, coarse = (None if values is None else np.asarray(values) for values in (labels, coarse))
    if images.dtype != np.uint8 or labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise UserError(
            f"{file}: images are {images.dtype}{list(images.shape)}, labels {labels.dtype}{list(labels.shape)}; "
            f"expected uint8 and an integer for each; {_AS_TORCHVISION}"
        )
    above = [None] * len(labels) if coarse is None else coarse.tolist()
    return [
        Encoded(image, f"{file}, image {row}", label, coarse=own)
        for row, (image, label, own) in enumerate(zip(images, labels.tolist(), above, strict=True))
    ]


def _read_with(file: Path, read: Callable[[Path], Any]):
    """Returns ``read(file)``; any exception of a damaged file becomes a UserError."""
    with reading(file, "cannot be read", _AS_TORCHVISION):
        return read(file)


def _unpickled(file):
    with open(file, "rb") as stream:
        found = read_pickled(stream)
    if not isinstance(found, dict):
        raise ValueError("it is no pickled dict")
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}


def _cifar(label: str, coarse: str, file: Path) -> list[Encoded]:
    found = _unpickled(file)
    images, labels, above = (found.get(key) for key in ("data", label, coarse))
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3 * 32 * 32:
        raise UserError(f"{file}: data of shape {np.shape(images)}, expected [images, 3072]; {_AS_TORCHVISION}")
    return _examples(file, images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, above)


def _cifar_names(meta: str, key: str, folder: Path) -> list[str]:
    def read(file):
        return [name.decode() if isinstance(name, bytes) else str(name) for name in _unpickled(file).get(key, ())]

    return _read_with(folder / meta, read)


def _mnist(file):
    """Reads two IDX files, plain or compressed."""
    labels = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    return _examples(file, _idx(3, file)[..., None], _read_with(labels, functools.partial(_idx, 1)))


def _idx(axes, file):
    """Reads an IDX file: two zeros, the type (8 is a byte), the number of axes, their lengths, and the bytes."""
    if file.is_file():
        content = file.read_bytes()
    else:
        check_is_file(compressed := file.with_name(f"{file.name}.gz"))
        content = unzipped(compressed)
    if content[:4] != bytes((0, 0, 8, axes)):
        raise ValueError(f"it begins with {content[:4].hex()}, expected {bytes((0, 0, 8, axes)).hex()}")
    shape = np.frombuffer(content, ">u4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _stl10(file):
    """Images are stored by channel and column; classes from 1."""
    images = np.fromfile(file, np.uint8).reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)
    labels = _read_with(file.with_name(file.name.replace("X", "y")), lambda file: np.fromfile(file, np.uint8))
    return _examples(file, images, labels.astype(int) - 1)


def _stl10_names(folder):
    return _read_with(folder / "class_names.txt", lambda file: file.read_text(encoding="utf-8").split())


def _svhn(file):
    """Images are [height, width, channels, images]; the digit 0 has the label 10."""
    import scipy.io

    for _, shape, _ in scipy.io.whosmat(file):
        Allowance(file).take(math.prod(shape))
    content = scipy.io.loadmat(file, variable_names=("X", "y"))
    images, labels = (np.asarray(content.get(name, ())) for name in "Xy")
    if images.ndim != 4 or images.shape[2] != 3:
        raise UserError(f"{file}: X is of shape {images.shape}, expected [32, 32, 3, images]; {_AS_TORCHVISION}")
    return _examples(file, images.transpose(3, 0, 1, 2), labels.reshape(-1) % 10)


_IDX = ("train-images-idx3-ubyte",), ("t10k-images-idx3-ubyte",)
LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        (tuple(f"data_batch_{part}" for part in range(1, 6)), ("test_batch",)),
        functools.partial(_cifar, "labels", ""),
        functools.partial(_cifar_names, "batches.meta", "label_names"),
    ),
    "cifar100": _Layout(
        "cifar-100-python",
        (("train",), ("test",)),
        functools.partial(_cifar, "fine_labels", "coarse_labels"),
        functools.partial(_cifar_names, "meta", "fine_label_names"),
    ),
    "mnist": _Layout("MNIST/raw", _IDX, _mnist, lambda _: _DIGITS),
    "fashion_mnist": _Layout("FashionMNIST/raw", _IDX, _mnist, lambda _: _CLOTHES),
    "stl10": _Layout("stl10_binary", (("train_X.bin",), ("test_X.bin",)), _stl10, _stl10_names),
    "svhn": _Layout("", (("train_32x32.mat",), ("test_32x32.mat",)), _svhn, lambda _: _DIGITS, "t*_32x32.mat"),
}
