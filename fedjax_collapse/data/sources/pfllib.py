"""PFLlib's folders of data that are divided among clients: ``train/<k>.npz`` and ``test/<k>.npz`` for client k.

Each file holds one array ``data``, a pickled dict of ``y`` int64 [examples] and of ``x``: images float32 [examples,
channels, height, width], as the network sees them; features float32 [examples, d]; or texts, as integers [examples,
length], or as pairs of a list of ids, all of one length, and the number of ids that count. Loading a pickle may run any
code; ``stored_arrays.py`` parses them instead.

Args:
    path: the file or folder.
"""

import functools
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import Examples, UserError
from fedjax_collapse.data.arrays import names_by_number
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.reading.stored_arrays import read_pickled
from fedjax_collapse.data.reading.untrusted import Allowance, check_member, read_header
from fedjax_collapse.data.source import from_files
from fedjax_collapse.data.stream import ClientExamples, Stream


@from_files
def pfllib(path: str | Path) -> Stream:
    """A folder of PFLlib, ``train/<k>.npz`` and ``test/<k>.npz``, with the clients into which it is divided.

    Use it with ``partition=dict(name="given")`` and ``own_tests=dict(name="given")``. Images are float32 and already
    normalised. Rows of floats are features; rows of integers, alone or with their number, are token ids. Only arrays
    and dicts of the pickles are read.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    train, test = (functools.partial(_stream, path, part) for part in ("train", "test"))
    parts = [[(own.labels, own.inputs.dtype.kind in "iu") for own in part()] for part in (train, test)]
    labels = [np.concatenate([own for own, _ in part] or [np.zeros(0, int)]) for part in parts]
    names = names_by_number(*labels)
    scale = "" if any(are_ids for part in parts for _, are_ids in part) else (0.0, 1.0)
    return Stream(str(path), train, test, None, names, normalisation=scale, are_named=False)


def _stream(path, part, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients of a part with examples, by number, from position ``first`` on."""
    shape, place, allowance = None, 0, Allowance()
    for client in range(_count_clients(Path(path))):
        file = Path(path) / part / f"{client}.npz"
        inputs, labels = _read(file, allowance)
        if not len(labels):
            continue
        shape = shape or (inputs.shape[1:], inputs.dtype)
        if (inputs.shape[1:], inputs.dtype) != shape:
            found, expected = f"{inputs.dtype}{inputs.shape[1:]}", f"{shape[1]}{shape[0]}"
            raise UserError(f"{file}: x is {found}, but {expected} in the files before; use one shape")
        place += 1
        if place > first:
            yield ClientExamples(client, inputs, labels)


def write_part(folder: Path, examples: Examples, rows: Sequence[np.ndarray]) -> None:
    """Writes ``<k>.npz`` with the rows of client k, normalised.

    Raises:
        UserError: if such files exist, or if the examples are not images.
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
    clients = {int(file.stem) for file in files}
    if missing := set(range(len(clients))) - clients:
        raise UserError(
            f"{root}: it has {max(clients)}.npz, but no {min(missing)}.npz, in train and test; expected clients 0, 1, "
            "2, ..., fetch or write it again"
        )
    return len(clients)


def _read(file, allowance):
    """Returns the inputs and the labels of a file."""
    hint = "expected PFLlib's array data, a pickled dict of NumPy arrays x and y"
    with reading(file, "cannot be read", hint), zipfile.ZipFile(file) as archive:
        allowance.of(file)
        check_member(archive, "data.npy", allowance)
        with archive.open("data.npy") as stream:
            shape, dtype = read_header(stream)
            if shape or not dtype.hasobject:
                raise ValueError(f"it holds an array of {dtype}{list(shape)}")
            data = read_pickled(stream)
    x, labels = (data.get(name) if isinstance(data, dict) else None for name in "xy")
    inputs = _inputs_of(x)
    if inputs is None or not (_is_array(labels, "iu", 1) and len(inputs) == len(labels)):
        raise UserError(
            f"{file}: x is {_described(x)} and y {_described(labels)}; expected numbers [examples, channels, height, "
            "width] or [examples, length], or pairs of a list of ids and its length, and as many integers"
        )
    if labels.min(initial=0) < 0:
        raise UserError(f"{file}: label {labels.min()}; expected integers from 0")
    return inputs, labels


def _inputs_of(x):
    """Returns images [examples, height, width, channels], features [examples, d] or ids [examples, length], or None."""
    if _is_array(x, "fiu", 4):
        return x.astype(np.float32).transpose(0, 2, 3, 1)
    if _is_array(x, "f", 2):
        return x.astype(np.float32)
    if _is_array(x, "iu", 2):
        return x.astype(np.int32)
    if _is_array(x, "O", 2) and x.shape[1] == 2:  # PFLlib's texts
        try:
            ids = np.array(x[:, 0].tolist())
            lengths = np.array(x[:, 1].tolist())
        except ValueError:  # of several lengths
            return None
        if _is_array(ids, "iu", 2) and _is_array(lengths, "iu", 1):
            return np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0).astype(np.int32)
    return None


def _is_array(value, kinds, ndim):
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.ndim == ndim


def _described(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "missing" if value is None else f"a {type(value).__name__}"
