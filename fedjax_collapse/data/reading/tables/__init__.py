"""Tables of any kind, opened as pyarrow's: Parquet, Arrow, csv, tsv and jsonl files."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import files_below, reading
from fedjax_collapse.data.reading.parts import find_files, part_and_data_set
from fedjax_collapse.data.reading.tables.tabular import check_columns
from fedjax_collapse.data.reading.untrusted import ROW, Allowance, check_nesting

_ARROW_FILE = b"ARROW1"  # else it is a stream, as Hugging Face's are


def find_tables(path: Path, validation: str) -> tuple[str, list[Path], list[Path]]:
    """Returns the kind of a file, or of the files in a folder, and the files of the training and of the test part.

    Raises:
        UserError: as in ``find_files``; if files of several kinds hold parts.
    """
    found = [file.relative_to(path) for file in files_below(path)] if path.is_dir() else [Path(path.name)]
    parts = [file for file in found if part_and_data_set(file)[0]] or found
    suffixes = {file.suffix.lower() for file in parts}
    kinds = [kind for kind in _OPEN if f".{kind.lower()}" in suffixes] or ["Parquet"]
    if len(kinds) > 1:
        raise UserError(
            f"{path}: it has parts in files of several kinds, {', '.join(kinds)}; move those of all but one"
        )
    return kinds[0], *find_files(path, kinds[0], validation)


def read_table(file: Path, kind: str, choose: Callable[[list[str]], Sequence[str]] = lambda names: names) -> Any:
    """Returns the columns of a table that ``choose`` selects; values of csv and tsv files are texts.

    Raises:
        UserError: it cannot be read, or two columns have one name.
    """
    with reading_table(file, kind):
        return checked(file, _OPEN[kind](file, functools.partial(_chosen, file, choose)))


def checked(file: Path, table: Any) -> Any:
    """Returns a table that was read from a file, after checks.

    Raises:
        Implausible: if it has far more rows than the file can have.
        pyarrow.ArrowException: if its texts are not UTF-8, or its parts do not fit together.
    """
    Allowance(file).take(ROW * len(table))
    table.validate(full=True)
    return table


def choose_column(file: Path, existing: Sequence[str], key: str, name: str, usual: Sequence[str]) -> str:
    """Returns the named column, else the first of the usual columns that exists.

    Raises:
        UserError: there is no such column; the message names the option ``data.<key>_column``.
    """
    chosen = name or next((each for each in usual if each in existing), usual[0])
    if chosen not in existing:
        raise UserError(f"{file}: no column {chosen!r} among {', '.join(existing)}; set data.{key}_column")
    return chosen


def reading_table(file: Path, kind: str) -> contextlib.AbstractContextManager:
    """Returns the context in which errors of pyarrow become a UserError of one line."""
    return reading(file, f"cannot be read as {kind}", "fetch or write it again")


def _chosen(file, choose, existing):
    check_columns(file, existing)
    return list(dict.fromkeys(choose(existing)))


def _arrow(file, choose):
    """Returns the table of an Arrow file or stream."""
    import pyarrow

    with pyarrow.OSFile(str(file)) as stream:
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
        table = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(stream).read_all()
    return table.select(choose(table.column_names))


def _parquet(file, choose):
    import pyarrow.parquet

    facts = pyarrow.parquet.read_metadata(file)  # a file may claim to hold far more than it can
    size = sum(facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
    Allowance(file).take(max(size, ROW * facts.num_rows))
    wanted = choose(pyarrow.parquet.read_schema(file).names)
    return pyarrow.parquet.read_table(file, columns=wanted, partitioning=None)


def _csv(file, choose, delimiter=","):
    """Reads all values as texts, also numbers and empty values."""
    import pyarrow
    import pyarrow.csv

    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True, delimiter=delimiter)
    with pyarrow.csv.open_csv(file, parse_options=parsing) as stream:
        names = stream.schema.names
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    return pyarrow.csv.read_csv(file, parse_options=parsing, convert_options=options).select(choose(names))


def _jsonl(file, choose):
    import pyarrow.json

    with open(file, "rb") as lines:
        check_nesting(lines)  # pyarrow would crash
    table = pyarrow.json.read_json(file)
    return table.select(choose(table.column_names))


_OPEN = {
    "Parquet": _parquet,
    "Arrow": _arrow,
    "CSV": _csv,
    "TSV": functools.partial(_csv, delimiter="\t"),
    "JSONL": _jsonl,
}
