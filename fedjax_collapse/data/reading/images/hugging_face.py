"""Images inside the tables of Hugging Face's data sets: Parquet files, and Arrow files as ``save_to_disk`` writes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.clients.natural_clients import check_client
from fedjax_collapse.data.reading.images.encoded import Encoded, Listing, divide, named_classes
from fedjax_collapse.data.reading.parts import find_files
from fedjax_collapse.data.reading.tables import choose_column, read_table
from fedjax_collapse.data.reading.tables.tabular import check_class, check_columns, numbered
from fedjax_collapse.data.reading.untrusted import parse_json

_USUAL = {"image": ("image", "img"), "label": ("label", "labels", "fine_label", "character")}


class Columns(NamedTuple):
    """Names of columns. An empty ``image`` or ``label`` is the first usual one that exists; others are optional.

    With ``several`` the label is a list of names, of any number.
    """

    image: str = ""
    label: str = ""
    client: str = ""
    coarse: str = ""
    several: bool = False

    def names(self) -> tuple[str, ...]:
        return self[:4]


def list_tables(
    path: str | Path, kind: str, columns: Columns, validation: str, test_fraction: float, seed: int
) -> Listing:
    """Lists the images of the files of both parts (``parts.find_files``) of a ``kind``, Parquet or Arrow.

    Without test files, a ``test_fraction`` of the examples of each client, else of each class, is held out. An image is
    a struct with its encoded ``bytes``, or only these bytes. A class is an integer, whose name is in Hugging Face's
    metadata if there is any, or a name.

    Raises:
        UserError: no such file, a table that cannot be read, or a column, image, label or client that is not there; as
            in ``find_files``.
    """
    names, parts = {}, find_files(path, kind, validation)
    train, test = (_read_all(files, kind, columns, names) for files in parts)
    if not parts[1]:
        train, test = divide(path, train, test_fraction, seed)
    labels = [example.label for example in train]
    if columns.several:
        return Listing(train, test, sorted({name for own in labels for name in own}))
    if isinstance(labels[0], str):
        return Listing(*named_classes(train, test))
    return Listing(train, test, _common(names) or numbered(path, labels))


def _read_all(files, kind, columns, names):
    """Returns the examples of a part; adds the class names of its files to ``names``."""
    part: list[Encoded] = []
    for file in files:
        examples, names[file] = _read(file, kind, columns)
        part += examples
    if files and not part:
        raise UserError(f"{files[0]}: it has no rows; expected at least one example, fetch or write it again")
    return part


def _read(file, kind, columns):
    """Returns the examples of a file and its class names, or None without names."""
    table = read_table(file, kind, lambda existing: filter(None, choose_columns(file, existing, columns).names()))
    chosen = choose_columns(file, table.column_names, columns)
    examples = examples_of(file, table, chosen, range(len(table)))
    return examples, None if chosen.several else class_names_in(file, table.schema, chosen.label)


def examples_of(file: Path, table: Any, columns: Columns, numbers: Iterable[int]) -> list[Encoded]:
    """Returns the examples of a table; ``numbers`` are those of its rows in the file, for messages."""
    values = (table[name].to_pylist() if name else [None] * len(table) for name in columns.names())
    return [_example(file, row, columns, *own) for row, *own in zip(numbers, *values, strict=True)]


def class_names_in(file: Path, schema: Any, label: str) -> list[str] | None:
    """Returns the class names in Hugging Face's metadata of a table, or None without names."""
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        classes = parse_json(metadata).get("info", {}).get("features", {}).get(label, {}).get("names")
        return classes and list(map(str, classes))
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{file}: Hugging Face's metadata in it cannot be read; fetch or write it again") from None


def choose_columns(file, existing: Sequence[str], columns: Columns) -> Columns:
    """Returns the columns with names for the empty ones that are needed."""
    check_columns(file, existing)
    wanted = {key: name for key, name in zip(Columns._fields, columns.names(), strict=False) if name or key in _USUAL}
    return columns._replace(
        **{key: choose_column(file, existing, key, name, _USUAL.get(key, ())) for key, name in wanted.items()}
    )


def _example(file, row, names, image, label, client, coarse):
    content = image.get("bytes") if isinstance(image, dict) else image
    if isinstance(label, list) != names.several:
        found, expected = ("no list", "one of names") if names.several else ("a list", "one class")
        hint = "" if names.several else ", or data.task='multi_label'"
        raise UserError(
            f"{file}: row {row} has {found} in {names.label!r}, expected {expected}; set data.label_column{hint}"
        )
    if not isinstance(content, bytes) or not isinstance(label, (int, str, list)):
        raise UserError(
            f"{file}: row {row} has no encoded image in {names.image!r}, or neither an integer nor a name in "
            f"{names.label!r}"
        )
    if isinstance(label, str):
        check_class(f"{file}: row {row}", label)
    if names.client:
        check_client(f"{file}: row {row}", client)
    if names.coarse and not isinstance(coarse, int):
        raise UserError(f"{file}: row {row} has {coarse!r:.40} in {names.coarse!r}; expected an integer")
    own = tuple(map(str, label)) if names.several else label if isinstance(label, str) else int(label)
    return Encoded(content, f"{file}, row {row}", own, client=client, coarse=coarse)


def _common(names_of):
    """Returns the class names of the files that have any, which must be equal."""
    known = {file: names for file, names in names_of.items() if names}
    first = next(iter(known), None)
    for file, names in known.items():
        if names != known[first]:
            raise UserError(f"{file}: other class names than {first.name}; expected the files of one data set")
    return known.get(first)
