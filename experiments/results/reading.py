"""Reads a study's folder into a ``Study``, from which reports are made."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results import schema
from experiments.results.formats import name_of
from experiments.results.schema import naming
from experiments.results.study_results import Arrays, Row, Run, Study, headline_of, shown
from experiments.waiting import Wait, unseen
from fedjax_collapse.config.cells import CellName, arms_of, settings_of
from fedjax_collapse.config.folder import CONFIG, METRICS, PARTITION, PROVENANCE, SUMMARY, TIMING
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import read_arrays, read_npz
from fedjax_collapse.core.rows import finished_lines


class NothingEvaluated(UserError):
    """A study without results."""


def read_study(path: Path | str, wait: Wait = unseen) -> Study:
    """Reads the study in a folder. ``config.json`` and the rows of at least one run are required, the rest is optional.

    ``wait`` (``waiting.py``) shows how many runs have been read.

    Raises:
        UserError: the folder is not a study's, or a file in it cannot be read or is invalid.
    """
    path = Path(path)
    config = read_config(path)
    has_settings = bool(config.get("settings"))
    found = path.glob("*/" * has_settings + f"*/seed*/{METRICS}")
    folders = [file.parent for file in found if file.parent.name.removeprefix("seed").isdecimal()]
    runs = []
    with wait(f"reading {len(folders)} runs of {path}", len(folders)) as advance:
        for folder in folders:
            runs.append(_read_run(folder, name_of(folder.parents[1]) if has_settings else ""))
            advance()
    runs = [run for run in runs if run.metrics]
    if not runs:
        place = "<setting>/" * has_settings + f"<arm>/seed<k>/{METRICS}"
        raise NothingEvaluated(f"{path}: no evaluated round in any {place}; start the study first")
    arms, settings = list(arms_of(config)), list(settings_of(config))
    runs.sort(key=lambda run: (*_place(run.setting, settings), *_place(run.arm, arms), run.seed))
    _check_alike(runs)
    summary = read_json(path / SUMMARY, schema.check_summary, optional=True)
    return Study(path, config, read_starts(path), summary, tuple(runs))


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the config of the study in a folder.

    Raises:
        UserError: the folder is not a study's, or its config is invalid.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected the folder of a study")
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder / CONFIG}: no such file; expected the folder of a study")
    return read_json(folder / CONFIG, schema.check_config)


def read_starts(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Reads the provenance of every start of a study, in their order; empty if there is none.

    Raises:
        UserError: ``provenance.json`` cannot be read.
    """
    path = folder / PROVENANCE
    record = read_json(path, optional=True)
    starts = record.get("starts", [record] if record else [])  # an older file is that of one start
    with naming(path):
        schema.check_starts(starts)
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
    """Reads the summary of a finished run; empty for an unfinished one.

    Raises:
        UserError: the file cannot be read, or is invalid.
    """
    return read_json(run / SUMMARY, schema.check_run_summary, optional=True)


def read_json(path: Path, check: Callable[[Any], None] = lambda record: None, optional: bool = False) -> dict[str, Any]:
    """Reads the object in a JSON file, validated by ``check``; empty if the file is ``optional`` and missing.

    Raises:
        UserError: the file cannot be read, or is invalid.
    """
    if optional and not path.exists():
        return {}
    with naming(path):
        record = schema.parse(_read(path))
        check(record)
    return record


def _place(name: str, order: list[str]) -> tuple[int, str]:
    """Returns a key that sorts names by their order, and other names after them."""
    return (order.index(name) if name in order else len(order)), name


def _read_run(folder: Path, setting: str) -> Run:
    rows, _ = _read_rows(folder / METRICS)
    timing, damaged = _read_rows(folder / TIMING, is_timing=True)
    summary = read_run_summary(folder)
    return Run(
        name_of(folder.parent),
        int(folder.name.removeprefix("seed")),
        rows,
        timing,
        _checked(folder / "clients.npz", read_arrays(folder, "clients"), schema.check_clients),
        _checked(folder / "spectra.npz", read_arrays(folder, "spectra"), schema.check_spectra),
        _checked(folder / PARTITION, read_npz(folder / PARTITION), schema.check_partition),
        setting,
        folder,
        is_finished=bool(summary),
        headline=summary.get("headline") or headline_of(rows),
        local=summary.get("local", ""),
        notes=tuple(f"{error}; its seconds are left out." for error in damaged),
    )


def _read_rows(path: Path, is_timing: bool = False) -> tuple[tuple[Row, ...], list[UserError]]:
    """Returns rows by round, the later of two for the same round, without an incomplete last line.

    Rows of timing may be missing or damaged; the errors of damaged ones are returned, too.
    """
    if is_timing and not path.exists():
        return (), []
    with naming(path):
        lines = finished_lines(_read(path))
    by_round, damaged = {}, []
    for number, line in enumerate(lines, 1):
        try:
            with naming(f"{path}, line {number}"):
                row = schema.parse(line)
                schema.check_row(row)
                by_round[row["round"]] = row
        except UserError as error:
            if not is_timing:
                raise
            damaged.append(error)
    return tuple(by_round[r] for r in sorted(by_round)), damaged


def _checked(path: Path, arrays: Arrays, check: Callable[[Arrays], None]) -> Arrays:
    with naming(path):
        check(arrays)
    return shown(arrays)


def _check_alike(runs: Sequence[Run]) -> None:
    """Raises UserError if runs of one cell have spectra of different lengths, which cannot be averaged."""
    first: dict[CellName, Run] = {}
    for run in (run for run in runs if run.spectra):
        other = first.setdefault(run.cell, run)
        features, expected = (of.spectra["server"].shape[1] for of in (run, other))
        if features != expected:
            raise UserError(f"{run.folder / 'spectra.npz'}: {features} features, {other.folder} has {expected}")


def _read(path: Path) -> bytes:
    try:
        return files.read(path)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})") from error
