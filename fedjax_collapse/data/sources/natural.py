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
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_collapse.data import streams
from fedjax_collapse.data.reading import listings, text
from fedjax_collapse.data.reading.cache import cached
from fedjax_collapse.data.reading.clients import hdf5, leaf_json, tff_sqlite
from fedjax_collapse.data.reading.images import encoded, hugging_face
from fedjax_collapse.data.reading.parts import VALIDATION
from fedjax_collapse.data.reading.tables import csv_table, text_tables
from fedjax_collapse.data.source import Channels, Scale, Share, Size, Source, from_arrays, from_listing, names_of
from fedjax_collapse.data.sources import normalisations
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import gather, mean_and_std_of
from fedjax_collapse.schema.options import Count, Natural, Seed, checked

TASKS = ("classification", "next_word", "next_character", "multi_label")


@checked
def parquet(
    path: str | Path,
    image_column: str = "",
    label_column: str = "",
    client_column: str = "",
    coarse_column: str = "",
    task: Annotated[str, ("classification", "multi_label")] = "classification",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    scale: Scale = None,
    normalisation: Normalisation = "unit",
) -> Source:
    """A folder of Parquet files in Hugging Face's layout: ``train*.parquet`` and ``test*.parquet``.

    Without test files, part of the examples of each client, or of each class, is held out.

    Args:
        task: ``multi_label`` where an example has a list of labels by name (FLAIR).

    Raises:
        UserError: if a file is missing or unreadable; the message names it.
    """
    columns = hugging_face.Columns(image_column, label_column, client_column, coarse_column, task == "multi_label")
    decoding, divided = encoded.Decoding(image_size, channels, scale=scale), (validation, test_fraction, seed)
    return _tables("Parquet", path, columns, divided, classes, decoding, normalisation)


@checked
def arrow(
    path: str | Path,
    image_column: str = "",
    label_column: str = "",
    client_column: str = "",
    coarse_column: str = "",
    task: Annotated[str, ("classification", "multi_label")] = "classification",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    scale: Scale = None,
    normalisation: Normalisation = "unit",
) -> Source:
    """A folder of Arrow files in Hugging Face's layout, as ``save_to_disk`` writes it: ``train/*.arrow``, ``test/...``.

    The rest is as in ``parquet``.

    Args:
        task: ``multi_label`` where an example has a list of labels by name.

    Raises:
        UserError: if a file is missing or unreadable; the message names it.
    """
    columns = hugging_face.Columns(image_column, label_column, client_column, coarse_column, task == "multi_label")
    decoding, divided = encoded.Decoding(image_size, channels, scale=scale), (validation, test_fraction, seed)
    return _tables("Arrow", path, columns, divided, classes, decoding, normalisation)


@checked
def csv(
    path: str | Path,
    image_folder: str | Path = "",
    test_file: str | Path = "",
    image_column: str = "image_id",
    label_column: str = "class",
    client_column: str = "user_id",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    scale: Scale = None,
    normalisation: Normalisation = "unit",
) -> Source:
    """Images in files, with their classes and natural clients in a csv file: Google Landmarks, iNaturalist.

    An image is named by its path below ``image_folder``, or by its file's name, with or without suffix.

    Args:
        image_folder: the folder with the images, also in subfolders; empty for the folder of the csv file.
        test_file: the csv file of the test part, which may have no clients; empty to hold out part of each client's.
        image_column: the column with the names of images.
        label_column: the column with the classes, integers or names.
        client_column: the column with the natural clients.

    Raises:
        UserError: if a file is missing or unreadable, or a line not as expected; the message names it.
    """
    file, test = Path(path).absolute(), test_file and Path(test_file).absolute()
    folder = Path(image_folder).absolute() if image_folder else file.parent
    columns = csv_table.TextColumns(image_column, label_column, client_column)
    places = [place for place in (file, test, folder) if place]
    key = dict(places=places, files=list(map(listings.fingerprint, places)), columns=columns)
    key |= dict(test=test, divided=(test_fraction, seed))
    find = functools.partial(csv_table.list_csv, file, test or None, folder, columns, test_fraction, seed)
    decoding = encoded.Decoding(image_size, channels, scale=scale)
    return from_listing("csv", key, find, classes, decoding, normalisation)


