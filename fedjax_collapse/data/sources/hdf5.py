"""HDF5 files with a group per client: old files of TensorFlow Federated, and files of pfl-research.

TFF: ``examples/<client>/<feature>``, a file per part. pfl: ``<part>/<client>/inputs`` and ``targets`` (StackOverflow),
or ``images`` with ``labels_row`` and ``labels_col``, the places of ones in its multi-label targets (FLAIR);
``metadata`` has the vocabulary's size or the names of labels. Links to other files are errors.

Args:
    path: the file or folder.
    max_examples: most examples of a client, the first ones; 0 takes all.
    normalisation: mean and standard deviation of the network's input, by name; a default ``''`` is the papers' of the
        data set, or ``unit``.
"""

import contextlib
import functools
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse.core.records import UserError, installed
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.reading.tables.tabular import as_square, to_levels
from fedjax_collapse.data.reading.text import Encoding, Pair
from fedjax_collapse.data.reading.untrusted import ROW, Allowance, is_unicode, parse_json
from fedjax_collapse.data.source import from_files
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import ClientExamples, Stream, encoded
from fedjax_collapse.schema.options import Natural

_HINT = "fetch or write it again"
_MOST_TOKENS = 10**6
_HEAP = b"GCOL\1\0\0\0"  # begins a heap of texts
_SEARCHED = 2**30  # bytes of a file that is searched for damaged heaps, which takes seconds

Encode = Callable[[Mapping[str, np.ndarray], int], Pair]  # of a client's group, and the most examples


