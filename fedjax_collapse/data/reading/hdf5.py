"""HDF5 files with a group per client: the old ones of TensorFlow Federated, and those of pfl-research.

TFF: ``examples/<client>/<feature>``, a file per part. pfl: ``<part>/<client>/inputs`` and ``targets`` (StackOverflow),
or ``images`` with ``labels_row`` and ``labels_col``, the places of ones in its multi-label targets (FLAIR);
``metadata`` has the vocabulary's size or the names of labels.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.levels import as_square, to_levels
from fedjax_collapse.data.reading.listings import check_is_file
from fedjax_collapse.data.stream import ClientExamples
from fedjax_collapse.data.text import Encoding, Pair

_HINT = "fetch or write it again"

Encode = Callable[[Mapping[str, np.ndarray], int], Pair]  # of a client's group, and the most examples


def stream_hdf5(path: str | Path, part: str, encode: Encode, most: int = 0, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the clients of the group ``part`` by name, from position ``first`` on, with at most ``most`` examples.

    Raises:
        UserError: if h5py is not installed, if the file cannot be read, or lacks what is expected.
    """
    with opened(path) as file:
        group = _group(path, file, part)
        for client in itertools.islice(group, first, None):
            where = f"{part}/{client}"
            try:
                inputs, labels = encode(group[client], most or None)
                if len(inputs) != len(labels) or not len(inputs):
                    raise ValueError(f"{len(inputs)} inputs for {len(labels)} labels")
            except KeyError as error:
                names = ", ".join(group[client]) if hasattr(group[client], "keys") else "no group"
                raise UserError(f"{path}: {where} has {names}, expected {error.args[0]}; {_HINT}") from None
            except (ValueError, TypeError, IndexError) as error:
                raise UserError(f"{path}: {where} cannot be read ({error}); {_HINT}") from None
            yield ClientExamples(client, inputs, labels)


def count_clients(path: str | Path, part: str) -> int:
    """Returns the number of clients of a part; for errors, see ``stream_hdf5``."""
    with opened(path) as file:
        return len(_group(path, file, part))


def is_hdf5(path: str | Path) -> bool:
    """Returns whether the name of a file is one of HDF5."""
    return Path(path).suffix.lower() in (".h5", ".hdf5")


@contextlib.contextmanager
def opened(path: str | Path):
    """Opens a file for reading; for errors, see ``stream_hdf5``."""
    try:
        import h5py
    except ImportError:
        raise UserError(f'{path}: HDF5 is read with the package h5py: pip install "fedjax_collapse[hdf5]"') from None
    check_is_file(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: cannot be read as HDF5 ({reason}); {_HINT}") from None
    with file:
        yield file


def encode_texts(group: Mapping[str, np.ndarray], most: int | None, encoding: Encoding) -> Pair:
    """Returns the examples of a task, from TFF's features with a text each."""
    columns = (_named(group, name)[:most] for name in encoding.columns)
    return encoding.encode(*([text.decode(errors="surrogateescape") for text in column] for column in columns))


def encode_images(group: Mapping[str, np.ndarray], most: int | None, label: str, invert: bool) -> Pair:
    """Returns images in units of 0 to 255 and classes, from TFF's ``pixels`` or ``image`` and its feature ``label``."""
    stored = _named(group, "image" if "image" in group else "pixels")[:most]
    images = stored if stored.dtype == np.uint8 else to_levels(stored)
    if images.ndim < 4:
        images = as_square(images.reshape(len(images), -1))
    return 255 - images if invert else images, _named(group, label)[:most].astype(int)


def encode_tokens(group: Mapping[str, np.ndarray], most: int | None, size: int) -> Pair:
    """Returns pfl's ``inputs`` and ``targets``, in the smallest type of ids below ``size``."""
    pair = _named(group, "inputs")[:most], _named(group, "targets")[:most]
    for ids in pair:
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or not 0 <= ids.min(initial=0) <= ids.max(initial=0) < size:
            raise ValueError(f"{ids.dtype}{list(ids.shape)}, expected ids below {size} of sequences")
    return tuple(ids.astype(np.int16 if size < 2**15 else np.int32) for ids in pair)


def encode_flair(group: Mapping[str, np.ndarray], most: int | None, classes: int, prefix: str) -> Pair:
    """Returns pfl's ``images`` and multi-label targets uint8 [examples, classes]."""
    images = group["images"]
    targets = np.zeros((len(images), classes), np.uint8)
    targets[_named(group, f"{prefix}labels_row"), _named(group, f"{prefix}labels_col")] = 1
    return images[:most], targets[:most]


def pfl_facts(path: str | Path, fine_grained: bool) -> tuple[tuple[str, ...], bool]:
    """Returns the names of labels or tokens in pfl's metadata, and whether they are tokens; errors: ``stream_hdf5``."""
    prefix = "fine_grained_" if fine_grained else ""
    with opened(path) as file:
        known = file.get("metadata", {})
        try:
            if f"{prefix}label_mapping" in known:
                numbers = json.loads(known[f"{prefix}label_mapping"][()])
                return tuple(sorted(numbers, key=numbers.get)), False
            size = int(known["vocabulary_size"][()])
            words = {}
            if "vocabulary" in known:  # a word with a slash is in a group of its own
                known["vocabulary"].visititems(lambda word, item: words.update(_numbered(word, item)))
            return tuple(words.get(number, f"[{number}]") for number in range(size)), True
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise UserError(
                f"{path}: no metadata of pfl's ({type(error).__name__}: {error}); expected metadata/vocabulary_size or "
                f"metadata/{prefix}label_mapping"
            ) from None


def _numbered(word, item):
    return {int(item[()]): word.removeprefix('"').removesuffix('"')} if hasattr(item, "shape") else {}


def _group(path, file, part):
    if part not in file or not len(file[part]):
        known = ", ".join(name for name in file if name != "metadata")
        raise UserError(f"{path}: no {part!r} with clients among {known or 'nothing'}; correct the name of the part")
    return file[part]


def _named(group, name):
    if name not in group:
        raise KeyError(name)
    return group[name][()]
