"""Measurements as rows of a JSON file, and as printed tables."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments.benchmarks.runner import Measurement

Spread = dict[str, float]
Row = dict[str, Any]


def row(
    case: str, system: str, measured: Measurement, timed: str, ratios: Sequence[float] = (), scale: float = 1.0
) -> Row:
    """Returns the measurements of a system in a case, such as a workload; ``timed`` says how.

    Rates are of the median round; ``ratio``, the speed relative to the baseline's, and ``cost`` are inverse.
    """
    median = statistics.median(measured.seconds)
    return {
        **{"case": case, "system": system, "scale": scale, "timed": timed},
        "seconds_per_round": spread(measured.seconds),
        "seconds_per_step": spread([seconds / measured.steps for seconds in measured.seconds]),  # of a client
        "samples_per_second": measured.samples / median,  # true samples
        "client_steps_per_second": measured.steps / median,
        "padding_efficiency": measured.samples / measured.processed,
        "ratio": spread(ratios),
        "cost": spread([1 / ratio for ratio in ratios]),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "final_loss": measured.loss,
        "layout": measured.layout,
        "microseconds_added": None,  # to the baseline's, for each sample
    }


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the median, smallest and largest value; None without values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns the rows as a printed table with these headings."""
    cells = [columns, *([_CELLS[heading](row) for heading in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def title(row: Row) -> str:
    """Returns the workload's title, with its scale unless that is 1."""
    return row["case"] if row["scale"] == 1 else f"{row['case']} (scale {row['scale']:g})"


def _value(name: str, form: str = "") -> Callable[[Row], str]:
    return lambda row: format(row[name], form)


def _range(name: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    def cell(row):
        numbers = [format(factor * value, form) for value in (row[name] or {}).values()]
        return "{} ({}-{})".format(*numbers) if numbers else ""

    return cell


_CELLS = {  # by heading
    "workload": title,
    **dict.fromkeys(("network", "vit"), _value("case")),
    **dict.fromkeys(("system", "method", "augmentation", "storage", "trained", "clients"), _value("system")),
    "timed": _value("timed"),
    "s/round (min-max)": _range("seconds_per_round", ".4g"),
    "ms/step (min-max)": _range("seconds_per_step", ".3g", 1000),
    **dict.fromkeys(("samples/s", "images/s"), _value("samples_per_second", ".0f")),
    "steps/s": _value("client_steps_per_second", ".0f"),
    "us/image": _value("microseconds_added", ".1f"),
    "unpadded": _value("padding_efficiency", ".0%"),
    "ratio (min-max)": _range("ratio", ".2f"),
    **{f"over {what} (min-max)": _range("cost", ".3f") for what in ("FedAvg", "none", "host")},
    **{f"{what} (min-max)": _range("cost", ".2f") for what in ("over adapters", "s/sample over first")},
    "first round s": _value("seconds_to_first_round", ".1f"),
    "MiB": _value("peak_memory_mib", ".0f"),
    "final loss": _value("final_loss", ".4f"),
    "layout": _value("layout"),
}