@checked
def leaf(
    path: str | Path,
    image_folder: str | Path = "",
    image_size: Size = 0,
    channels: Channels = 3,
    max_examples: Natural = 0,
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    length: Count = 25,
    normalisation: Normalisation = "unit",
) -> Source:
    """A folder of LEAF, ``train/*.json`` and ``test/*.json``, whose users are natural clients.

    Images are FEMNIST or CelebA. Texts are Shakespeare (windows of 80 characters and the next one, 80 classes),
    Sentiment140 (two classes) or Reddit (ten tokens and the next ones); the files tell which.

    Args:
        image_folder: the folder with the images, where the files have only their names (CelebA).
        image_size: height and width to resize images of ``image_folder`` to; 0 keeps theirs, which must be equal.
        max_examples: most examples of a user of texts, the first ones; 0 takes all.
        vocabulary: the file of words, for Sentiment140 and Reddit; empty to count those of the training part.
        vocabulary_size: the number of words; for Reddit with padding and unknown words.
        length: words of a tweet.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    normalisations.check_name(normalisation)
    root, images = Path(path).absolute(), image_folder and Path(image_folder).absolute()
    key = dict(folder=root, files=listings.fingerprint(root), images=images, image_size=image_size, channels=channels)
    key |= dict(image_files=listings.fingerprint(images) if images else "", decoding=encoded.VERSION)
    of_text = dict(max_examples=max_examples, vocabulary=vocabulary, vocabulary_size=vocabulary_size, length=length)
    key |= dict(of_text, words=_fingerprint(vocabulary), preprocessing=text.VERSION)

    def read():
        if not leaf_json.is_text(root):
            return leaf_json.read_leaf(root, images, image_size, channels)
        stream = streams.leaf(root, "", 0, 0, **of_text, normalisation="")
        return gather(stream) | {"task": np.array(stream.task)}

    arrays = cached("leaf", key, read)
    if arrays["images"].ndim == 4:
        return from_arrays(arrays, normalisation)
    arrays.setdefault("task", np.array("classification"))  # of features
    return Source(**arrays | names_of(arrays) | {"task": str(arrays["task"])}, mean=None, std=None)


@checked
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
) -> Source:
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
    normalisations.check_name(normalisation)
    file = Path(path).absolute()
    if task == "classification" and not hdf5.is_hdf5(path):
        key = dict(file=file, state=listings.fingerprint(file), splits=(train_split, test_split), label=label)
        arrays = cached("tff", key, lambda: tff_sqlite.read_sqlite(path, train_split, test_split, label))
        if invert:
            arrays |= {name: 255 - arrays[name] for name in ("images", "test_images")}
        return from_arrays(arrays, normalisation)
    options = dict(
        train_split=train_split, test_split=test_split, test_file=test_file, task=task, label=label, invert=invert,
        max_examples=max_examples, vocabulary=vocabulary, vocabulary_size=vocabulary_size, tags=tags,
        tags_size=tags_size, length=length, normalisation=normalisation,
    )  # fmt: skip
    return _streamed("tff", file, streams.tff, options)


@checked
def pfl(
    path: str | Path,
    train_part: str = "train",
    test_part: str = "val",
    fine_grained: bool = False,
    max_examples: Natural = 0,
    normalisation: Normalisation = "unit",
) -> Source:
    """An HDF5 file of pfl-research's benchmarks, StackOverflow or FLAIR, whose users are natural clients.

    It needs the extra ``hdf5``.

    Args:
        train_part: name of the part with the training examples.
        test_part: name of the part with the test examples, ``val`` or ``test``.
        fine_grained: whether the labels of FLAIR are the 1,628 fine ones, in place of 17.

    Raises:
        UserError: if h5py is not installed, or if the file is damaged or of other contents; the message names it.
    """
    normalisations.check_name(normalisation)
    file = Path(path).absolute()
    options = dict(
        train_part=train_part, test_part=test_part, fine_grained=fine_grained, max_examples=max_examples,
        normalisation=normalisation,
    )  # fmt: skip
    return _streamed("pfl", file, streams.pfl, options)


@checked
def texts(
    path: str | Path,
    task: Annotated[str, ("classification", "next_word", "next_character")] = "classification",
    text_column: str = "",
    label_column: str = "",
    client_column: str = "",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    length: Natural = 0,
) -> Source:
    """Texts in a csv, tsv or jsonl file, or in a folder of such, Parquet or Arrow files, in the layout of ``parquet``.

    A text is classified (Sentiment140), its words are predicted (``next_word``), or the text is one of LEAF's windows
    of Shakespeare and the label the character after it (``next_character``, which is classified: 80 classes).

    Args:
        task: classification, next_word or next_character.
        text_column: the column with the texts; empty to find it.
        label_column: the column with the classes, integers or names; empty to find it.
        client_column: the column with the natural clients, such as ``user``.
        classes: names of the classes to read, in their new order, such as ("0", "4"); none selects all.

    Raises:
        UserError: if a file is missing, unreadable or not as expected; the message names it.
    """
    root = Path(path).absolute()
    columns = text_tables.TextColumns(text_column, label_column, client_column)
    size = length or (20 if task == "next_word" else 25)
    reading = text_tables.Reading(task, vocabulary, vocabulary_size, size, classes)
    key = dict(path=root, files=listings.fingerprint(root), columns=columns, reading=reading)
    divided = validation, test_fraction, seed
    key |= dict(words=_fingerprint(vocabulary), divided=divided, preprocessing=text.VERSION)
    arrays = cached("texts", key, lambda: text_tables.read_texts(root, columns, reading, *divided))
    kind = "next_word" if task == "next_word" else "classification"
    return Source(**arrays | names_of(arrays), mean=None, std=None, task=kind)


@checked
def table(
    path: str | Path,
    label_column: str = "",
    client_column: str = "",
    feature_columns: tuple[str, ...] = (),
    test_file: str | Path = "",
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    standardised: bool = False,
) -> Source:
    """A table of numbers: a csv, tsv, jsonl, Parquet or Arrow file, or a folder of such in the layout of ``parquet``.

    Each row is an example, each number of it a feature. Without a test part, some of each client's examples, or of each
    class, are held out. The network is ``mlp``, with ``hidden=()`` the linear model.

    Args:
        label_column: the column with the classes, integers or names; empty to find it.
        client_column: the column with the natural clients, such as ``hospital``; empty if there are none.
        feature_columns: the columns with the features; none takes all others.
        test_file: the file of the test part, with clients or without.
        standardised: whether each feature becomes one of mean 0 and standard deviation 1 on the training part.

    Raises:
        UserError: if a file is missing, unreadable or not as expected; the message names it and the row.
    """
    return _of_stream(
        streams.table(
            path, label_column, client_column, feature_columns, test_file, validation, test_fraction, seed, standardised
        )
    )


@checked
def pfllib(path: str | Path) -> Source:
    """A folder of PFLlib, ``train/<k>.npz`` and ``test/<k>.npz``, with the clients into which it is divided.

    Take ``partition=dict(name="given")`` and ``own_tests=dict(name="given")`` for its clients. Images are float32, and
    already as the network sees them; rows of floats are features, and rows of integers, alone or with their number, ids
    of tokens. The files are pickles, of which only arrays and dicts are loaded.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    return _of_stream(streams.pfllib(path))._replace(client_names=())


def _of_stream(stream, arrays=None):
    """Returns the source of a stream, of which ``arrays`` is what was read; by default it is read."""
    arrays = gather(stream) if arrays is None else arrays
    mean, std = mean_and_std_of(stream, arrays["images"])
    return Source(**arrays | names_of(arrays), mean=mean, std=std, task=stream.task)


def _streamed(name, file, make, options):
    """Returns the source of a stream, read once for what its options and their files are."""
    files = [file, *(options.get(key, "") for key in ("test_file", "vocabulary", "tags"))]
    key = dict(files=files, states=list(map(_fingerprint, files)), options=options, preprocessing=text.VERSION)
    stream = make(file, **options)
    return _of_stream(stream, cached(name, key, lambda: gather(stream)))


def _fingerprint(place):
    return listings.fingerprint(Path(place)) if place else ""


def _tables(kind, path, columns, divided, classes, decoding, normalisation):
    find = functools.partial(hugging_face.list_tables, path, kind, columns, *divided)
    root = Path(path).absolute()
    key = dict(folder=root, files=listings.fingerprint(root), columns=columns, divided=divided)
    source = from_listing(kind.lower(), key, find, classes, decoding, normalisation)
    return source._replace(task="multi_label" if columns.several else "classification")
