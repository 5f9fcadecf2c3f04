"""Images inside the tables of Hugging Face's data sets: Parquet files, and Arrow files as ``save_to_disk`` writes."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.encoded import Encoded, Listing, divide_by_client
from fedjax_collapse.data.reading.listings import check_is_file, files_below
from fedjax_collapse.data.reading.tabular import numbered

_TEST_FILES = ("test", "val", "validation")
_USUAL = {"image": ("image", "img"), "label": ("label", "labels", "fine_label", "character")}
_ARROW_FILE = b"ARROW1"  # else it is a stream, as Hugging Face's are


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


def list_tables(path: str | Path, kind: str, columns: Columns, test_fraction: float, seed: int) -> Listing:
    """Lists the images of all files ``train*`` and ``test*`` (or ``val...``) of a ``kind``, Parquet or Arrow.

    The part may also be the name of the folder (``train/data-00000-of-00001.arrow``), or follow the name of the data
    set (``femnist-train.arrow``). If there are clients and no test files, a ``test_fraction`` of each client's examples
    is held out. An image is a struct with its encoded ``bytes``, or only these bytes. Class names are taken from
    Hugging Face's metadata; without them they are the labels.

    Raises:
        UserError: no such file, a table that cannot be read, or a column, image, label or client that is not there.
    """
    names, parts = {}, find_files(path, kind, needs_test=not columns.client)
    train, test = (_read_all(files, kind, columns, names) for files in parts)
    if not parts[1]:
        train, test = divide_by_client(path, train, test_fraction, seed)
    labels = [example.label for example in train]
    if columns.several:
        return Listing(train, test, sorted({name for own in labels for name in own}))
    return Listing(train, test, _common(names) or numbered(path, labels))


def find_files(path: str | Path, kind: str, needs_test: bool) -> tuple[list[Path], list[Path]]:
    """Returns the files of the training and of the test part of a folder of a ``kind``: Parquet, Arrow, CSV.

    Raises:
        UserError: there are none; test files are only missing if they are needed.
    """
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such folder; expected the folder of a data set saved as {kind}")
    suffix = f".{kind.lower()}"
    files = [file for file in files_below(Path(path)) if file.suffix == suffix]
    train_files, test_files = _files_of(path, files, "train"), []
    for name in _TEST_FILES:
        test_files = test_files or _files_of(path, files, name)
    for found, name in ((train_files, "train"), (test_files, "test")):
        if not found and (name == "train" or needs_test):
            raise UserError(f"{path}: no {name}*{suffix} in it; expected the folder of a data set saved as {kind}")
    return train_files, test_files


def _files_of(path, files, part):
    """Returns the files of a part, by the beginning of their names, else by their folders or a later word."""
    return [file for file in files if file.name.startswith(part)] or [
        file for file in files if part in file.relative_to(path).parts[:-1] or f"-{part}" in file.name
    ]


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
    with reading_table(file, kind):
        table, names = (_parquet if kind == "Parquet" else _arrow)(file, columns)
    examples = examples_of(file, table, names, range(len(table)))
    return examples, None if names.several else class_names_in(file, table.schema, names.label)


@contextlib.contextmanager
def reading_table(file: Path, kind: str) -> Iterator[None]:
    """Turns errors of pyarrow into a UserError of one line."""
    import pyarrow

    check_is_file(file)
    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file}: cannot be read as {kind} ({reason}); fetch or write it again") from None


def examples_of(file: Path, table: Any, columns: Columns, numbers: Iterable[int]) -> list[Encoded]:
    """Returns the examples of a table; ``numbers`` are those of its rows in the file, for messages."""
    values = (table[name].to_pylist() if name else [None] * len(table) for name in columns.names())
    return [_example(file, row, columns, *own) for row, *own in zip(numbers, *values, strict=True)]


def class_names_in(file: Path, schema: Any, label: str) -> list[str] | None:
    """Returns the class names in Hugging Face's metadata of a table, or None without names."""
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        classes = json.loads(metadata).get("info", {}).get("features", {}).get(label, {}).get("names")
        return classes and list(map(str, classes))
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{file}: Hugging Face's metadata in it cannot be read; fetch or write it again") from None


def _parquet(file, columns):
    """Returns the table of the chosen columns, and their names."""
    import pyarrow.parquet

    names = choose_columns(file, pyarrow.parquet.read_schema(file).names, columns)
    wanted = list(dict.fromkeys(filter(None, names.names())))
    return pyarrow.parquet.read_table(file, columns=wanted, partitioning=None), names


def _arrow(file, columns):
    """Returns the same of an Arrow file or stream."""
    table = open_arrow(file)
    names = choose_columns(file, table.schema.names, columns)
    table = table.select(list(dict.fromkeys(filter(None, names.names()))))
    table.validate(full=True)
    return table, names


def open_arrow(file: Path) -> Any:
    """Returns the table of an Arrow file or stream."""
    import pyarrow

    with pyarrow.OSFile(str(file)) as stream:
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
        return (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(stream).read_all()


def choose_columns(file, existing: Sequence[str], columns: Columns) -> Columns:
    """Returns the columns with names for the empty ones that are needed."""
    usual = {key: next((name for name in names if name in existing), names[0]) for key, names in _USUAL.items()}
    keys = Columns._fields[:4]
    chosen = columns._replace(**{key: getattr(columns, key) or usual.get(key, "") for key in keys})
    for key, name in zip(keys, chosen.names(), strict=True):
        if name and name not in existing:
            raise UserError(f"{file}: no column {name!r} among {', '.join(existing)}; set data.{key}_column")
    return chosen


def _example(file, row, names, image, label, client, coarse):
    content = image.get("bytes") if isinstance(image, dict) else image
    if isinstance(label, list) != names.several:
        found, expected = ("no list", "one of names") if names.several else ("a list", "one class")
        hint = "" if names.several else ", or data.task='multi_label'"
        raise UserError(
            f"{file}: row {row} has {found} in {names.label!r}, expected {expected}; set data.label_column{hint}"
        )
    if not isinstance(content, bytes) or not isinstance(label, (int, list)):
        raise UserError(f"{file}: row {row} has no encoded image in {names.image!r} or no integer in {names.label!r}")
    if names.client and (not isinstance(client, (str, int)) or isinstance(client, bool)):
        raise UserError(f"{file}: row {row} has {client!r:.40} in {names.client!r}; expected a client's name or number")
    if names.coarse and not isinstance(coarse, int):
        raise UserError(f"{file}: row {row} has {coarse!r:.40} in {names.coarse!r}; expected an integer")
    own = tuple(map(str, label)) if names.several else int(label)
    return Encoded(content, f"{file}, row {row}", own, client=client, coarse=coarse)


def _common(names_of):
    """Returns the class names of the files that have any, which must be equal."""
    known = {file: names for file, names in names_of.items() if names}
    first = next(iter(known), None)
    for file, names in known.items():
        if names != known[first]:
            raise UserError(f"{file}: other class names than {first.name}; expected the files of one data set")
    return known.get(first)
