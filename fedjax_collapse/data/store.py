"""A federation on disk: the rows of all clients, one client after another, and the offsets at which each begins.

A store is a folder with ``inputs.npy`` and ``labels.npy``, whose rows are sorted by client; ``offsets.npy``, int64
[clients + 1]; ``names.txt``, a line per client; ``test_inputs.npy`` and ``test_labels.npy``; for class labels
``class_counts.npy`` [clients, classes]; and ``store.json``, which is written last. The arrays are memory-mapped:
opening a store reads the index, a few bytes per client, and a cohort reads its own rows.
"""

import contextlib
import functools
import hashlib
import json
import math
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.options import check_value
from fedjax_collapse.core.records import Damaged, UserError
from fedjax_collapse.data.arrays import as_names, as_numbers, check_named
from fedjax_collapse.data.source import OF_TOKENS
from fedjax_collapse.storage.rows import write_json

VERSION = 1
_STORE, _UNFINISHED = "store.json", "unfinished.json"
_INPUTS, _LABELS, _OFFSETS, _NAMES, _COUNTS = "inputs.npy", "labels.npy", "offsets.npy", "names.txt", "class_counts.npy"
_SIZES = "sizes.part"  # int64 of each client, until the store is finished
_TEST = {_INPUTS: "test_inputs.npy", _LABELS: "test_labels.npy"}
_COMMIT_BYTES = 2**26  # written between two points from which an interrupted writer resumes
_BLOCK = 2**22  # labels counted at a time

Progress = Callable[[int, int], None]  # number of clients, number of rows


