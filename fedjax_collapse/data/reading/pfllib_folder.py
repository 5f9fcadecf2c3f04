"""PFLlib's folders of data that are divided among clients: ``train/<k>.npz`` and ``test/<k>.npz`` for client k.

Each file holds one array ``data``, a pickled dict of ``x`` float32 [examples, channels, height, width], as the network
sees the images, and ``y`` int64 [examples]. A pickle may run any code when it is loaded; these are not loaded, but read
(``stored_arrays.py``).
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse.core.records import Examples, UserError
from fedjax_collapse.data.reading.listings import check_is_file
from fedjax_collapse.data.reading.stored_arrays import read_pickled

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_folder(path: str | Path) -> dict[str, np.ndarray]:
    """Reads ``images`` [examples, height, width, channels], ``labels`` and ``owners``, and each with ``test_``.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    root, arrays = Path(path), {}
    clients = range(_count_clients(root))
    shape = None
    for part, prefix in (("train", ""), ("test", "test_")):
        files = [root / part / f"{client}.npz" for client in clients]
        images, labels = zip(*map(_read, files), strict=True)
        shape = shape or images[0].shape[1:]
        for file, own in zip(files, images, strict=True):
            if own.shape[1:] != shape:
                raise UserError(f"{file}: images of {own.shape[1:]}, but {root}/train/0.npz has {shape}; use one shape")
        arrays |= {
            f"{prefix}images": np.concatenate(images).transpose(0, 2, 3, 1),
            f"{prefix}labels": np.concatenate(labels),
            f"{prefix}owners": np.repeat(clients, [len(own) for own in labels]),
        }
    return arrays


def write_part(folder: Path, examples: Examples, rows: Sequence[np.ndarray]) -> None:
    """Writes ``<k>.npz`` with the rows of client k, normalised.

    Raises:
        UserError: if there are such files already, or if the examples are not images.
        OSError: if the folder cannot be written to.
    """
    if examples.inputs.ndim != 4:
        raise UserError(f"PFLlib's folder: examples of {examples.inputs.shape[1:]}; expected height, width, channels")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.npz")):
        raise UserError(f"{folder}: has npz files, perhaps of another partition; remove them or choose another folder")
    inputs, labels = np.asarray(examples.inputs), np.asarray(examples.labels)
    mean, std = (np.asarray(number) for number in (examples.mean, examples.std))
    for client, own in enumerate(rows):
        images = (inputs[own].astype(np.float32) - mean) / std
        data = {"x": np.ascontiguousarray(images.transpose(0, 3, 1, 2)), "y": labels[own].astype(np.int64)}
        np.savez_compressed(folder / f"{client}.npz", data=data)


def _count_clients(root):
    files = [file for part in ("train", "test") for file in (root / part).glob("*.npz")]
    for file in files:
        if not (file.stem.isdecimal() and str(int(file.stem)) == file.stem):
            raise UserError(f"{file}: expected only the files of clients, 0.npz, 1.npz, ...; move it away")
    if not files:
        raise UserError(f"{root}: expected a folder of PFLlib, with train/0.npz, test/0.npz, train/1.npz, ...")
    return 1 + max(int(file.stem) for file in files)


def _read(file):
    """Returns the images [examples, channels, height, width] and the labels of a file."""
    check_is_file(file)
    try:
        data = _unpickled(file)
    except Exception as error:  # for damaged files, zipfile, NumPy and pickletools raise various exceptions
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{file}: cannot be read ({reason}); expected PFLlib's array data, a pickled dict of NumPy arrays x and y"
        ) from None
    images, labels = (data.get(name) if isinstance(data, dict) else None for name in "xy")
    if not (_is_array(images, "fiu", 4) and _is_array(labels, "iu", 1) and len(images) == len(labels)):
        raise UserError(
            f"{file}: x is {_described(images)} and y {_described(labels)}; expected numbers [examples, channels, "
            "height, width] and as many integers"
        )
    if labels.min(initial=0) < 0:
        raise UserError(f"{file}: label {labels.min()}; expected integers from 0")
    return images.astype(np.float32), labels


def _unpickled(file) -> Any:
    with zipfile.ZipFile(file) as archive, archive.open("data.npy") as stream:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
        if shape or not dtype.hasobject:
            raise ValueError(f"it holds an array of {dtype}{list(shape)}")
        return read_pickled(stream)


def _is_array(value, kinds, ndim):
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.ndim == ndim


def _described(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "missing" if value is None else f"a {type(value).__name__}"