def stream(path: str | Path, part: str, encode: Encode, most: int = 0, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients of the group ``part`` by name, from position ``first`` on, with at most ``most`` examples.

    Raises:
        UserError: if h5py is not installed, if the file cannot be read, or lacks a group or dataset.
    """
    with opened(path) as file:
        group = _group(path, file, part)

        def read(client):
            if not isinstance(own := group[client], _Inside):
                raise ValueError("it is no group")
            return encode(own, most or None)

        yield from encoded(((f"{path}: {part}", client, client) for client in group), read, first, _HINT)


def count_clients(path: str | Path, part: str) -> int:
    """Returns the number of clients of a part; for errors, see ``stream``."""
    with opened(path) as file:
        return len(_group(path, file, part))


@contextlib.contextmanager
def opened(path: str | Path):
    """Opens a file for reading; for errors, see ``stream``."""
    h5py = installed("h5py", "hdf5", f"{path}: HDF5 is read with the package h5py")
    with reading(path, "cannot be read as HDF5", _HINT), h5py.File(path, "r") as file:
        if file.id.get_create_plist().get_sizes() == (8, 8):
            _check_heaps(path, os.path.getsize(path), os.path.getmtime(path))
        yield _Inside(file, Allowance(path))


@functools.lru_cache
def _check_heaps(path, size, changed):
    """Raises OSError if a heap of texts has an object of size 0, for which HDF5's library would loop for ever."""
    if size > _SEARCHED:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin = content.find(_HEAP)
        while begin >= 0:
            end = min(begin + int.from_bytes(content[begin + 8 : begin + 16], "little"), size)
            place = begin + 16
            while place + 16 <= end:
                index, length = struct.unpack_from("<H6xQ", content, place)
                if not (step := 16 + (length + 7) // 8 * 8 if index else length):
                    raise OSError("a heap of texts is damaged")
                place += step
            begin = content.find(_HEAP, begin + len(_HEAP))


class _Inside(Mapping):
    """The groups and datasets in a group of a file, within the ``allowance`` and without links to other files."""

    def __init__(self, group: Any, allowance: Allowance):
        self.group, self.allowance = group, allowance

    def __iter__(self) -> Iterator[str]:
        return iter(self.group)

    def __len__(self) -> int:
        return len(self.group)

    def __contains__(self, name: object) -> bool:
        return name in self.group  # without opening it

    def __getitem__(self, path: str) -> Any:
        """Returns the group or dataset at a path.

        Raises:
            KeyError: the path does not exist.
            ValueError: the item links to another file, is too large, or is damaged.
        """
        import h5py

        item = self.group
        for name in path.split("/"):
            if not isinstance(item, h5py.Group) or name not in item:
                raise KeyError(path)
            if item.id.links.get_info(name.encode(errors="surrogateescape")).type != h5py.h5l.TYPE_HARD:
                raise ValueError(f"{path} is a link, expected a group or dataset")
            try:
                item = item[name]
            except KeyError as error:
                raise ValueError(f"{path}: {error.args[0]}") from None
        if isinstance(item, h5py.Group):
            return _Inside(item, self.allowance)
        if not isinstance(item, h5py.Dataset) or item.shape is None or item.is_virtual or item.external:
            raise ValueError(f"{path} is not a dataset of numbers or texts in this file")
        chunk = math.prod(item.chunks or ()) * item.dtype.itemsize  # is unpacked whole, for any of its numbers
        if chunk > self.allowance.left:
            raise ValueError(f"{path} has chunks of {chunk:,} bytes")
        self.allowance.take(max(item.nbytes, ROW * max(item.shape, default=0)))
        return item


def encode_texts(group: Mapping[str, np.ndarray], most: int | None, encoding: Encoding) -> Pair:
    """Returns the examples of a task from TFF's features, with a text each."""
    columns = (_named(group, name)[:most] for name in encoding.columns)
    return encoding.encode(*([text.decode(errors="surrogateescape") for text in column] for column in columns))


def encode_images(group: Mapping[str, np.ndarray], most: int | None, label: str, invert: bool) -> Pair:
    """Returns images in units of 0 to 255 and classes, from TFF's ``pixels`` or ``image`` and its feature ``label``."""
    stored = _named(group, "image" if "image" in group else "pixels")[:most]
    images = stored if stored.dtype == np.uint8 else to_levels(stored)
    if images.ndim < 4:
        images = as_square(images.reshape(len(images), -1))
    labels = _named(group, label)[:most]
    classes = labels.astype(int)
    if labels.ndim != 1 or (classes != labels).any() or classes.min(initial=0) < 0:
        raise ValueError(f"{label} is {labels.tolist()!r:.60}, expected one class from 0 for each example")
    return 255 - images if invert else images, classes


@from_files
def pfl(
    path: str | Path,
    train_part: str = "train",
    test_part: str = "val",
    fine_grained: bool = False,
    max_examples: Natural = 0,
    normalisation: Normalisation = "unit",
) -> Stream:
    """An HDF5 file of pfl-research's benchmarks, StackOverflow or FLAIR, whose users are natural clients.

    It needs the extra ``hdf5``.

    Args:
        train_part: the part with the training examples.
        test_part: the part with the test examples, ``val`` or ``test``.
        fine_grained: whether FLAIR's labels are the 1,628 fine ones instead of 17.

    Raises:
        UserError: if h5py is not installed, or if the file is damaged or of other contents; the message names it.
    """
    names, are_tokens = _pfl_facts(path, fine_grained)
    if are_tokens:
        encode = functools.partial(_encode_tokens, size=len(names))
    else:
        prefix = "fine_grained_" if fine_grained else ""
        encode = functools.partial(_encode_flair, classes=len(names), prefix=prefix)
    train, test = (functools.partial(stream, path, part, encode, max_examples) for part in (train_part, test_part))
    kind = ("next_word",) if are_tokens else ("multi_label", normalisation)
    return Stream(str(path), train, test, count_clients(path, train_part), names, *kind)


def _pfl_facts(path, fine_grained):
    """Returns the names of labels or tokens in pfl's metadata, and whether they are tokens; errors: ``stream``."""
    prefix = "fine_grained_" if fine_grained else ""
    with opened(path) as file:
        known = file.get("metadata", {})
        hint = f"expected metadata/vocabulary_size or metadata/{prefix}label_mapping"
        with reading(path, "no metadata of pfl's", hint):
            if f"{prefix}label_mapping" in known:
                numbers = parse_json(_named(known, f"{prefix}label_mapping"))
                return tuple(sorted(map(_whole, numbers), key=numbers.get)), False
            size = int(_named(known, "vocabulary_size"))
            if size > _MOST_TOKENS:
                raise ValueError(f"vocabulary_size {size}, expected at most {_MOST_TOKENS}")
            words = {}
            if "vocabulary" in known:  # a word with a slash is in a group of its own
                known["vocabulary"].group.visit(lambda word: words.update(_numbered(known["vocabulary"], word)))
            return tuple(words.get(number, f"[{number}]") for number in range(size)), True


def _encode_tokens(group: Mapping[str, np.ndarray], most: int | None, size: int) -> Pair:
    """Returns pfl's ``inputs`` and ``targets``, in the smallest type of ids below ``size``."""
    pair = _named(group, "inputs")[:most], _named(group, "targets")[:most]
    for ids in pair:
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or not 0 <= ids.min(initial=0) <= ids.max(initial=0) < size:
            raise ValueError(f"{ids.dtype}{list(ids.shape)}, expected ids below {size} of sequences")
    return tuple(ids.astype(np.int16 if size < 2**15 else np.int32) for ids in pair)


def _encode_flair(group: Mapping[str, np.ndarray], most: int | None, classes: int, prefix: str) -> Pair:
    """Returns pfl's ``images`` and multi-label targets uint8 [examples, classes]."""
    images = _dataset(group, "images")
    targets = np.zeros((len(images), classes), np.uint8)
    targets[_named(group, f"{prefix}labels_row"), _named(group, f"{prefix}labels_col")] = 1
    return images[:most], targets[:most]


def _numbered(words, word):
    item = words[word]
    return {} if isinstance(item, _Inside) else {int(item[()]): _whole(word.removeprefix('"').removesuffix('"'))}


def _whole(name):
    if not is_unicode(name):
        raise ValueError(f"the name {name!r:.40} has half a character")
    return name


def _group(path, file, part):
    group = file.get(part)
    if not isinstance(group, _Inside) or not len(group):
        known = ", ".join(str(name) for name in file if name != "metadata")
        raise UserError(f"{path}: no {part!r} with clients among {known or 'nothing'}; correct the name of the part")
    return group


def _named(group, name):
    return _dataset(group, name)[()]


def _dataset(group, name):
    if name not in group:
        raise ValueError(f"it has {', '.join(map(str, group)) or 'nothing'}, expected {name}")
    if isinstance(item := group[name], _Inside):
        raise ValueError(f"{name} is a group")
    return item
