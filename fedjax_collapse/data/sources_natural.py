"""Sources of data with natural clients, and tables that may have them; ``sources.py`` has them among its own.

Args:
    path: the file or folder.
    test_fraction: share of each client's examples that is held out for the test, where there is no test part.
    seed: seed of the random split into training and test.
    classes: names of the classes to keep, in their new order; none selects all.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size of the images, which must be equal.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    normalisation: mean and standard deviation of the network's input, by name (``normalisations.py``): unit, half,
        cifar10, cifar10_fedmr, cifar10_feduv, cifar100, svhn or imagenet.
    image_column: the column with the images; empty to find it.
    label_column: the column with the classes, integers or truth values; empty to find it.
    client_column: the column with the natural clients, such as ``writer_id``, for the partition ``given``.
    coarse_column: the column with the classes above the classes, such as ``coarse_label``, for ``pachinko``.
"""

import functools
from pathlib import Path

from fedjax_collapse.core.options import Seed, checked
from fedjax_collapse.data import normalisations
from fedjax_collapse.data.reading import csv_table, encoded, hugging_face, leaf_json, listings, tff_sqlite
from fedjax_collapse.data.reading.cache import cached
from fedjax_collapse.data.source import Channels, Share, Size, Source, from_arrays, from_listing


@checked
def parquet(
    path: str | Path,
    image_column: str = "",
    label_column: str = "",
    client_column: str = "",
    coarse_column: str = "",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    normalisation: str = "unit",
) -> Source:
    """A folder of Parquet files in Hugging Face's layout: ``train*.parquet`` and ``test*.parquet``.

    With a ``client_column`` there may be no test files; part of each client's examples is then held out.

    Raises:
        UserError: if a file is missing or unreadable; the message names it.
    """
    columns = hugging_face.Columns(image_column, label_column, client_column, coarse_column)
    return _tables("Parquet", path, columns, test_fraction, seed, classes, image_size, channels, normalisation)


@checked
def arrow(
    path: str | Path,
    image_column: str = "",
    label_column: str = "",
    client_column: str = "",
    coarse_column: str = "",
    test_fraction: Share = 0.2,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    normalisation: str = "unit",
) -> Source:
    """A folder of Arrow files in Hugging Face's layout, as ``save_to_disk`` writes it: ``train/*.arrow``, ``test/...``.

    The rest is as in ``parquet``.

    Raises:
        UserError: if a file is missing or unreadable; the message names it.
    """
    columns = hugging_face.Columns(image_column, label_column, client_column, coarse_column)
    return _tables("Arrow", path, columns, test_fraction, seed, classes, image_size, channels, normalisation)


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
    normalisation: str = "unit",
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
    return from_listing("csv", key, find, classes, image_size, channels, normalisation)


@checked
def leaf(
    path: str | Path,
    image_folder: str | Path = "",
    image_size: Size = 0,
    channels: Channels = 3,
    normalisation: str = "unit",
) -> Source:
    """A folder of LEAF with images, ``train/*.json`` and ``test/*.json``: FEMNIST, CelebA; users are natural clients.

    Args:
        image_folder: the folder with the images, where the files have only their names (CelebA).
        image_size: height and width to resize images of ``image_folder`` to; 0 keeps theirs, which must be equal.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    normalisations.check_name(normalisation)
    root, images = Path(path).absolute(), image_folder and Path(image_folder).absolute()
    key = dict(folder=root, files=listings.fingerprint(root), images=images, image_size=image_size, channels=channels)
    key |= dict(image_files=listings.fingerprint(images) if images else "", decoding=encoded.VERSION)
    arrays = cached("leaf", key, lambda: leaf_json.read_leaf(root, images, image_size, channels))
    return from_arrays(arrays, normalisation)


@checked
def tff(
    path: str | Path,
    train_split: str = "train",
    test_split: str = "test",
    label: str = "label",
    invert: bool = False,
    normalisation: str = "unit",
) -> Source:
    """A SQLite file of TensorFlow Federated with images: EMNIST, CelebA. It is read without TensorFlow.

    Args:
        path: the file, unpacked (``unlzma emnist_all.sqlite.lzma``).
        train_split: name of the split with the training examples: ``all_train``, ``split_by_examples_train``, ...
        test_split: name of the split with the test examples.
        label: the feature with the class, such as ``smiling`` of CelebA.
        invert: whether to exchange black and white: in EMNIST as stored 1 is the background, which fedjax inverts.

    Raises:
        UserError: if the file cannot be read, or lacks a split or feature; the message names it.
    """
    normalisations.check_name(normalisation)
    file = Path(path).absolute()
    key = dict(file=file, state=listings.fingerprint(file), splits=(train_split, test_split), label=label)
    arrays = cached("tff", key, lambda: tff_sqlite.read_sqlite(path, train_split, test_split, label))
    if invert:
        arrays |= {name: 255 - arrays[name] for name in ("images", "test_images")}
    return from_arrays(arrays, normalisation)


def _tables(kind, path, columns, test_fraction, seed, classes, image_size, channels, normalisation):
    find = functools.partial(hugging_face.list_tables, path, kind, columns, test_fraction, seed)
    root = Path(path).absolute()
    key = dict(folder=root, files=listings.fingerprint(root), columns=columns, divided=(test_fraction, seed))
    return from_listing(kind.lower(), key, find, classes, image_size, channels, normalisation)
