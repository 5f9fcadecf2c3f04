"""Tables in text with a line per image: its name, its class and its natural client.

Google Landmarks and iNaturalist, as divided for federated learning, have the columns ``user_id``, ``image_id`` and
``class``, and for the test ``image_id`` and ``class``.
"""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.images.encoded import Encoded, Listing, divide
from fedjax_collapse.data.reading.images.folders import SUFFIXES
from fedjax_collapse.data.reading.listings import check_is_file, file_below, files_below
from fedjax_collapse.data.reading.tables.tabular import check_class, check_columns, number_classes


class TextColumns(NamedTuple):
    """Names of columns."""

    image: str
    label: str
    client: str


def list_csv(
    path: Path, test_file: Path | None, image_folder: Path, columns: TextColumns, test_fraction: float, seed: int
) -> Listing:
    """Lists the images of a csv file, and of another one for the test, in which the column of clients is optional.

    Without a test file, a ``test_fraction`` of each client's examples is held out. The name of an image is a path below
    ``image_folder``, or the name of a file in any of its subfolders, with or without its suffix; it leads to no other
    place. Classes are integers from 0, or names, which are sorted.

    Raises:
        UserError: if a file or column is missing, or if a line is not as expected; the message names it.
    """
    if not os.path.isdir(image_folder):
        raise UserError(f"{image_folder}: there is no such folder; set data.image_folder to the folder of the images")
    find = _finder(image_folder)
    train, test = _read(path, columns, find), _read(test_file, columns, find, needs_client=False) if test_file else []
    names, class_of = number_classes(path, [label for _, _, label, _ in train])
    parts = [
        [Encoded(file, str(file), class_of(where, label), client=client) for where, file, label, client in part]
        for part in (train, test)
    ]
    return Listing(*(parts if test_file else divide(path, parts[0], test_fraction, seed)), names)


def _read(path, columns: TextColumns, find: Callable[[str, str], Path], needs_client: bool = True):
    """Returns (place, file, class, client) of every line."""
    check_is_file(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # without a byte-order mark
            is_tabbed = Path(path).suffix.lower() == ".tsv"
            reader = csv.DictReader(file, strict=True, delimiter="\t" if is_tabbed else ",")
            existing = reader.fieldnames or ()
            lines = [(f"{path}, line {reader.line_num}", line) for line in reader]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read as csv ({reason}); fetch or write it again") from None
    check_columns(path, existing)
    for key, name in columns._asdict().items():
        if name not in existing and (key != "client" or needs_client):
            raise UserError(f"{path}: no column {name!r} among {', '.join(existing)}; set data.{key}_column")
    if not lines:
        raise UserError(f"{path}: it has no lines below the names of columns; fetch or write it again")
    wanted = [name for name in columns if name in existing]
    for where, line in lines:
        if None in line or not all(line[name] for name in wanted):
            raise UserError(f"{where}: expected {len(existing)} values, none of {', '.join(wanted)} empty")
        check_class(where, line[columns.label])
    return [
        (where, find(line[columns.image], where), line[columns.label], line.get(columns.client))
        for where, line in lines
    ]


def _finder(folder):
    """Returns a function from the name of an image, and where it is written, to its file."""
    named: dict[str, list[Path]] = {}
    for file in files_below(folder):
        if file.suffix.lower() in SUFFIXES:
            for name in {file.name, file.stem, str(file.relative_to(folder).with_suffix(""))}:
                named.setdefault(name, []).append(file)

    def find(name, where):
        if os.path.isfile(exact := file_below(folder, name, where)):
            return exact
        found = named.get(name, [])
        if len(found) != 1:
            reason = f"{found[0]} and {found[1]} both are image" if found else f"there is no image in {folder} for"
            raise UserError(f"{where}: {reason} {name!r}; correct data.image_folder, or the file's name")
        return found[0]

    return find
