"""Data sets of TensorFlow Datasets that lie prepared on disk, read without TensorFlow."""

import difflib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedjax_collapse.data.reading.encoded import Encoded, Listing
from fedjax_collapse.records import UserError

READABLE = ("array_record", "parquet")  # the formats for which TensorFlow is not needed


def find_builders(name: str, data_dir: str, download: bool) -> list[Any]:
    """A prepared builder of ``name``, or of each config in ``name/config,config``.

    Raises:
        UserError: an unknown data set or config, or data that are absent or in a format that needs TensorFlow; the
            line has the command that prepares them.
    """
    name, _, configs = name.partition("/")
    full_names = [f"{name}/{config}" for config in configs.split(",")] if configs else [name]
    return [_find_builder(full_name, data_dir, download) for full_name in full_names]


def list_builders(builders: list[Any], train_split: str, test_split: str, label: str) -> Listing:
    """The images of prepared builders: one domain each, if there are several.

    ``label`` is the feature with the class; empty is the data set's own (cifar100: fine labels).

    Raises:
        UserError: a split or feature that the data set has not, or builders of different classes.
    """
    class_names, train, test = None, [], []
    for domain, builder in enumerate(builders):
        image, usual = builder.info.supervised_keys or ("image", "label")
        key, features = label or usual, builder.info.features
        if key not in features or not hasattr(features[key], "names"):
            raise UserError(
                f"{builder.info.full_name}: no classes in {key!r}, it has {', '.join(builder.info.features)}"
            )
        names = features[key].names
        if class_names not in (None, names):
            raise UserError(f"{builder.info.full_name}: other classes than those of {builders[0].info.full_name}")
        class_names = names
        for part, split in ((train, train_split), (test, test_split)):
            part += _read_split(builder, split, image, key, domain)
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
    except (ValueError, AssertionError, ImportError) as error:  # an unknown config, version or file system
        raise UserError(f"data: tfds cannot build {name!r}: {' '.join(str(error).split())}") from None
    if not _is_prepared(builder) and download and find_spec("tensorflow"):
        try:
            builder.download_and_prepare(file_format=READABLE[0])
        except Exception as error:  # whatever a download raises
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"data: preparing {name} failed ({reason}); try {_command(name, data_dir)}") from None
    if not _is_prepared(builder):
        raise UserError(
            f"data: {name} is not in {builder.data_path}; prepare it once, which needs a network and TensorFlow: "
            f"{_command(name, data_dir)}"
        )
    formats = {form.value for form in builder.info.available_file_formats()}
    if not formats & set(READABLE):
        raise UserError(
            f"data: {name} in {builder.data_path} is stored as {', '.join(sorted(formats))}, which needs TensorFlow to "
            f"read; store it once more: {_command(name, data_dir, overwrite=True)}"
        )
    return builder


def _is_prepared(builder):
    return Path(builder.data_path).is_dir() and builder.is_prepared()  # which warns of a folder that is not there


def _read_split(builder, split, image, label, domain):
    import tensorflow_datasets as tfds

    name = builder.info.full_name.rpartition("/")[0]  # without version
    try:
        source = builder.as_data_source(split=split, decoders={image: tfds.decode.SkipDecoding()})
    except (ValueError, KeyError):
        raise UserError(f"data: {name} has no split {split!r}, it has {', '.join(builder.info.splits)}") from None
    expected = builder.info.splits[split].num_examples
    if len(source) != expected:
        data_dir = Path(builder.data_path).parents[name.count("/") + 1]
        raise UserError(
            f"data: {name}: slice {split!r} should have {expected} examples, but {len(source)} were read: slices need "
            f"array_record; use whole splits, or store it once more: {_command(name, data_dir, overwrite=True)}"
        )
    return [
        Encoded(bytes(example[image]), f"{name}, {split} {row}", int(example[label]), domain)
        for row, example in enumerate(source)
    ]


def _command(name, data_dir, overwrite=False):
    folder = f" --data_dir={Path(data_dir)}" if data_dir else ""
    return (
        f"pip install tensorflow-cpu && tfds build {name} --file_format={READABLE[0]}{folder}"
        f"{' --overwrite' if overwrite else ''}"
    )
