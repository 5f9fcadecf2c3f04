"""Sources of data sets that most papers use, wherever they are on disk; ``sources.py`` has them among its own.

Args:
    folder: the folder with the data, as TFDS, torchvision or Hugging Face prepare them, or a folder that contains that
        one; empty to look in the current folder, ``data``, ``~/data`` and TFDS's own folder, in this order.
    classes: names of the classes to keep, in their new order; none selects all.
    image_size: height and width in pixels to resize to (bilinear); 0 keeps the size of the images.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    normalisation: mean and standard deviation of the network's input, by name (``normalisations.py``); empty for the
        papers' of this data set, else ``unit``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fedjax_collapse.data.reading.images import standard_sets, tfds_listing, torchvision_files
from fedjax_collapse.data.reading.images.encoded import Decoding, decode_listing
from fedjax_collapse.data.source import Channels, Scale, Size, Source, read_once
from fedjax_collapse.data.sources import normalisations
from fedjax_collapse.data.sources.hugging_face import parquet
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.schema.options import checked


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
        download: whether TFDS downloads and prepares it if it is not found, which needs TensorFlow.

    Raises:
        UserError: if it is not found, which says how to get it; if a file is damaged.
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
    """A data set as torchvision leaves it on disk: cifar10, cifar100, mnist, fashion_mnist, svhn, stl10.

    Raises:
        UserError: if it is not there, or a file is damaged; the message names it.
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
        data_dir: the folder of prepared data; empty for the default folder of TFDS.
        train_split: name of the split with the training examples.
        test_split: name of the split with the test examples.
        label: the feature with the class, such as ``coarse_label`` of cifar100; empty for the usual one.
        coarse: the feature with the class above it, such as ``coarse_label`` of cifar100, for ``pachinko``; or none.
        scale: the number that becomes white where grey levels have more than 8 bits; ``max`` for the largest of the
            training part.
        download: whether to download and prepare missing data, which needs TensorFlow.

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
