"""A federation on disk: the rows of all clients, one client after another, and the offset of each client.

A store is a folder with ``inputs.npy`` and ``labels.npy``, whose rows are sorted by client; ``offsets.npy``, int64
[clients + 1]; ``names.txt``, a line per client; ``checksums.bin``, of every 16 KiB of a client's rows;
``test_inputs.npy`` and ``test_labels.npy``; for class labels ``class_counts.npy`` [clients, classes]; and
``store.json``, which is written last and has the hashes of the other files. The arrays are memory-mapped: opening a
store reads and verifies the index, a few bytes per client, and a cohort reads and verifies its own rows.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from fedjax_collapse.core import files
from fedjax_collapse.core.checksums import SIZE, as_bytes, checksums
from fedjax_collapse.core.records import Damaged, UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.data.arrays import as_names, as_numbers, check_named
from fedjax_collapse.data.source import OF_TOKENS
from fedjax_collapse.schema.options import check_value

VERSION = 2  # of the layout; the first had no checksums of rows
_STORE, _UNFINISHED, _SEAL = "store.json", "unfinished.json", "sha256"
_AGAIN, _ANEW = "restore it, or convert the source again", "remove the folder and start again"
_INPUTS, _LABELS, _OFFSETS, _NAMES, _COUNTS = "inputs.npy", "labels.npy", "offsets.npy", "names.txt", "class_counts.npy"
_SUMS = "checksums.bin"  # of every block of every client, ``core/checksums.py``
_SIZES = "sizes.part"  # int64 of each client, until the store is finished
_TEST = {_INPUTS: "test_inputs.npy", _LABELS: "test_labels.npy"}
_INDEX = (_OFFSETS, _NAMES, _SUMS, _COUNTS)
_OF_CLIENTS = (_INPUTS, _LABELS, _NAMES, _SUMS, _SIZES)  # files that are written client by client
_BLOCK_BYTES = 2**14  # of the inputs that have one checksum, with their labels
_COMMIT_BYTES = 2**26  # written between two points from which an interrupted writer resumes

Progress = Callable[[int, int], None]  # number of clients, number of rows


class StoreWriter:
    """Writes a store client by client, in bounded memory.

    The folder is a store once the ``with`` block has ended without an exception. An interrupted writer resumes: it
    verifies the ``done`` clients that are written, and ``add`` continues with the next client. Every start writes all
    test rows. Only one writer at a time can open the folder.

    Args:
        folder: made if it does not exist.
        class_names: of the labels, for classification.
        mean, std: the input of the network is ``(inputs - mean) / std``; scalars or one per entry of the last axis,
            None for no normalisation.
        task: the task, as in ``Source``.
        source: names the data, such as the path of the original; a writer resumes only the same source.
        progress: called with the numbers of clients and rows that are safely on the disk, after every 64 MiB.

    Raises:
        UserError: the folder holds a store, or an unfinished store of another source; another process writes to it;
            rows are not as declared.
        Damaged: earlier files have changed.

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
        self.done = self.rows = self._since = self._test_rows = 0
        self._written = {name: hashlib.sha256() for name in (_SIZES, _NAMES, _SUMS)}
        self._shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> "StoreWriter":
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as self._opened:
            self._opened.callback(os.close, _locked(self.folder))
            self._open()
            self._opened = self._opened.pop_all()
        return self

    def _open(self):
        if (self.folder / _STORE).exists():
            raise UserError(f"{self.folder}: holds a store already; remove it, or choose another folder")
        unfinished = self.folder / _UNFINISHED
        if unfinished.exists():
            with _as_damage(unfinished, _ANEW):
                self._resume(_read_json(unfinished))
        elif found := sorted(path.name for path in self.folder.iterdir()):
            raise UserError(f"{self.folder}: holds {found[0]!r}; expected an empty folder, or none")
        else:
            self._note()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self._finish()
            else:
                with contextlib.suppress(OSError):  # such as a full disk, which is the error already
                    self._commit()
        finally:
            self._opened.close()

    def add(self, name: str, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Appends one client.

        Args:
            name: its name, without line breaks and not empty.
            inputs: [rows, ...], at least one row, of the same shape and type for all clients; integers of more than 32
                bits become int32, and all numbers that are not integers float32.
            labels: [rows, ...]; for classes integers from 0 in one dimension, or 0 or 1 for each class; for a task of
                tokens [rows, length].

        Raises:
            UserError: the client has no rows, or rows of another shape, type or number than declared.
        """
        what = f"store: client {name!r}"
        if not isinstance(name, str) or not name or "\n" in name or "\r" in name:
            raise UserError(f"{what}: expected a name of one line")
        arrays = self._checked(what, inputs, labels)
        rows = len(arrays[_LABELS])
        pieces = {_SIZES: np.int64(rows).tobytes(), _NAMES: name.encode() + b"\n"}
        pieces[_SUMS] = _checksums(*arrays.values())
        with files.named(self.folder):
            for file, piece in (arrays | pieces).items():
                self._file(file).write(piece)
        for file, piece in pieces.items():
            self._written[file].update(piece)
        self.done, self.rows = self.done + 1, self.rows + rows
        self._since += sum(array.nbytes for array in arrays.values())
        if self._since >= _COMMIT_BYTES:
            self._commit()

    def add_test(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Appends rows of the common test set; for arguments and errors, see ``add``."""
        arrays = self._checked("store: test rows", inputs, labels)
        with files.named(self.folder):
            for file, array in arrays.items():
                self._file(_TEST[file]).write(array)
        self._test_rows += len(arrays[_LABELS])

    def _checked(self, what, inputs, labels):
        """Returns inputs and labels by file, contiguous and in the types of the store."""
        arrays = {_INPUTS: as_numbers(f"{what}: inputs", inputs), _LABELS: as_numbers(f"{what}: labels", labels)}
        lengths = [len(array) if array.ndim else 0 for array in arrays.values()]
        if lengths[0] != lengths[1] or not lengths[0]:
            raise UserError(f"{what}: {lengths[0]} inputs and {lengths[1]} labels; expected equal numbers, at least 1")
        labels = arrays[_LABELS]
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            arrays[_LABELS] = labels = labels.astype(np.int32)
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
        """Returns an open file of the store; the number of rows in the header of an array is written at the end."""
        if name not in self._files:
            file = self._files[name] = self._opened.enter_context(files.writing(self.folder / name, is_new=True))
            self._write_header(name, 0)
            file.flush()
        return self._files[name]

    def _write_header(self, name, rows):
        """Writes the header of an array of so many rows; its length does not depend on their number."""
        if (kind := name.removeprefix("test_")) in _TEST:
            dtype, shape = self._shapes[kind]
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
            np.lib.format.write_array_header_1_0(self._files[name], header)

    def _commit(self):
        """Stores the point from which a writer resumes: all clients so far."""
        with files.named(self.folder):
            for file in self._files.values():
                file.flush()
        files.flush(self.folder / name for name in self._files)
        self._since = 0
        self._note()
        self._progress(self.done, self.rows)

    def _note(self):
        lengths = {name: file.tell() for name, file in self._files.items() if name in _OF_CLIENTS}
        point = {"written": self._hashes(), "bytes": lengths}
        write_json(self.folder / _UNFINISHED, _sealed(self._described() | point))

    def _described(self):
        shapes = {file: [dtype.str, shape] for file, (dtype, shape) in self._shapes.items()}
        numbers = {"clients": self.done, "rows": self.rows, "test_rows": self._test_rows}
        return {"version": VERSION, **numbers, **self._facts, "shapes": shapes}

    def _hashes(self):
        return {name: written.hexdigest() for name, written in self._written.items()}

    def _resume(self, found):
        """Cuts the files to the last stored point, and verifies them."""
        path = self.folder / _UNFINISHED
        if found.get("version") != VERSION:
            raise UserError(f"{path}: of version {found.get('version')!r}, expected {VERSION}; {_ANEW}")
        if _sealed(found) != found or not {*found.get("bytes", "?")} <= {*_OF_CLIENTS}:
            raise Damaged(f"{path}: differs from what was written; {_ANEW}")
        for name, value in self._facts.items() if found["clients"] else ():
            if found[name] != value:
                raise UserError(
                    f"{self.folder}: unfinished with {name} {found[name]!r}, now {value!r}; continue with the first, "
                    "or remove the folder"
                )
        self.done, self.rows, lengths = found["clients"], found["rows"], found["bytes"]
        self._shapes = {file: (np.dtype(kind), tuple(shape)) for file, (kind, shape) in found["shapes"].items()}
        for name, length in lengths.items():
            try:
                file = self._files[name] = self._opened.enter_context(files.writing(self.folder / name))
            except OSError as error:
                raise Damaged(f"{self.folder / name}: cannot be opened ({error.strerror}); {_ANEW}") from error
            if file.seek(0, os.SEEK_END) < length:
                raise Damaged(f"{self.folder / name}: shorter than what was written; {_ANEW}")
            file.truncate(length)
        if self.done:
            self._verify(found["written"])
        for name, length in lengths.items():
            self._files[name].seek(length)

    def _verify(self, written):
        """Raises Damaged unless the files have the written clients in this order."""
        for name in self._written:
            with files.reading(self.folder / name) as file:
                self._written[name] = hashlib.file_digest(file, "sha256")
        offsets = self._offsets()
        if self._hashes() != written or len(offsets) != self.done + 1 or offsets[-1] != self.rows:
            raise Damaged(f"{self.folder}: differs from what was written; {_ANEW}")
        self._count_rows({_INPUTS: self.rows, _LABELS: self.rows})
        arrays = [_mapped(self.folder / name, self.rows) for name in (_INPUTS, _LABELS)]
        client = Store(self.folder, {}, offsets, *arrays, _mapped_sums(self.folder)).find_damaged()
        if client is not None:
            raise Damaged(f"{self.folder}: client {client!r} differs from what was written; {_ANEW}")

    def _offsets(self):
        sizes = np.fromfile(self.folder / _SIZES, np.int64)
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _count_rows(self, rows):
        """Writes the numbers of rows, by file, into the headers of arrays."""
        for name, count in rows.items():
            self._files[name].seek(0)
            self._write_header(name, count)
            self._files[name].flush()

    def _finish(self):
        """Writes the index, and at last ``store.json``."""
        if not self.done:
            raise UserError(f"{self.folder}: no client was added; expected at least one")
        self._commit()
        rows = {_INPUTS: self.rows, _LABELS: self.rows}
        rows |= {name: self._test_rows for name in _TEST.values() if name in self._files}
        self._count_rows(rows)
        with files.whole(self.folder / _OFFSETS) as file:
            np.lib.format.write_array(file, offsets := self._offsets())
        _check_distinct(self.folder / _NAMES)
        counted = [_COUNTS] if self._count_classes(offsets) else []
        files.flush(self.folder / name for name in (*counted, *rows))
        index, test = (_digest(self.folder, names) for names in (_INDEX, _TEST.values()))
        content = self._described() | {"index": index, "test": test}
        write_json(self.folder / _STORE, _sealed(content))
        for name in (_SIZES, _UNFINISHED):
            (self.folder / name).unlink(missing_ok=True)

    def _count_classes(self, offsets):
        """If labels are classes, writes the number of examples of each class at each client and returns True."""
        num_classes, path = len(self._facts["class_names"]), self.folder / _COUNTS
        if not num_classes or self._shapes[_LABELS] != (np.int32, ()):
            return False
        path.unlink(missing_ok=True)
        labels = _mapped(self.folder / _LABELS, self.rows)
        kind = np.min_scalar_type(int(np.diff(offsets).max()))
        counts = np.lib.format.open_memmap(path, "w+", kind, (self.done, num_classes))
        for client, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
            counts[client] = np.bincount(labels[first:last], minlength=num_classes)
        counts.flush()
        return True


@dataclasses.dataclass(eq=False, repr=False)
class Store:
    """A store that is open for reading; made by ``open_store``.

    Attributes:
        sizes: [clients] int32, the number of examples of each client.
        offsets: [clients + 1] int64, the first row of each client.
        inputs, labels: [examples, ...], memory-mapped.
        facts: the content of ``store.json``.
    """

    folder: Path
    facts: dict[str, Any]
    offsets: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray
    _checksums: np.ndarray  # [blocks, 16] uint8, memory-mapped
    most: int | None = None  # most examples of a client that are read, the first ones; None reads all

    dtype = np.dtype(np.int32)  # of ``store[client]``

    def __post_init__(self):
        sizes = np.diff(self.offsets).astype(np.int32)
        self.sizes = sizes if self.most is None else np.minimum(sizes, self.most)
        self.shape = (len(sizes), int(self.sizes.max()))

    def __getitem__(self, client: int) -> np.ndarray:
        """Returns the rows of one client [capacity], padded: a store takes the place of an index table."""
        rows, _ = self.rows(np.array([client]))
        return np.pad(rows, (0, self.shape[1] - len(rows))).astype(self.dtype)

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
            Damaged: they have changed since they were written.
        """
        if not self.facts["test_rows"]:
            raise UserError(f"{self.folder}: the store has no test rows; convert it again with a test set")
        if _digest(self.folder, _TEST.values()) != self.facts["test"]:
            raise Damaged(f"{self.folder}: its test rows differ from what was written; {_AGAIN}")
        return tuple(
            _mapped(self.folder / own, self.facts["test_rows"], self.facts["shapes"][kind])
            for kind, own in _TEST.items()
        )

    @property
    def digest(self) -> str:
        """The hash of all examples and of their normalisation."""
        of_data = ("index", "test", "shapes", "class_names", "mean", "std", "task")
        return hashlib.sha256(json.dumps([self.facts[name] for name in of_data]).encode()).hexdigest()

    @property
    def class_counts(self) -> np.ndarray | None:
        """The number of examples of each class at each client, [clients, classes], memory-mapped; None if there are no
        classes."""
        path = self.folder / _COUNTS
        return _mapped(path, self.facts["clients"])[: self.num_clients] if path.exists() else None

    def first(self, clients: int) -> "Store":
        """Returns the store with only its first clients.

        Raises:
            UserError: the store has fewer clients.
        """
        if clients > self.num_clients:
            raise UserError(
                f"{self.folder}: {self.num_clients} clients, expected {clients}; set clients to at most that"
            )
        rows = self.offsets[clients]
        parts = dict(offsets=self.offsets[: clients + 1], inputs=self.inputs[:rows], labels=self.labels[:rows])
        return dataclasses.replace(self, **parts)

    def rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of some clients, one client after another, and the number of rows of each.

        Args:
            ids: [cohort] identities; from ``num_clients`` on, they have no rows.
        """
        ids = np.asarray(ids)
        sizes = np.where(ids < self.num_clients, self.sizes.take(ids, mode="clip"), 0)
        firsts = self.offsets.take(ids, mode="clip")
        before = np.cumsum(sizes) - sizes
        return np.repeat(firsts - before, sizes) + np.arange(sizes.sum()), sizes

    def gather(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns inputs and labels of some clients [rows, ...], one client after another, and sizes [cohort].

        For the arguments, see ``rows``; for errors, ``verify``.
        """
        rows, sizes = self.rows(ids)
        gathered = self.inputs[rows], self.labels[rows]
        self.verify(ids, gathered)
        return *gathered, sizes

    def verify(self, ids: np.ndarray | None = None, gathered: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        """Compares the rows of some clients, by default of all, with their checksums.

        Args:
            ids: see ``rows``.
            gathered: inputs and labels of these rows, one after another. They are compared if they are whole blocks,
                else the files.

        Raises:
            Damaged: rows have changed since they were written; the message names the client.
        """
        if (name := self.find_damaged(ids, gathered)) is not None:
            raise Damaged(f"{self.folder}: rows of client {name!r} differ from what was written; {_AGAIN}")

    def find_damaged(self, ids=None, gathered=None) -> str | None:
        """Returns the name of the first client whose rows differ, or None; for the arguments, see ``verify``."""
        ids = np.arange(self.num_clients) if ids is None else np.asarray(ids)
        ids = ids[ids < self.num_clients]
        sizes, taken = self.offsets[ids + 1] - self.offsets[ids], self.sizes[ids].astype(int)
        width = _rows_of_block(self.inputs)
        begins, counts = self.offsets[ids], -(-taken // width)  # the first row, and the number of blocks, of a client
        if gathered is None or ((taken < sizes) & (taken % width > 0)).any():
            gathered = self.inputs, self.labels
        else:
            begins, sizes = np.cumsum(taken) - taken, taken
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of a block of its client
        firsts = np.repeat(begins, counts) + number * width
        lasts = np.minimum(firsts + width, np.repeat(begins + sizes, counts))
        found = _checksums_of(gathered, firsts, lasts)
        expected = self._checksums[np.repeat(self._first_blocks[ids], counts) + number]
        if found != expected.tobytes():
            wrong = (np.frombuffer(found, np.uint8).reshape(-1, SIZE) != expected).any(axis=1).argmax()
            return self.names[np.repeat(ids, counts)[wrong]]
        return None

    @functools.cached_property
    def _first_blocks(self):
        """The first block of each client."""
        blocks = -(-np.diff(self.offsets) // _rows_of_block(self.inputs))
        return np.cumsum(blocks) - blocks

    def advise(self, ids: np.ndarray) -> None:
        """Asks the system, if possible, to read the rows of some clients ahead; returns at once."""
        if not hasattr(os, "posix_fadvise"):
            return
        ids = np.asarray(ids)
        ids = ids[ids < self.num_clients]
        descriptor, start, width = self._input_file
        for first, size in zip(self.offsets[ids].tolist(), self.sizes[ids].tolist(), strict=True):
            os.posix_fadvise(descriptor, start + first * width, size * width, os.POSIX_FADV_WILLNEED)

    def drop_cached(self) -> None:
        """Asks the system, if possible, to drop the inputs that it caches in memory; for measurements."""
        if hasattr(os, "posix_fadvise") and hasattr(mmap, "MADV_DONTNEED"):
            self.inputs.base.base.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self._input_file[0], 0, 0, os.POSIX_FADV_DONTNEED)

    @functools.cached_property
    def _input_file(self):
        """The descriptor of the inputs' file, the position of the first row, and the bytes of a row."""
        descriptor = os.open(self.folder / _INPUTS, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        width = self.inputs.itemsize * math.prod(self.inputs.shape[1:])
        return descriptor, os.fstat(descriptor).st_size - self.facts["rows"] * width, width


def open_store(folder: Path | str) -> Store:
    """Opens a store, and verifies ``store.json`` and the index; examples are verified when they are read.

    Raises:
        UserError: the folder is not a store, or of another version.
        Damaged: verified files have changed, or files are missing or of another size.
    """
    folder = Path(folder)
    if not (folder / _STORE).is_file():
        hint = "not a store, which fedjax-collapse convert writes"
        if (folder / _UNFINISHED).is_file():
            hint = "an unfinished store; start its conversion again, which continues"
        raise UserError(f"{folder}: {hint} ({_STORE} is missing)")
    facts = _read_json(folder / _STORE)
    if facts.get("version") != VERSION:
        raise UserError(
            f"{folder}: a store of version {facts.get('version')!r}, expected {VERSION}; convert its source again"
        )
    if _sealed(facts) != facts:
        raise Damaged(f"{folder / _STORE}: differs from what was written; {_AGAIN}")
    with _as_damage(folder / _STORE, _AGAIN):
        found, rows, shapes = _digest(folder, _INDEX), facts["rows"], facts["shapes"]
        for name in _INDEX:
            if found.get(name) != facts["index"].get(name):
                problem = "differs from what was written" if name in found else "is missing"
                raise Damaged(f"{folder / name}: {problem}; {_AGAIN}")
        offsets = np.array(_mapped(folder / _OFFSETS, facts["clients"] + 1, ["<i8", []]))
        examples = [_mapped(folder / name, rows, shapes[name]) for name in (_INPUTS, _LABELS)]
        if offsets[0] != 0 or offsets[-1] != rows or np.diff(offsets).min() < 1:
            raise Damaged(f"{folder / _OFFSETS}: offsets do not ascend from 0 to the {rows} rows; {_AGAIN}")
        for name in ("test_rows", "class_names", "mean", "std", "task"):
            facts[name]
        return Store(folder, facts, offsets, *examples, _mapped_sums(folder))


@contextlib.contextmanager
def _as_damage(path, advice):
    """Turns exceptions about facts of the wrong type into Damaged."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Damaged(f"{path}: no facts of a store ({type(error).__name__}); {advice}") from error


def _mapped_sums(folder):
    return np.memmap(folder / _SUMS, np.uint8, "r").reshape(-1, SIZE)


def _mapped(path, rows, kind=None):
    """Returns the memory-mapped array of a regular file.

    Args:
        path: of the file.
        rows: the number of rows.
        kind: the dtype, and the shape of a row; None for any.

    Raises:
        Damaged: the file is missing, cut, or another array.
    """
    try:
        files.reading(path).close()
        array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is cut or not an array"
        raise Damaged(f"{path}: {reason}; {_AGAIN}") from error
    if len(array) != rows:
        raise Damaged(f"{path}: {len(array)} rows, expected {rows}; {_AGAIN}")
    if kind is not None and [array.dtype.str, list(array.shape[1:])] != kind:
        raise Damaged(f"{path}: rows of {array.dtype}{list(array.shape[1:])}, expected {kind[0]}{kind[1]}; {_AGAIN}")
    return array


def _sealed(facts):
    """Returns the content of a JSON file with its own hash."""
    content = {name: value for name, value in facts.items() if name != _SEAL}
    return content | {_SEAL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _rows_of_block(inputs):
    """Returns the number of rows of a client per checksum."""
    return max(1, _BLOCK_BYTES // max(1, inputs.itemsize * math.prod(inputs.shape[1:])))


def _checksums(inputs, labels):
    """Returns the checksums of the rows of a client."""
    firsts = np.arange(0, len(labels), width := _rows_of_block(inputs))
    return _checksums_of((inputs, labels), firsts, np.minimum(firsts + width, len(labels)))


def _checksums_of(arrays, firsts, lasts):
    """Returns the checksums of rows ``firsts`` to ``lasts`` of inputs and labels."""
    (inputs, labels), count = map(as_bytes, arrays), len(arrays[1])
    of_input, of_label = (len(piece) // max(1, count) for piece in (inputs, labels))
    ends = (ends * width for width in (of_input, of_label) for ends in (firsts, lasts))
    return checksums(inputs, labels, *(each.tolist() for each in ends))


def _digest(folder, names):
    """Returns the hashes of the existing files, by name."""
    found = {}
    for name in names:
        try:
            with files.reading(folder / name) as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Damaged(f"{folder / name}: cannot be read ({error.strerror}); {_AGAIN}") from error
    return found


def _locked(folder):
    """Returns the descriptor of a folder, which other processes cannot lock until it is closed.

    Raises:
        UserError: another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    is_free = True  # also on a file system without locks
    with contextlib.suppress(OSError):
        is_free = files.lock(descriptor)
    if not is_free:
        os.close(descriptor)
        raise UserError(f"{folder}: another process writes this store; wait for it, or stop it")
    return descriptor


def _check_distinct(path):
    """Raises UserError if two lines are equal; needs eight bytes of memory per line."""
    with path.open("rb") as file:
        hashes = np.sort(np.fromiter(map(xxhash.xxh3_64_intdigest, file), np.uint64))
    if len(twice := hashes[1:][hashes[1:] == hashes[:-1]]):
        with path.open("rb") as file:
            name = next(line for line in file if xxhash.xxh3_64_intdigest(line) == twice[0]).decode().strip()
        raise UserError(f"store: client {name!r} was added twice; expected all of its rows in one call")


def _read_json(path):
    try:
        return dict(json.loads(files.read(path)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{path}: cannot be read ({type(error).__name__}); restore it, or start again") from error
