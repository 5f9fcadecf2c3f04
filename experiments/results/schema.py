"""The valid content of each file of a study, checked once, where the file is read for a report."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from experiments.results.paper import check_kinds
from fedjax_collapse.config.cells import arms_of, merged, settings_of
from fedjax_collapse.core.records import EPOCH, MEASURED, UserError
from fedjax_collapse.core.round_arrays import Arrays
from fedjax_collapse.schema.options import Count, Fraction, Interval, Natural, Seed, check_value

Kinds = Mapping[str, Any]  # by key the annotation of its value, if present

_Number = Annotated[float, Interval(-1.7e308, 1.7e308)]
_CONFIG: Kinds = {
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
_START: Kinds = {  # of provenance.json
    "devices": tuple[str, ...],
    "layouts": dict[str, str],
    "convolutions": dict[str, dict[str, Natural]],
    "sha256": dict[str, dict[str, dict[str, str]]],
}
_METRIC: Kinds = {"mean": _Number | None, "std": _Number | None, "n": Natural, "of": str}  # in a study's summary
_TASK = "task_loss"
_DEEPEST = 50  # levels of nested JSON


@contextlib.contextmanager
def naming(place: Path | str) -> Iterator[None]:
    """Prefixes errors of its body with the file that they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def parse(text: bytes) -> dict[str, Any]:
    """Returns the object of a JSON text.

    Raises:
        UserError: it is not an object, or has values that no report can show: numbers that are not finite, text that is
            not Unicode, too many levels.
    """
    try:
        record = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError("expected a JSON object")
    if problem := _problem(record):
        raise UserError(problem)
    return record


def check_config(config: Mapping[str, Any]) -> None:
    """Raises UserError unless tables can be made from a config's arms, settings, sweep and paper."""
    _check(config, _CONFIG)
    check_kinds(config.get("paper", {}), bool(config.get("settings")))
    for changes in settings_of(config).values():
        of_setting = merged(config, changes)
        _check(of_setting, _CONFIG)
        arms_of(of_setting)
        for name, over in of_setting.get("means", {}).items():
            if not over:
                raise UserError(f"means.{name}: expected at least one setting")


def check_summary(summary: Mapping[str, Any]) -> None:
    """Raises UserError unless a summary maps cells to metrics to numbers, and ``failed`` to messages by seed."""
    for cell, metrics in summary.items():
        check_value(cell, metrics, dict)
        for metric, entry in metrics.items():
            check_value(f"{cell}: {metric}", entry, dict[str, str] if metric == "failed" else dict | None)
            if metric != "failed" and entry:
                _check(entry, _METRIC, f"{cell}: {metric}: ")


def check_starts(starts: Any) -> None:
    """Raises UserError unless the value is a list of records of a study's starts."""
    check_value("starts", starts, tuple[dict, ...])
    for start in starts:
        _check(start, _START)


def check_run_summary(summary: Mapping[str, Any]) -> None:
    """Raises UserError unless the summary records which model the run's accuracy is of."""
    if "headline" not in summary:
        raise UserError("has no headline; start this run again, which writes it again")
    _check(summary, {"headline": str, "local": str})


def check_row(row: Mapping[str, Any]) -> None:
    """Raises UserError unless a row of metrics has a round, and numbers or null; measurements are not checked."""
    check_value("round", row.get("round"), Count)
    for name, value in row.items():
        if isinstance(value, (str, bool, dict, list)) and not name.startswith(MEASURED):
            raise UserError(f"{name} is {json.dumps(value)[:80]}, expected a number or null")


def check_clients(arrays: Arrays) -> None:
    """Raises UserError unless there are numbers for each round and client."""
    names = [name for name in arrays if name != "round"]
    for name in names:
        _check_array(arrays, name, "biuf", 2)
        _check_width(arrays, name, names[0])
    epochs: dict[str, set[str]] = {}
    for name in (name.removeprefix(EPOCH) for name in names if name.startswith(EPOCH)):
        epochs.setdefault(name.partition("/")[0], set()).add(name.partition("/")[2])
    first = epochs.get("1", set())
    if not all(number.isdecimal() and logged == first for number, logged in epochs.items()) or (
        epochs and _TASK not in first
    ):
        raise UserError(f"{EPOCH}1, {EPOCH}2 and so on should have the same arrays, {_TASK} among them")


def check_spectra(arrays: Arrays) -> None:
    """Raises UserError unless there are numbers for each round and feature, of the server's model and local ones."""
    for name in ("server", "local") if arrays else ():
        _check_array(arrays, name, "f", 2)
        _check_width(arrays, name, "server")
    if "watched" in arrays:
        _check_array(arrays, "watched", "iu", 2)
        _check_array(arrays, "clients", "f", 3)
        rounds, features = arrays["server"].shape
        if arrays["clients"].shape != (*arrays["watched"].shape, features) or len(arrays["watched"]) != rounds:
            raise UserError(f"'clients' has shape {arrays['clients'].shape}, 'server' has {arrays['server'].shape}")


def check_partition(arrays: Arrays) -> None:
    """Raises UserError unless there are counts of examples for each client and class, and for any domains."""
    for name, names in (("class_counts", "class_names"), ("domain_counts", "domain_names")) if arrays else ():
        if name == "class_counts" or name in arrays:
            _check_array(arrays, name, "iu", 2)
            counts = arrays[name]
            if counts.size and not 0 <= counts.min() <= counts.max() < 2**31:
                raise UserError(f"{name!r} has values that are not numbers of examples")
            if len(counts) != len(arrays["class_counts"]):
                raise UserError(f"{name!r} has shape {counts.shape}, expected a row for each client")
        if names in arrays:
            _check_array(arrays, names, "U", 1)
    if "domain_counts" in arrays and len(arrays.get("domain_names", ())) != arrays["domain_counts"].shape[1]:
        raise UserError("'domain_names' should have a name for each domain")


def _check(record, kinds, place=""):
    for key, kind in kinds.items():
        if key in record:
            check_value(f"{place}{key}", record[key], kind)


def _check_array(arrays, name, kinds, dimensions):
    if name not in arrays:
        raise UserError(f"has no array {name!r}")
    values = arrays[name]
    if values.dtype.kind not in kinds:
        raise UserError(f"{name!r} is of type {values.dtype}, expected {'text' if kinds == 'U' else 'numbers'}")
    if values.ndim != dimensions:
        raise UserError(f"{name!r} has shape {values.shape}, expected {dimensions} dimensions")


def _check_width(arrays, name, like):
    if arrays[name].shape != arrays[like].shape or not arrays[name].shape[1]:
        raise UserError(f"{name!r} has shape {arrays[name].shape}, {like!r} has {arrays[like].shape}")


def _problem(value: Any, depth: int = 0) -> str:
    """Describes what no report can show in a JSON value; empty if nothing."""
    if depth > _DEEPEST:
        return f"expected at most {_DEEPEST} levels"
    if isinstance(value, (dict, list)):
        items = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        return next(filter(None, (_problem(item, depth + 1) for item in items)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return "a number in it is not finite"
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{value[:80]!a} is not Unicode text"
    return ""


def _refuse(constant):
    raise ValueError(f"{constant} is not a number")
