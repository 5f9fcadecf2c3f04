"""Measurements as rows of a JSON file, and as printed tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.benchmarks import network_steps
from experiments.benchmarks.worker import Measurement

Row = dict[str, Any]


def workload_row(
    workload: str, system: str, measured: Measurement, timed: str, ratios: Sequence[float] = (), scale: float = 1.0
) -> Row:
    """Returns the row of a system, timed as ``timed`` says. Rates are those of the median round."""
    median = statistics.median(measured.seconds)
    return {
        "workload": workload,
        "scale": scale,
        "system": system,
        "timed": timed,
        "seconds_per_round": spread(measured.seconds),
        "samples_per_second": measured.samples / median,
        "client_steps_per_second": measured.steps / median,
        "padding_efficiency": measured.samples / measured.processed,
        "ratio": spread(ratios),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "final_loss": measured.loss,
        "layout": measured.layout,
    }


def network_row(
    network: str, system: str, found: Mapping[str, Any], ratios: Sequence[float] = (), device: str = "cpu"
) -> Row:
    """Returns the row of a network on a system."""
    steps = network_steps.CLIENTS[device] * network_steps.STEPS
    seconds = [of_round / steps for of_round in found["seconds"]]
    return {
        "network": network,
        "system": system,
        "seconds_per_step": spread(seconds),
        "images_per_second": network_steps.BATCH_SIZE / statistics.median(seconds),
        "ratio": spread(ratios),
        "seconds_to_first_round": found["seconds_to_first_round"],
    }


def growth_row(workload: str, clients: int, measured: Measurement, costs: Sequence[float] = ()) -> Row:
    """Returns the row of a number of clients; ``costs`` are seconds per sample relative to the fewest clients'."""
    return {
        "workload": workload,
        "clients": clients,
        "seconds_per_round": spread(measured.seconds),
        "samples_per_second": measured.samples / statistics.median(measured.seconds),
        "cost": spread(costs),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "layout": measured.layout,
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Returns the median, smallest and largest value; None without values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def table(mode: str, rows: Sequence[Row]) -> str:
    """Returns the rows of a mode of the command line as a printed table."""
    headings = _TABLES[mode]
    cells = [headings, *([_CELLS[heading](row) for heading in headings] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def title(row: Row) -> str:
    """Returns the workload's title, with its scale unless that is 1."""
    return row["workload"] if row.get("scale", 1) == 1 else f"{row['workload']} (scale {row['scale']:g})"


def _value(name: str, form: str = "") -> Callable[[Row], str]:
    return lambda row: format(row[name], form)


def _range(name: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    def cell(row):
        if not row[name]:
            return ""
        median, least, most = (format(factor * value, form) for value in row[name].values())
        return f"{median} ({least}-{most})"

    return cell


_CELLS = {  # by heading
    "workload": title,
    "system": _value("system"),
    "network": _value("network"),
    "method": _value("method"),
    "augmentation": _value("augmentation"),
    "storage": _value("storage"),
    "vit": _value("case"),
    "trained": _value("trained"),
    "clients": _value("clients"),
    "timed": _value("timed"),
    "s/round (min-max)": _range("seconds_per_round", ".4g"),
    "ms/step (min-max)": _range("seconds_per_step", ".3g", 1000),
    "samples/s": _value("samples_per_second", ".0f"),
    "steps/s": _value("client_steps_per_second", ".0f"),
    "images/s": _value("images_per_second", ".0f"),
    "us/image": _value("microseconds_per_image", ".1f"),
    "unpadded": _value("padding_efficiency", ".0%"),
    "ratio (min-max)": _range("ratio", ".2f"),
    "over FedAvg (min-max)": _range("overhead", ".3f"),
    "over none (min-max)": _range("overhead", ".3f"),
    "over host (min-max)": _range("overhead", ".3f"),
    "over adapters (min-max)": _range("overhead", ".2f"),
    "s/sample over first (min-max)": _range("cost", ".2f"),
    "first round s": _value("seconds_to_first_round", ".1f"),
    "MiB": _value("peak_memory_mib", ".0f"),
    "final loss": _value("final_loss", ".4f"),
    "layout": _value("layout"),
}
_SECONDS, _RATIO, _FIRST = "s/round (min-max)", "ratio (min-max)", "first round s"
_TABLES = {  # headings, by mode
    "workloads": (
        *("workload", "system", "timed", _SECONDS, "samples/s", "steps/s", "unpadded", _RATIO, _FIRST, "MiB"),
        *("final loss", "layout"),
    ),
    "methods": ("method", _SECONDS, "over FedAvg (min-max)"),
    "augmentations": ("augmentation", _SECONDS, "over none (min-max)", "us/image"),
    "storage": ("storage", _SECONDS, "over host (min-max)"),
    "adapters": ("vit", "trained", _SECONDS, "over adapters (min-max)"),
    "networks": ("network", "system", "ms/step (min-max)", "images/s", _RATIO, _FIRST),
    "growth": ("workload", "clients", _SECONDS, "samples/s", "s/sample over first (min-max)", _FIRST, "MiB", "layout"),
}
