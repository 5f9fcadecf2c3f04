"""The files of a study and of its runs: read, and checked where they are read.

Raises UserErrors that name the file, also for content that no table or figure can show.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse.config.cells import arms_of, merged, settings_of
from fedjax_collapse.config.folder import CONFIG, PROVENANCE, SUMMARY
from fedjax_collapse.core import files
from fedjax_collapse.core.records import EPOCH, UserError
from fedjax_collapse.core.round_arrays import Arrays, read_arrays, read_npz
from fedjax_collapse.core.rows import finished_lines
from fedjax_collapse.results.metrics import LARGEST, is_measured, number
from fedjax_collapse.results.paper import check_kinds
from fedjax_collapse.schema.options import Count, Fraction, Natural, Seed, check_value
from fedjax_collapse.schema.user_code import naming

Row = Mapping[str, Any]
_CONFIG = {
    "rounds": Count,
    "clients": Count,
    "seeds": tuple[Seed, ...],
    "arms": dict[str, dict] | tuple[str, ...],
    "settings": dict[str, dict],
    "means": dict[str, tuple[str, ...]],
    "sweep": dict[str, tuple[Any, ...]],
    "paper": dict,
    "stop_at_accuracy": Fraction,
}
_START = {  # of provenance.json
    "devices": tuple[str, ...],
    "layouts": dict[str, str],
    "convolutions": dict[str, dict[str, Natural]],
    "sha256": dict[str, dict[str, dict[str, str]]],
}
# by kind, arrays that are there together, the first always: the kinds of numbers of each, and the names of its sizes
_ARRAYS = {
    "spectra": [
        {"server": "f round feature", "local": "f round feature"},
        {"watched": "iu round client", "clients": "f round client feature"},
    ],
    "partition": [
        {"class_counts": "iu client class"},
        {"class_names": "U name"},
        {"domain_counts": "iu client domain", "domain_names": "U domain"},
    ],
}
_DEEPEST = 50  # levels of nested JSON
_TASK = "task_loss"


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the config of the study in a folder."""
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder / CONFIG}: no such file; expected the folder of a study")
    return read_json(folder / CONFIG, check_config)


