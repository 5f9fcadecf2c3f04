"""Sources of data with natural clients, and tables that may have them; ``sources.py`` has them among its own.

Args:
    path: the file or folder.
    validation: what becomes of a part for validation next to a training and a test part: unused, test or train.
    test_fraction: share of each client's examples that is held out for the test, where there is no test part.
    seed: seed of the random split into training and test.
    classes: names of the classes to keep, in their new order; none selects all.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size of the images, which must be equal.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    scale: the number that becomes white where grey levels have more than 8 bits; ``max`` for the largest of the
        training part. Without it, such an image is an error.
    normalisation: mean and standard deviation of the network's input, by name (``normalisations.py``): unit, half,
        cifar10, cifar10_fedmr, cifar10_feduv, cifar100, svhn or imagenet.
    image_column: the column with the images; empty to find it.
    label_column: the column with the classes, integers, truth values or names; empty to find it.
    client_column: the column with the natural clients, such as ``writer_id``, for the partition ``given``.
    coarse_column: the column with the classes above the classes, such as ``coarse_label``, for ``pachinko``.
    max_examples: most examples of a client, its first ones; 0 takes all.
    vocabulary: the file of words, most frequent first: lines of a word and its count, or JSON; empty to count the words
        of the training part, where this is possible.
    vocabulary_size: the number of words.
    length: tokens, words or characters of a sequence; 0 is the published number.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.clients import hdf5, pfllib_folder, tff_sqlite
from fedjax_collapse.data.source import from_files
from fedjax_collapse.data.sources.hugging_face import parquet_clients
from fedjax_collapse.data.sources.leaf import leaf
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.sources.tables import table
from fedjax_collapse.data.stream import Stream
from fedjax_collapse.schema.options import Count, Natural

TASKS = ("classification", "next_word", "next_character", "multi_label")


@from_files
def tff(
    path: str | Path,
    train_split: str = "train",
    test_split: str = "test",
    test_file: str | Path = "",
    task: Annotated[str, TASKS] = "classification",
    label: str = "label",
    invert: bool = False,
    max_examples: Natural = 0,
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    tags: str | Path = "",
    tags_size: Count = 500,
    length: Natural = 0,
    normalisation: Normalisation = "unit",
) -> Stream:
    """The data of TensorFlow Federated, SQLite or older HDF5 files, whose clients are natural ones. TensorFlow is not
    needed.

    Images (EMNIST, CelebA, CIFAR-100) are classified. Of texts, ``task`` is ``next_word`` (StackOverflow),
    ``multi_label`` (its tags) or ``next_character`` (Shakespeare).

    Args:
        path: the file, unpacked (``unlzma emnist_all.sqlite.lzma``), or the HDF5 file of the training part.
        train_split: name of the split with the training examples: ``all_train``, ``split_by_examples_train``, ...
        test_split: name of the split with the test examples, such as ``heldout`` of StackOverflow.
        test_file: the HDF5 file of the test part.
        task: classification of images, or the task of texts.
        label: the feature with the class, such as ``smiling`` of CelebA.
        invert: whether to exchange black and white: in EMNIST as stored 1 is the background, which fedjax inverts.
        vocabulary: the file of words, ``stackoverflow.word_count``.
        vocabulary_size: the number of words, its first ones.
        tags: the file of tags, ``stackoverflow.tag_count``.
        tags_size: the number of tags.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """
    encoding, is_hdf5 = _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length), hdf5.is_hdf5(path)
    if is_hdf5 != bool(test_file):
        raise UserError(f"{path}: a file of HDF5 has one part, of SQLite both; set data.test_file only with the former")
    if encoding is not None and invert:
        raise UserError(f"data.invert with task {task}: it exchanges black and white; leave it out")
    reading = hdf5 if is_hdf5 else tff_sqlite
    if encoding is None:
        encode = functools.partial(reading.encode_images, label=label, invert=invert)
    else:
        encode = functools.partial(reading.encode_texts, encoding=encoding)
    splits = [(path, "examples"), (test_file, "examples")] if is_hdf5 else [(path, train_split), (path, test_split)]
    train, test = (functools.partial(reading.stream, *split, encode, max_examples) for split in splits)
    facts = str(path), train, test, reading.count_clients(*splits[0])
    if encoding is None:
        return Stream(*facts, normalisation=normalisation, by_row=not is_hdf5)
    return Stream(*facts, encoding.class_names, encoding.task)


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
        train_part: name of the part with the training examples.
        test_part: name of the part with the test examples, ``val`` or ``test``.
        fine_grained: whether the labels of FLAIR are the 1,628 fine ones, in place of 17.

    Raises:
        UserError: if h5py is not installed, or if the file is damaged or of other contents; the message names it.
    """
    names, are_tokens = hdf5.pfl_facts(path, fine_grained)
    if are_tokens:
        encode = functools.partial(hdf5.encode_tokens, size=len(names))
    else:
        prefix = "fine_grained_" if fine_grained else ""
        encode = functools.partial(hdf5.encode_flair, classes=len(names), prefix=prefix)
    train, test = (functools.partial(hdf5.stream, path, part, encode, max_examples) for part in (train_part, test_part))
    kind = ("next_word",) if are_tokens else ("multi_label", normalisation)
    return Stream(str(path), train, test, hdf5.count_clients(path, train_part), names, *kind)


@from_files
def pfllib(path: str | Path) -> Stream:
    """A folder of PFLlib, ``train/<k>.npz`` and ``test/<k>.npz``, with the clients into which it is divided.

    Take ``partition=dict(name="given")`` and ``own_tests=dict(name="given")`` for its clients. Images are float32, and
    already as the network sees them; rows of floats are features, and rows of integers, alone or with their number, ids
    of tokens. The files are pickles, of which only arrays and dicts are loaded.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    train, test = (functools.partial(pfllib_folder.stream_folder, path, part) for part in ("train", "test"))
    names, are_ids = pfllib_folder.facts(path)
    return Stream(str(path), train, test, None, names, normalisation="" if are_ids else (0.0, 1.0), are_named=False)


STREAMS: dict[str, Callable[..., Stream]] = {  # by the names of their sources, of which they have the arguments
    "parquet": parquet_clients,
    **{source.__name__: inspect.unwrap(source) for source in (leaf, tff, pfl, table, pfllib)},
}


def _encoding(task, vocabulary, vocabulary_size, tags, tags_size, length):
    """Returns how the texts of a task become examples; None for images."""
    if task == "classification":
        return None
    if task == "next_character":
        return text.next_characters(length or 80)
    if not vocabulary:
        raise UserError(f"data.task {task}: set data.vocabulary to the file of words, such as stackoverflow.word_count")
    words = text.Vocabulary(text.read_vocabulary(vocabulary, vocabulary_size))
    if task == "next_word":
        return text.next_words(words, length or 20)
    if not tags:
        raise UserError("data.task multi_label: set data.tags to the file of tags, stackoverflow.tag_count")
    return text.tags(words, text.read_vocabulary(tags, tags_size, "tags"))
