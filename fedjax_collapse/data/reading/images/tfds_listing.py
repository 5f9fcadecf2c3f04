"""Prepared data sets of TensorFlow Datasets, read without TensorFlow."""

import contextlib
import difflib
import logging
import os
import textwrap
from importlib.util import find_spec
from typing import Any

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.images.encoded import Encoded, Listing

READABLE = ("array_record", "parquet")  # formats that do not need TensorFlow
_PREPARE = "pip install tensorflow-cpu, then run again with data.download=True where there is a network"
_MAX_RETRIES = 3  # of a download: after 0, 0.8 and 1.6 seconds


def find_builders(name: str, data_dir: str, download: bool) -> list[Any]:
    """Returns a prepared builder of ``name``, or of each config in ``name/config,config``.

    Raises:
        UserError: if the data set or config is unknown, or if the data are missing or in a format that needs
            TensorFlow; the message has the command that prepares them.
    """
    name, _, configs = name.partition("/")
    full_names = [f"{name}/{config}" for config in configs.split(",")] if configs else [name]
    return [_find_builder(full_name, data_dir, download) for full_name in full_names]


def list_builders(builders: list[Any], train_split: str, test_split: str, label: str, coarse: str = "") -> Listing:
    """Lists the images of prepared builders; each is one domain, if there are several.

    ``label`` is the feature with the class; if empty, the default of the data set (cifar100: fine labels). ``coarse``
    is the feature with the class above it, if any.

    Raises:
        UserError: if the data set lacks the split or feature, or if builders have different classes.
    """
    class_names, train, test = None, [], []
    for domain, builder in enumerate(builders):
        image, default = builder.info.supervised_keys or ("image", "label")
        key, features = label or default, builder.info.features
        if key not in features or not hasattr(features[key], "names"):
            raise UserError(
                f"{builder.info.full_name}: no classes in {key!r}, it has {', '.join(builder.info.features)}"
            )
        if coarse and coarse not in features:
            raise UserError(f"{builder.info.full_name}: no feature {coarse!r}, it has {', '.join(features)}")
        names = features[key].names
        if class_names not in (None, names):
            raise UserError(f"{builder.info.full_name}: other classes than those of {builders[0].info.full_name}")
        class_names = names
        for part, split in ((train, train_split), (test, test_split)):
            part += _read_split(builder, split, image, key, domain, coarse)
    domains = [builder.builder_config.name for builder in builders] if len(builders) > 1 else ()
    return Listing(train, test, class_names, domains)


def _find_builder(name, data_dir, download):
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        nearest = difflib.get_close_matches(name.partition("/")[0], known, n=1)
        guess = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise UserError(f"data: tfds has no data set {name!r}: {guess}else use folder, npz or parquet") from None
    except Exception as error:  # an unknown config, version or file system, or a damaged file of a prepared one
        raise UserError(
            f"data: tfds cannot build {name!r} ({_reason(error)}); correct the name, or remove its folder and prepare "
            f"it again: {_PREPARE}"
        ) from None
    if not _is_prepared(builder) and download and find_spec("tensorflow"):
        try:
            with _few_retries():
                builder.download_and_prepare(file_format=READABLE[0])
        except Exception as error:  # a download may raise anything
            raise UserError(
                f"data: preparing {name} failed ({_reason(error)}); run again where there is a network, or copy a "
                f"prepared folder to {builder.data_path}"
            ) from None
    if not _is_prepared(builder):
        raise UserError(
            f"data: {name} is not in {builder.data_path}; prepare it once, where there is a network: "
            f"{command(name, data_dir)}"
        )
    formats = {form.value for form in builder.info.available_file_formats()}
    if not formats & set(READABLE):
        raise UserError(
            f"data: {name} in {builder.data_path} is stored as {', '.join(sorted(formats))}, which needs TensorFlow to "
            f"read; remove that folder and prepare it again: {_PREPARE}"
        )
    return builder


def command(name, data_dir):
    """Returns a shell command that prepares a data set without this package."""
    folder = f", data_dir={data_dir!r}" if data_dir else ""
    build = f"tfds.builder({name!r}{folder}).download_and_prepare(file_format={READABLE[0]!r})"
    return f'pip install tensorflow-cpu && python -c "import tensorflow_datasets as tfds; {build}"'


def _is_prepared(builder):
    return os.path.isdir(builder.data_path) and builder.is_prepared()  # is_prepared warns if the folder is missing


def _read_split(builder, split, image, label, domain, coarse):
    import tensorflow_datasets as tfds

    name = builder.info.full_name.rpartition("/")[0]  # without version
    try:
        expected = builder.info.splits[split].num_examples
    except (ValueError, KeyError):
        raise UserError(f"data: {name} has no split {split!r}, it has {', '.join(builder.info.splits)}") from None
    try:
        source = builder.as_data_source(split=split, decoders={image: tfds.decode.SkipDecoding()})
        examples = [
            (bytes(example[image]), int(example[label]), int(example[coarse]) if coarse else None) for example in source
        ]
    except Exception as error:  # for damaged files, the readers raise various exceptions
        raise UserError(
            f"{builder.data_path}: split {split!r} cannot be read ({_reason(error)}); remove that folder and "
            f"prepare it again: {_PREPARE}"
        ) from None
    if len(examples) != expected:
        raise UserError(
            f"{builder.data_path}: slice {split!r} should have {expected} examples, but {len(examples)} were read: "
            f"slices need array_record; use whole splits, or remove that folder and prepare it again: {_PREPARE}"
        )
    return [
        Encoded(content, f"{builder.data_path}, {split} {row}", value, domain, coarse=above)
        for row, (content, value, above) in enumerate(examples)
    ]


@contextlib.contextmanager
def _few_retries():
    """Reduces retries, which take minutes without a network, and hides their warnings."""
    from tensorflow_datasets.core.download import downloader

    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # its threads outlive the error
    default, downloader.MAX_RETRIES = downloader.MAX_RETRIES, _MAX_RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = default


def _reason(error):
    """Returns the message of an error on one line; messages of TFDS are long."""
    return textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__