def read_starts(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Reads the provenance of every start of a study, in their order; empty if there is none."""
    record = read_json(folder / PROVENANCE, optional=True)
    starts = record.get("starts", [record] if record else [])  # an older file is that of one start
    with naming(folder / PROVENANCE):
        check_value("starts", starts, tuple[dict, ...])
        for start in starts:
            _check_values(start, _START)
    return tuple(starts)


def layouts_of(starts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the different layouts, with kind of device and convolutions, in which starts have trained each cell."""
    layouts: dict[str, list[str]] = {}
    for start in starts:
        kind = re.sub(r"[_:]?\d+$", "", str((start.get("devices") or ["?"])[0]))
        for arm, layout in (start.get("layouts") or {}).items():
            convolutions = (start.get("convolutions") or {}).get(arm) or {}
            lowerings = ", ".join(f"{count} {lowering}" for lowering, count in sorted(convolutions.items()))
            convolved = f"; convolutions: {lowerings}" if lowerings else ""
            layouts.setdefault(arm, []).append(f"{layout} ({kind}{convolved})")
    return {arm: list(dict.fromkeys(of_arm)) for arm, of_arm in layouts.items()}


def read_run_summary(run: Path) -> dict[str, Any]:
    """Reads the summary of a finished run; empty for an unfinished one."""
    return read_json(run / SUMMARY, _check_run_summary, optional=True)


def read_json(path: Path, check: Callable[[Any], None] = lambda record: None, optional: bool = False) -> dict[str, Any]:
    """Reads the object in a JSON file, validated by ``check``; empty if the file is ``optional`` and missing."""
    if optional and not path.exists():
        return {}
    with naming(path):
        record = _parse(_read(path))
        check(record)
    return record


def read_rows(path: Path, is_timing: bool = False) -> tuple[tuple[Row, ...], list[str]]:
    """Returns rows of numbers by round, the later of two for the same round, without an incomplete last line.

    Rows of timing may be missing or damaged; messages about damaged ones are returned, too.
    """
    if is_timing and not path.exists():
        return (), []
    with naming(path):
        lines = finished_lines(_read(path))
    by_round, damaged = {}, []
    for count, line in enumerate(lines, 1):
        try:
            with naming(f"{path}, line {count}"):
                row = _parse(line)
                check_value("round", row.get("round"), Count)
                by_round[row["round"]] = numbers_of(row)
        except UserError as error:
            if not is_timing:
                raise
            damaged.append(f"{error}; its seconds are left out.")
    if by_round and not is_timing:
        _check_alike(path, list(by_round.values()))
    return tuple(by_round[r] for r in sorted(by_round)), damaged


def read_kind(folder: Path, kind: str) -> Arrays:
    """Reads the arrays of one kind of a run; empty if there are none. Numbers that are too large become NaN."""
    path = folder / f"{kind}.npz"
    arrays = read_npz(path) if kind == "partition" else read_arrays(folder, kind)
    with naming(path):
        _check_arrays(kind, arrays)
    return arrays | {n: np.where(np.abs(a) > LARGEST, np.nan, a) for n, a in arrays.items() if a.dtype.char == "d"}


def check_failed(summary: Mapping[str, Any]) -> None:
    """Raises UserError unless a study's summary has messages by seed where runs have failed."""
    for cell, metrics in summary.items():
        check_value(cell, metrics, dict)
        check_value(f"{cell}: failed", metrics.get("failed", {}), dict[str, str])


def _parse(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_refuse)
        json.dumps(record, ensure_ascii=False).encode()  # which refuses text that is not Unicode
        if (depth := _depth(record)) > _DEEPEST:
            raise UserError(f"{depth} levels, expected at most {_DEEPEST}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError("expected a JSON object")
    return record


def _refuse(constant):
    raise ValueError(f"{constant} is not a number")


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def numbers_of(row: Mapping[str, Any]) -> Row:
    """Returns the values of a row as numbers, NaN for null; measurements may be anything."""
    for name, value in row.items():
        if isinstance(value, (str, bool, dict, list)) and not is_measured(name):
            raise UserError(f"{name} is {json.dumps(value)[:80]}, expected a number or null")
    return {name: value if name == "round" else number(value) for name, value in row.items()}


def _check_alike(path: Path, rows: Sequence[Row]) -> None:
    """Raises UserError if rows have different metrics, as if two versions had written them."""
    first, last = rows[0], rows[-1]
    if differs := [name for name in first.keys() ^ last.keys() if name.partition("/")[0] == name]:
        raise UserError(
            f"{path}: {min(differs)} is in only one of the rows of rounds {first['round']} and {last['round']}, as if "
            "two versions had written them; expected the metrics of one: remove the run's folder and start it again"
        )


def check_config(config: Mapping[str, Any]) -> None:
    """Raises UserError unless tables can be made from a config's arms, settings, sweep and paper."""
    _check_values(config, _CONFIG)
    check_kinds(config.get("paper", {}), bool(config.get("settings")))
    for changes in settings_of(config).values():
        of_setting = merged(config, changes)
        _check_values(of_setting, _CONFIG)
        arms_of(of_setting)
        for name, over in of_setting.get("means", {}).items():
            if not over:
                raise UserError(f"means.{name}: expected at least one setting")


def _check_run_summary(summary: Mapping[str, Any]) -> None:
    if "headline" not in summary:
        raise UserError("has no headline; start this run again, which writes it again")
    _check_values(summary, {"headline": str, "local": str})


def _check_values(record: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for key, kind in kinds.items():
        if key in record:
            check_value(key, record[key], kind)


def _check_arrays(kind: str, arrays: Arrays) -> None:
    """Raises UserError unless the arrays of a kind are complete, and have the sizes and numbers of ``_ARRAYS``."""
    of_clients = {name: "biuf round client" for name in arrays if name != "round"}
    groups, sizes = [of_clients] if kind == "clients" else _ARRAYS.get(kind, []), {}
    for group in groups if arrays else ():
        if group is groups[0] or next(iter(group)) in arrays:
            for name, form in group.items():
                _check_array(arrays, name, form, sizes)
    for name in arrays.keys() & {"class_counts", "domain_counts"} if kind == "partition" else ():
        if (counts := arrays[name]).size and not 0 <= counts.min() <= counts.max() < 2**31:
            raise UserError(f"{name!r} has values that are not numbers of examples")
    epochs: dict[str, set[str]] = {}
    for epoch, _, loss in (name.removeprefix(EPOCH).partition("/") for name in of_clients if name.startswith(EPOCH)):
        epochs.setdefault(epoch, set()).add(loss)
    first = epochs.get("1", set())
    if epochs and not (_TASK in first and all(of.isdecimal() and logged == first for of, logged in epochs.items())):
        raise UserError(f"{EPOCH}1, {EPOCH}2 and so on should have the same arrays, {_TASK} among them")


def _check_array(arrays: Arrays, name: str, form: str, sizes: dict[str, int]) -> None:
    """Raises UserError unless the array has these kinds of numbers and sizes; adds sizes that are not known yet."""
    kinds, *names = form.split()
    if name not in arrays:
        raise UserError(f"has no array {name!r}")
    values, expected = arrays[name], [str(sizes.get(of, of)) for of in names]
    if values.dtype.kind not in kinds:
        raise UserError(f"{name!r} is of type {values.dtype}, expected {'text' if kinds == 'U' else 'numbers'}")
    found = dict(zip(names, values.shape, strict=False))
    is_other = any(sizes.get(of, size) != size for of, size in found.items())
    if values.ndim != len(names) or is_other or 0 in values.shape[1:]:
        raise UserError(f"{name!r} has shape {values.shape}, expected ({', '.join(expected)})")
    sizes |= found


def _read(path: Path) -> bytes:
    try:
        return files.read(path)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})") from error
