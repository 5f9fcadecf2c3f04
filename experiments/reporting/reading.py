"""From a study's folder to the ``Study`` that a report is drawn from."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.cells import arms_of, settings_of
from experiments.reporting.study import Arrays, Row, Run, Study
from fedjax_collapse.arrays import read_arrays, read_npz
from fedjax_collapse.records import UserError


def read_study(path: Path | str) -> Study:
    """The study in a folder. ``config.json`` and the rows of at least one run are required, the rest is optional.

    Raises:
        UserError: the folder holds no study, or a file in it cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected the folder of a study")
    if not (path / "config.json").is_file():
        raise UserError(f"{path / 'config.json'}: no such file; expected the folder of a study")
    config = read_json(path / "config.json")
    has_settings = bool(config.get("settings"))
    files = path.glob("*/*/seed*/metrics.jsonl" if has_settings else "*/seed*/metrics.jsonl")
    folders = [file.parent for file in files if file.parent.name.removeprefix("seed").isdecimal()]
    runs = [_read_run(folder, folder.parents[1].name if has_settings else "") for folder in folders]
    runs = [run for run in runs if run.metrics]
    if not runs:
        place = "<setting>/" * has_settings + "<arm>/seed<k>/metrics.jsonl"
        raise UserError(f"{path}: no evaluated round in any {place}; start the study first")
    arms, settings = list(arms_of(config)), list(settings_of(config))
    runs.sort(key=lambda run: (*_place(run.setting, settings), *_place(run.arm, arms), run.seed))
    summary = read_json(path / "summary.json", optional=True)
    for arm, metrics in summary.items():
        if not isinstance(metrics, dict) or not all(
            entry is None or isinstance(entry, dict) for entry in metrics.values()
        ):
            raise UserError(f"{path / 'summary.json'}: arm {arm!r} should map metrics to mean, std and n")
    return Study(path, config, read_starts(path), summary, tuple(runs))


def read_starts(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """What ``provenance.json`` says of every start of a study, in their order; empty if there is no such file.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / "provenance.json"
    record = read_json(path, optional=True)
    starts = record.get("starts", [record] if record else [])  # an older file is that of one start
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise UserError(f"{path}: 'starts' should be a list of JSON objects")
    return tuple(starts)


def layouts_of(starts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Of each cell the different layouts, with kind of device and convolutions, in which starts have trained it."""
    layouts: dict[str, list[str]] = {}
    for start in starts:
        kind = re.sub(r"[_:]?\d+$", "", str((start.get("devices") or ["?"])[0]))
        for arm, layout in (start.get("layouts") or {}).items():
            convolutions = (start.get("convolutions") or {}).get(arm) or {}
            lowerings = ", ".join(f"{count} {lowering}" for lowering, count in sorted(convolutions.items()))
            convolved = f"; convolutions: {lowerings}" if lowerings else ""
            layouts.setdefault(arm, []).append(f"{layout} ({kind}{convolved})")
    return {arm: list(dict.fromkeys(of_arm)) for arm, of_arm in layouts.items()}


def _place(name: str, order: list[str]) -> tuple[int, str]:
    """What sorts names by their order, and others behind them."""
    return (order.index(name) if name in order else len(order)), name


def _read_run(folder: Path, setting: str) -> Run:
    return Run(
        folder.parent.name,
        int(folder.name.removeprefix("seed")),
        _read_rows(folder / "metrics.jsonl"),
        _read_rows(folder / "timing.jsonl", optional=True),
        _checked(folder / "clients.npz", read_arrays(folder, "clients"), matrices=("task_loss", "steps")),
        _checked(
            folder / "spectra.npz", read_arrays(folder, "spectra"), ("server", "local"), matrices=("server", "local")
        ),
        _checked(folder / "partition.npz", read_npz(folder / "partition.npz"), ("class_counts",)),
        setting,
    )


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no file and it is ``optional``.

    Raises:
        UserError: it cannot be read, or is no object.
    """
    if optional and not path.exists():
        return {}
    return _parse(path, _read_text(path))


def _read_rows(path: Path, optional: bool = False) -> tuple[Row, ...]:
    """Rows by round; of a round that was written twice, the later. A last line cut short by a crash is left out."""
    if optional and not path.exists():
        return ()
    complete, _, rest = _read_text(path).rpartition("\n")
    rows = [_parse(f"{path}, line {n}", line) for n, line in enumerate(complete.splitlines(), 1) if line.strip()]
    with contextlib.suppress(UserError):
        rows += [_parse(path, rest)] if rest.strip() else []
    by_round = {}
    for row in rows:
        if type(row.get("round")) is not int:
            raise UserError(f"{path}: a row has no whole number as its round")
        by_round[row["round"]] = row
    return tuple(by_round[r] for r in sorted(by_round))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__})") from error


def _parse(path: Path | str, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}: expected a JSON object")
    return record


def _checked(path: Path, arrays: Arrays, required: Iterable[str] = (), matrices: Iterable[str] = ()) -> Arrays:
    for name in required if arrays else ():
        if name not in arrays:
            raise UserError(f"{path}: has no array {name!r}")
    for name in matrices:
        if name in arrays and arrays[name].ndim != 2:
            raise UserError(f"{path}: {name!r} has shape {arrays[name].shape}, expected a row for each of its rounds")
    return arrays
