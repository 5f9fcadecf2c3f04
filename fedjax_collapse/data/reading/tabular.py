"""Images inside tables: Parquet files in Hugging Face's layout, and images or features in an ``npz`` file."""

import json
import os
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.encoded import Encoded, Listing
from fedjax_collapse.data.reading.listings import check_is_file, files_below

_TEST_FILES = ("test", "val", "validation")
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "labels", "fine_label")
_DOMAINS = ("domains", "test_domains", "domain_names")
_ARRAYS = (  # names of training images, training labels, test images and test labels: ours, Keras', MedMNIST's
    ("images", "labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
_EXPECTED = {  # type, number of axes, and these in words
    "images": ("uint8", 4, "[examples, height, width(, channels)]"),
    "features": ("float32", 2, "[examples, features]"),
}
_FEATURES = (("features", "labels", "test_features", "test_labels"),)
_OWNERS = ("owners", "test_owners")


def list_parquet(path: str, image_column: str, label_column: str) -> Listing:
    """Lists the images of all ``train*.parquet`` and ``test*.parquet`` (or ``val...``) files below a folder.

    An image is a struct with its encoded ``bytes``, or only these bytes. Class names are taken from Hugging Face's
    metadata; without them they are the labels. An empty column name selects the first usual one that exists.

    Raises:
        UserError: no such file, a table that cannot be read, or a column or image that is not there.
    """
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such folder; expected the folder of a data set saved as Parquet")
    files = [file for file in files_below(Path(path)) if file.suffix == ".parquet"]
    parts = [[file for file in files if file.name.startswith("train")], []]
    for name in _TEST_FILES:
        parts[1] = parts[1] or [file for file in files if file.name.startswith(name)]
    for files, name in zip(parts, ("train", "test"), strict=True):
        if not files:
            raise UserError(f"{path}: no {name}*.parquet in it; expected the folder of a data set saved as Parquet")
    train, test, names = [], [], {}
    for part, files in zip((train, test), parts, strict=True):
        for file in files:
            examples, names[file] = _read_table(file, image_column, label_column)
            part += examples
        if not part:
            raise UserError(f"{files[0]}: it has no rows; expected at least one example, fetch or write it again")
    return Listing(train, test, _common(names) or _numbered(path, [example.label for example in train]))


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Reads the fields of ``Source`` from an ``npz`` file of images; domains and names are optional.

    Raises:
        UserError: if the file cannot be read, if it lacks arrays of the known names, types and shapes, or if a label
            has no class.
    """
    return _checked(path, "images", *_load_arrays(path, _ARRAYS, ("class_names", *_DOMAINS)))


def read_features(path: str) -> dict[str, np.ndarray]:
    """Reads the fields of ``Source`` from an ``npz`` file of features; owners are optional, too.

    Raises:
        UserError: as in ``read_arrays``; if the owners of a part are not one for each example.
    """
    keys, arrays = _load_arrays(path, _FEATURES, ("class_names", *_DOMAINS, *_OWNERS))
    fields = _checked(path, "features", keys, arrays)
    for name in _OWNERS:
        labels = fields[name.replace("owners", "labels")]
        if name in arrays and (arrays[name].shape != labels.shape or arrays[name].dtype.kind not in "iu"):
            raise UserError(f"{path}: {name} are no {labels.size} integers; expected one for every label")
    return fields | {name: arrays[name] for name in _OWNERS if name in arrays}


def _checked(path, what, keys, arrays):
    """Returns the fields of ``Source`` from a file's arrays, ``keys`` of which hold what it is of, and labels."""
    optional = {name: arrays[name] for name in ("class_names", *_DOMAINS) if name in arrays}
    if 0 < len(optional.keys() & set(_DOMAINS)) < len(_DOMAINS):
        raise UserError(f"{path}: holds {', '.join(optional)}; expected all of {', '.join(_DOMAINS)}, or none")
    arrays = dict(zip(_ARRAYS[0], (arrays[key] for key in keys), strict=True))
    for prefix in ("", "test_"):
        images, labels = arrays[f"{prefix}images"], arrays[f"{prefix}labels"].squeeze()
        images = images[..., None] if images.ndim == 3 and what == "images" else images
        kind, axes, shape = _EXPECTED[what]
        fits = images.ndim == axes and images.size and len(images) == labels.size
        if images.dtype != kind or labels.dtype.kind not in "iu" or not fits:
            raise UserError(
                f"{path}: {prefix}{what} are {images.dtype}{list(images.shape)} for {labels.size} labels of "
                f"{labels.dtype}; expected {kind} {shape} with an integer label each; convert and save them again"
            )
        arrays |= {f"{prefix}images": images, f"{prefix}labels": labels.reshape(-1)}
    shape, test_shape = (arrays[name].shape[1:] for name in ("images", "test_images"))
    if shape != test_shape:
        raise UserError(f"{path}: training {what} are {shape}, test {what} {test_shape}; expected the same shape")
    optional.setdefault("class_names", np.array(_numbered(path, arrays["labels"])))
    for prefix in ("", "test_"):
        labels, domains = arrays[f"{prefix}labels"], optional.get(f"{prefix}domains")
        _check_range(path, f"{prefix}labels", labels, optional["class_names"])
        if domains is None:
            continue
        if domains.shape != labels.shape or domains.dtype.kind not in "iu":
            raise UserError(f"{path}: {prefix}domains are no {labels.size} integers; expected one for every label")
        _check_range(path, f"{prefix}domains", domains, optional["domain_names"])
    return {**optional, **arrays}


def _load_arrays(path, known, optional):
    """Returns the names of images and labels, the first of the ``known`` that are there, and these and other arrays."""
    check_is_file(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = stored.files
            keys = next((keys for keys in known if all(key in names for key in keys)), ())
            arrays = {name: stored[name] for name in (*keys, *optional) if name in names}
    except Exception as error:  # for damaged files, zipfile and NumPy raise various exceptions
        reason = getattr(error, "strerror", None) or type(error).__name__
        if "pickle" in str(error):
            reason = "it holds Python objects, which are never loaded"
        raise UserError(
            f"{path}: cannot be read as npz ({reason}); expected np.savez's arrays of numbers, save or fetch it again"
        ) from None
    if not keys:
        raise UserError(f"{path}: holds {', '.join(names) or 'nothing'}; expected {', '.join(known[0])}")
    return keys, arrays


def _common(names_of):
    """Returns the class names of the files that have any, which must be equal."""
    known = {file: names for file, names in names_of.items() if names}
    first = next(iter(known), None)
    for file, names in known.items():
        if names != known[first]:
            raise UserError(f"{file}: other class names than {first.name}; expected the files of one data set")
    return known.get(first)


def _numbered(path, labels):
    """Returns numbers as class names: 0 to the largest training label.

    A label beyond the number of examples is taken for an error, as the network would become that large.
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < labels.size:
        raise UserError(
            f"{path}: training labels are {labels.min()} to {labels.max()} for {labels.size} examples; "
            f"correct them to classes counted from 0"
        )
    return list(map(str, range(1 + labels.max(initial=-1))))


def _check_range(path, what, values, names):
    """Raises UserError if a value is not an index into the names."""
    if names.ndim != 1 or not 0 <= values.min() <= values.max() < len(names):
        raise UserError(
            f"{path}: {what} are {values.min()} to {values.max()}, but there are {names.size} names for them; "
            f"correct one or the other"
        )


def _read_table(file, image_column, label_column):
    """Returns the examples of a file and its class names, or None without names."""
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(file)
        image = _column(file, schema, image_column, _IMAGE_COLUMNS)
        label = _column(file, schema, label_column, _LABEL_COLUMNS)
        table = pyarrow.parquet.read_table(file, columns=[image, label], partitioning=None)
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file}: cannot be read as Parquet ({reason}); fetch or write it again") from None
    examples = []
    for row, (content, value) in enumerate(zip(table[image].to_pylist(), table[label].to_pylist(), strict=True)):
        content = content.get("bytes") if isinstance(content, dict) else content
        if not isinstance(content, bytes) or not isinstance(value, int):
            raise UserError(f"{file}: row {row} has no encoded image in {image!r} or no integer in {label!r}")
        examples.append(Encoded(content, f"{file}, row {row}", value))
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        names = features.get(label, {}).get("names")
        return examples, names and list(map(str, names))
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{file}: Hugging Face's metadata in it cannot be read; fetch or write it again") from None


def _column(file, schema, wanted, usual):
    name = wanted or next((name for name in usual if name in schema.names), usual[0])
    if name not in schema.names:
        raise UserError(
            f"{file}: no column {name!r} among {', '.join(schema.names)}; set data.image_column or label_column"
        )
    return name