class StoreWriter:
    """Writes a store client by client; memory does not grow with their number.

    The folder is no store until the ``with`` block ends without an exception. A writer that was interrupted, also by a
    kill, resumes: ``done`` clients are already written, and ``add`` continues with the next one. Test rows are not
    resumed; every start writes all of them.

    Args:
        folder: made if it does not exist.
        class_names: of the labels, for classification.
        mean, std: the input of the network is ``(inputs - mean) / std``; scalars or one per entry of the last axis,
            None for no normalisation.
        task: what is to be predicted, as in ``Source``.
        source: what is written, such as the path of the original; a writer only resumes the same.
        progress: called with the numbers of clients and rows that are safely on the disk, after every 64 MiB.

    Raises:
        UserError: the folder holds a store, or an unfinished one of something else; rows are not as declared.

    Examples:
        >>> with StoreWriter(folder, class_names=("cat", "dog"), mean=0.0, std=255.0) as store:
        ...     for name, inputs, labels in clients[store.done :]:
        ...         store.add(name, inputs, labels)
        ...     store.add_test(test_inputs, test_labels)
    """

    def __init__(
        self,
        folder: Path | str,
        class_names: Sequence[str] = (),
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        task: str = "classification",
        source: str = "",
        progress: Progress = lambda clients, rows: None,
    ):
        self.folder, self._progress = Path(folder), progress
        names = as_names("store: class_names", tuple(class_names))
        check_value("store: source", source, str)
        normalization = [None if x is None else np.asarray(x, np.float64).tolist() for x in (mean, std)]
        self._facts = {"class_names": list(names), "mean": normalization[0], "std": normalization[1]}
        self._facts |= {"task": task, "source": source}
        self.done, self.rows, self._chain = 0, 0, b""
        self._since, self._test_rows = 0, 0
        self._shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> "StoreWriter":
        if (self.folder / _STORE).exists():
            raise UserError(f"{self.folder}: holds a store already; remove it, or choose another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / _UNFINISHED
        if unfinished.exists():
            self._resume(_read_json(unfinished))
        elif found := sorted(path.name for path in self.folder.iterdir()):
            raise UserError(f"{self.folder}: holds {found[0]!r}; expected an empty folder, or none")
        else:
            self._note()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self._finish()
            else:
                with contextlib.suppress(OSError):  # such as a full disk, which is the error already
                    self._commit()
        finally:
            for file in self._files.values():
                file.close()

    def add(self, name: str, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Appends one client.

        Args:
            name: its name, without line breaks and not empty.
            inputs: [rows, ...], at least one row, of the same shape and type for all clients; integers of more than 32
                bits become int32, and all numbers that are not integers float32.
            labels: [rows, ...]; for classes integers from 0 in one dimension, or 0 or 1 for each class; for a task of
                tokens [rows, length].

        Raises:
            UserError: it has no rows, or rows of another shape, type or number than declared.
        """
        what = f"store: client {name!r}"
        if not isinstance(name, str) or not name or "\n" in name or "\r" in name:
            raise UserError(f"{what}: expected a name of one line")
        arrays = self._checked(what, inputs, labels)
        rows = len(arrays[_LABELS])
        link = hashlib.sha256(self._chain + name.encode() + b"\n")
        for file, array in arrays.items():
            link.update(f"{array.dtype}{array.shape}".encode() + memoryview(array).cast("B"))
            self._file(file).write(array.data)
        self._file(_SIZES).write(np.int64(rows).tobytes())
        self._file(_NAMES).write(name.encode() + b"\n")
        self._chain = link.digest()
        self.done, self.rows = self.done + 1, self.rows + rows
        self._since += sum(array.nbytes for array in arrays.values())
        if self._since >= _COMMIT_BYTES:
            self._commit()

    def add_test(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Appends rows of the common test set; for arguments and errors, see ``add``."""
        arrays = self._checked("store: test rows", inputs, labels)
        for file, array in arrays.items():
            self._file(_TEST[file]).write(array.data)
        self._test_rows += len(arrays[_LABELS])

    def _checked(self, what, inputs, labels):
        """Returns inputs and labels by file, contiguous and in the types of the store."""
        arrays = {_INPUTS: as_numbers(f"{what}: inputs", inputs), _LABELS: as_numbers(f"{what}: labels", labels)}
        lengths = [len(array) if array.ndim else 0 for array in arrays.values()]
        if lengths[0] != lengths[1] or not lengths[0]:
            raise UserError(
                f"{what}: {lengths[0]} inputs and {lengths[1]} labels; expected at least one, of equal number"
            )
        labels = arrays[_LABELS]
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            arrays[_LABELS] = labels = labels.astype(np.int32)
        classes = len(self._facts["class_names"])
        if (
            classes
            and labels.ndim == 1
            and not (labels.dtype == np.int32 and 0 <= labels.min() <= labels.max() < classes)
        ):
            raise UserError(f"{what}: labels {labels.min()} to {labels.max()}, expected integers below {classes}")
        if labels.ndim > 1:
            check_named(self._facts["class_names"], what, labels, of_tokens=self._facts["task"] in OF_TOKENS)
        for file, array in arrays.items():
            found = array.dtype, array.shape[1:]
            expected = self._shapes.setdefault(file, found)
            if found != expected:
                shapes = [f"{dtype}{list(shape)}" for dtype, shape in (found, expected)]
                raise UserError(f"{what}: rows of {file} are {shapes[0]}, expected {shapes[1]} as before")
            arrays[file] = np.ascontiguousarray(array)
        return arrays

    def _file(self, name):
        """Returns an open file of the store; arrays begin with a header whose number of rows is filled in at last."""
        if name not in self._files:
            self._files[name] = file = open(self.folder / name, "w+b")  # noqa: SIM115
            self._write_header(name, 0)
            file.flush()
        return self._files[name]

    def _write_header(self, name, rows):
        """Writes the header of an array of so many rows; its length does not depend on their number."""
        kind = {"inputs": _INPUTS, "labels": _LABELS}.get(name.removesuffix(".npy").removeprefix("test_"))
        if kind is not None:
            dtype, shape = self._shapes[kind]
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
            np.lib.format.write_array_header_1_0(self._files[name], header)

    def _commit(self):
        """Makes what was added so far the point from which a writer resumes."""
        for file in self._files.values():
            file.flush()
        files.flush(Path(file.name) for file in self._files.values())
        self._since = 0
        self._note()
        self._progress(self.done, self.rows)

    def _note(self):
        shapes = {file: [dtype.str, shape] for file, (dtype, shape) in self._shapes.items()}
        of_clients = {name: file.tell() for name, file in self._files.items() if name not in _TEST.values()}
        point = {"clients": self.done, "rows": self.rows, "chain": self._chain.hex(), "bytes": of_clients}
        write_json(self.folder / _UNFINISHED, {"version": VERSION, **self._facts, "shapes": shapes, **point})

    def _resume(self, found):
        """Cuts the files to the last point that was noted."""
        try:
            there = {name: found[name] for name in self._facts}
            self.done, self.rows, self._chain = found["clients"], found["rows"], bytes.fromhex(found["chain"])
            shapes = {file: (np.dtype(kind), tuple(shape)) for file, (kind, shape) in found["shapes"].items()}
            lengths = dict(found["bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{self.folder / _UNFINISHED}: cannot be read; remove the folder and start again") from error
        for name, value in self._facts.items() if self.done else ():
            if there[name] != value:
                raise UserError(
                    f"{self.folder}: unfinished with {name} {there[name]!r}, now {value!r}; continue with the former, "
                    "or remove the folder"
                )
        self._shapes = shapes
        for name, length in lengths.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < length:
                raise Damaged(f"{path}: shorter than what was written; remove the folder and start again")
            self._files[name] = file = open(path, "r+b")  # noqa: SIM115
            file.truncate(length)
            file.seek(length)

    def _finish(self):
        """Writes the index and everything that makes the folder a store."""
        if not self.done:
            raise UserError(f"{self.folder}: no client was added; expected at least one")
        self._commit()
        rows = {_INPUTS: self.rows, _LABELS: self.rows}
        rows |= {name: self._test_rows for name in _TEST.values() if name in self._files}
        for name, count in rows.items():
            self._files[name].seek(0)
            self._write_header(name, count)
            self._files[name].flush()
        sizes = np.fromfile(self.folder / _SIZES, np.int64)
        with files.whole(self.folder / _OFFSETS) as file:
            np.lib.format.write_array(file, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        _check_distinct(self.folder / _NAMES)
        if counts := self._count_classes(sizes):
            files.flush([counts])
        files.flush(self.folder / name for name in rows)
        content = {
            "version": VERSION, "clients": self.done, "rows": self.rows, "test_rows": self._test_rows,
            **self._facts,
            "data": hashlib.sha256(self._chain + self._test_digest()).hexdigest(), "index": _index_digest(self.folder),
        }  # fmt: skip
        write_json(self.folder / _STORE, content)
        for name in (_SIZES, _UNFINISHED):
            (self.folder / name).unlink(missing_ok=True)

    def _count_classes(self, sizes):
        """Writes the number of examples of each class at each client, if labels are classes; block by block."""
        dtype, shape = self._shapes[_LABELS]
        num_classes, path = len(self._facts["class_names"]), self.folder / _COUNTS
        if not num_classes or shape or dtype != np.int32:
            return None
        labels = np.load(self.folder / _LABELS, mmap_mode="r", allow_pickle=False)
        counts = np.lib.format.open_memmap(path, "w+", np.min_scalar_type(int(sizes.max())), (len(sizes), num_classes))
        ends = np.cumsum(sizes)
        first, per_block = 0, max(1, _BLOCK // num_classes)
        while first < len(sizes):
            start = ends[first] - sizes[first]
            last = max(first + 1, min(first + per_block, int(np.searchsorted(ends, start + _BLOCK))))
            own = sizes[first:last]
            cell = np.repeat(np.arange(len(own)), own) * num_classes + labels[start : ends[last - 1]]
            counts[first:last] = np.bincount(cell, minlength=len(own) * num_classes).reshape(-1, num_classes)
            first = last
        counts.flush()
        return path

    def _test_digest(self):
        digest = hashlib.sha256()
        for name in _TEST.values():
            if name in self._files:
                with files.reading(self.folder / name) as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.digest()


class Store:
    """A store that is open for reading; made by ``open_store``.

    Attributes:
        sizes: [clients] int32, the number of examples of each client.
        offsets: [clients + 1] int64, the first row of each client.
        inputs, labels: [examples, ...], memory-mapped.
        facts: the content of ``store.json``.
    """

    def __init__(
        self, folder: Path, facts: dict[str, Any], offsets: np.ndarray, inputs: np.ndarray, labels: np.ndarray
    ):
        self.folder, self.facts, self.offsets, self.inputs, self.labels = folder, facts, offsets, inputs, labels
        self.sizes = np.diff(offsets).astype(np.int32)

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, read when they are first needed."""
        return tuple((self.folder / _NAMES).read_text("utf-8").split("\n")[: self.num_clients])

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.facts["class_names"])

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of the common test set, memory-mapped.

        Raises:
            UserError: the store has none.
        """
        if not self.facts["test_rows"]:
            raise UserError(f"{self.folder}: the store has no test rows; convert it again with a test set")
        return tuple(_mapped(self.folder / name, self.facts["test_rows"]) for name in _TEST.values())

    @property
    def class_counts(self) -> np.ndarray | None:
        """The number of examples of each class at each client, [clients, classes], memory-mapped; None if there are no
        classes."""
        path = self.folder / _COUNTS
        return _mapped(path, self.facts["clients"])[: self.num_clients] if path.exists() else None

    def first(self, clients: int) -> "Store":
        """Returns the store with only its first clients.

        Raises:
            UserError: it has fewer.
        """
        if clients > self.num_clients:
            raise UserError(
                f"{self.folder}: {self.num_clients} clients, expected {clients}; set clients to at most that"
            )
        offsets = self.offsets[: clients + 1]
        return Store(self.folder, self.facts, offsets, self.inputs[: offsets[-1]], self.labels[: offsets[-1]])

    def rows(self, ids: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of some clients, one client after another, and the number of rows of each.

        Args:
            ids: [cohort] identities; those that are no client's, from ``num_clients`` on, have no rows.
            most: the rows of one client; of larger clients only the first ones are taken.
        """
        ids = np.asarray(ids)
        sizes = np.where(ids < self.num_clients, self.sizes.take(ids, mode="clip"), 0)
        sizes = sizes if most is None else np.minimum(sizes, most)
        firsts = self.offsets.take(ids, mode="clip")
        before = np.cumsum(sizes) - sizes
        return np.repeat(firsts - before, sizes) + np.arange(sizes.sum()), sizes

    def gather(self, ids: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns inputs and labels of some clients [rows, ...], one client after another, and sizes [cohort].

        For the arguments, see ``rows``.
        """
        rows, sizes = self.rows(ids, most)
        return self.inputs[rows], self.labels[rows], sizes

    def advise(self, ids: np.ndarray, most: int | None = None) -> None:
        """Asks the system to read the rows of some clients ahead, where it can be asked; returns at once."""
        if not hasattr(os, "posix_fadvise"):
            return
        ids = np.asarray(ids)
        ids = ids[ids < self.num_clients]
        sizes = self.sizes[ids] if most is None else np.minimum(self.sizes[ids], most)
        descriptor, start, width = self._input_file
        for first, size in zip(self.offsets[ids].tolist(), sizes.tolist(), strict=True):
            os.posix_fadvise(descriptor, start + first * width, size * width, os.POSIX_FADV_WILLNEED)

    def drop_cached(self) -> None:
        """Has the system forget the inputs that it holds in memory, where it can be asked; for measurements."""
        if hasattr(os, "posix_fadvise") and hasattr(mmap, "MADV_DONTNEED"):
            self.inputs.base.base.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self._input_file[0], 0, 0, os.POSIX_FADV_DONTNEED)

    @functools.cached_property
    def _input_file(self):
        """The descriptor of the inputs' file, where rows begin, and the bytes of one."""
        descriptor = os.open(self.folder / _INPUTS, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        width = self.inputs.itemsize * math.prod(self.inputs.shape[1:])
        return descriptor, os.fstat(descriptor).st_size - self.facts["rows"] * width, width


class StoredRows:
    """The rows of a store's clients, in the place of an index table [clients, capacity], which is never made.

    Those of a client are ``offsets[client] + arange(sizes[client])``.

    Args:
        store: the store.
        most: the rows of one client; of larger clients only the first ones are taken. None takes all.
    """

    dtype = np.dtype(np.int32)

    def __init__(self, store: Store, most: int | None = None):
        self.store, self.most = store, most
        self.sizes = store.sizes if most is None else np.minimum(store.sizes, most)
        self.shape = (store.num_clients, int(self.sizes.max()))

    def __getitem__(self, client: int) -> np.ndarray:
        """Returns the rows of one client [capacity], padded."""
        rows, _ = self.store.rows(np.array([client]), self.most)
        return np.pad(rows, (0, self.shape[1] - len(rows))).astype(self.dtype)


def open_store(folder: Path | str) -> Store:
    """Opens a store, and checks its index, but not its examples.

    Raises:
        UserError: it is not a store, or of another version.
        Damaged: the index differs from what was written, or files are missing or of another size.
    """
    folder = Path(folder)
    if not (folder / _STORE).is_file():
        is_half = (folder / _UNFINISHED).is_file()
        hint = (
            "an unfinished store; start its conversion again, which continues"
            if is_half
            else "not a store, which fedjax-collapse convert writes"
        )
        raise UserError(f"{folder}: {hint} ({_STORE} is missing)")
    facts = _read_json(folder / _STORE)
    if facts.get("version") != VERSION:
        raise UserError(
            f"{folder}: a store of version {facts.get('version')!r}, expected {VERSION}; convert its source again"
        )
    try:
        clients, rows, index = (facts[name] for name in ("clients", "rows", "index"))
        for name in ("data", "test_rows", "class_names", "mean", "std", "task"):
            facts[name]
    except KeyError as error:
        raise Damaged(
            f"{folder / _STORE}: {error.args[0]!r} is missing; restore it, or convert the source again"
        ) from None
    offsets = np.array(_mapped(folder / _OFFSETS, clients + 1))
    if _index_digest(folder) != index:
        raise Damaged(f"{folder}: {_OFFSETS} or {_NAMES} differs from what was written; restore it")
    sizes = np.diff(offsets)
    if offsets.ndim != 1 or offsets[0] != 0 or offsets[-1] != rows or sizes.min() < 0:
        raise Damaged(f"{folder / _OFFSETS}: offsets do not ascend from 0 to the {rows} rows; restore it")
    if not sizes.min():
        raise UserError(f"{folder}: client {int(sizes.argmin())} has no rows; expected at least one of every client")
    return Store(folder, facts, offsets, *(_mapped(folder / name, rows) for name in (_INPUTS, _LABELS)))


def _mapped(path, rows):
    """Returns the memory-mapped array of a file.

    Raises:
        Damaged: it is missing, cut, or does not have so many rows.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is cut or not an array"
        raise Damaged(f"{path}: {reason}; restore it, or convert the source again") from error
    if len(array) != rows:
        raise Damaged(f"{path}: {len(array)} rows, expected {rows}; restore it, or convert the source again")
    return array


def _index_digest(folder):
    """Returns the hash of everything that says which rows are whose."""
    digest = hashlib.sha256()
    for name in (_OFFSETS, _NAMES):
        try:
            with files.reading(folder / name) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise Damaged(f"{folder / name}: cannot be read ({error.strerror}); restore it") from error
    return digest.hexdigest()


def _check_distinct(path):
    """Raises UserError if two lines are equal, in memory of eight bytes per line."""

    def hashed(lines):
        return (int.from_bytes(hashlib.blake2b(line, digest_size=8).digest()) for line in lines)

    with path.open("rb") as file:
        hashes = np.sort(np.fromiter(hashed(file), np.uint64))
    if len(twice := hashes[1:][hashes[1:] == hashes[:-1]]):
        with path.open("rb") as file:
            name = next(line for line in file if next(hashed([line])) == twice[0]).decode().strip()
        raise UserError(f"store: client {name!r} was added twice; expected all of its rows in one call")


def _read_json(path):
    try:
        return dict(json.loads(files.read(path)))
    except (OSError, ValueError, TypeError) as error:
        raise Damaged(f"{path}: cannot be read ({type(error).__name__}); restore it") from error
