"""What is reported of measurements: rows for a file, and tables of them for people."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks import network_steps
from experiments.benchmarks.network_steps import BATCH_SIZE
from experiments.benchmarks.worker import Measurement

Row = dict[str, Any]


def make_row(
    workload: str, system: str, measured: Measurement, way: str, ratios: Sequence[float] = (), scale: float = 1.0
) -> Row:
    """What is reported of a system that was timed in that way; rates are of the median round."""
    median = statistics.median(measured.seconds)
    return {
        "workload": workload,
        "scale": scale,
        "system": system,
        "timed": way,
        "seconds_per_round": _moments(measured.seconds),
        "samples_per_second": measured.samples / median,
        "client_steps_per_second": measured.steps / median,
        "padding_efficiency": measured.samples / measured.processed,
        "ratio": _moments(ratios),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "final_loss": measured.loss,
        "layout": measured.layout,
    }


def title(row: Row) -> str:
    """The workload for people, with its scale unless it is whole."""
    return row["workload"] if row["scale"] == 1 else f"{row['workload']} (scale {row['scale']:g})"


def panel(row: Row) -> str:
    """What rows have in common whose seconds can be compared, for people."""
    return f"{title(row)}, {row['timed']}"


def speed(row: Row) -> str:
    """True samples per second for people, and the ratio if there is one."""
    ratio = " ({median:.2f}x, {min:.2f} to {max:.2f})".format(**row["ratio"]) if row["ratio"] else ""
    return f"{row['samples_per_second']:,.0f}{ratio}"


def table(rows: list[Row]) -> str:
    """The rows for people."""
    heads = ("workload", "system", "timed", "s/round (min-max)", "samples/s", "steps/s", "unpadded")
    heads += ("ratio (min-max)", "first round s", "MiB", "final loss", "layout")
    return _align([heads, *map(_cells, rows)])


def overhead_table(rows: list[Row]) -> str:
    """The rows of ``--methods`` for people."""
    heads = ("method", "s/round (min-max)", "over FedAvg (min-max)")
    return _align([heads, *((row["method"], *_overhead_cells(row)) for row in rows)])


def augmentation_table(rows: list[Row]) -> str:
    """The rows of ``--augmentations`` for people."""
    heads = ("augmentation", "s/round (min-max)", "over none (min-max)", "us/image")
    cells = [(row["augmentation"], *_overhead_cells(row), f"{row['microseconds_per_image']:.1f}") for row in rows]
    return _align([heads, *cells])


def network_row(network: str, system: str, found: Mapping[str, Any], ratios: Sequence[float] = ()) -> Row:
    """What is reported of a network on a system."""
    steps = network_steps.CLIENTS * network_steps.STEPS
    seconds = [of_round / steps for of_round in found["seconds"]]
    return {
        "network": network,
        "system": system,
        "seconds_per_step": _moments(seconds),
        "images_per_second": BATCH_SIZE / statistics.median(seconds),
        "ratio": _moments(ratios),
        "seconds_to_first_round": found["seconds_to_first_round"],
    }


def network_table(rows: list[Row]) -> str:
    """The rows of ``--networks`` for people."""
    heads = ("network", "system", "ms/step (min-max)", "images/s", "ratio (min-max)", "first round s")
    return _align([heads, *map(_network_cells, rows)])


def growth_row(workload: str, clients: int, measured: Measurement, costs: Sequence[float] = ()) -> Row:
    """What is reported of a number of clients; ``costs``: seconds per sample over those of the fewest clients."""
    return {
        "workload": workload,
        "clients": clients,
        "seconds_per_round": _moments(measured.seconds),
        "samples_per_second": measured.samples / statistics.median(measured.seconds),
        "cost": _moments(costs),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "layout": measured.layout,
    }


def growth_table(rows: list[Row]) -> str:
    """The rows of ``--growth`` for people."""
    heads = ("workload", "clients", "s/round (min-max)", "samples/s", "s/sample over first (min-max)")
    return _align([(*heads, "first round s", "MiB", "layout"), *map(_growth_cells, rows)])


def _overhead_cells(row):
    return _range(row["seconds_per_round"], "4g"), _range(row["overhead"], "3f")


def _growth_cells(row):
    speeds = _range(row["seconds_per_round"], "4g"), f"{row['samples_per_second']:.0f}", _ratio(row["cost"])
    ends = f"{row['seconds_to_first_round']:.1f}", f"{row['peak_memory_mib']:.0f}", row["layout"]
    return row["workload"], str(row["clients"]), *speeds, *ends


def _network_cells(row):
    milliseconds = {name: 1000 * seconds for name, seconds in row["seconds_per_step"].items()}
    speed = f"{row['images_per_second']:.0f}", _ratio(row["ratio"]), f"{row['seconds_to_first_round']:.1f}"
    return row["network"], row["system"], _range(milliseconds, "3g"), *speed


def _align(cells):
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _moments(values):
    """None of no values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def _ratio(moments):
    return _range(moments, "2f") if moments else ""


def _range(moments, digits):
    return "{0:.{d}} ({1:.{d}}-{2:.{d}})".format(*(moments[name] for name in ("median", "min", "max")), d=digits)


def _cells(row):
    rates = (f"{row[name]:.0f}" for name in ("samples_per_second", "client_steps_per_second"))
    speeds = _range(row["seconds_per_round"], "4g"), *rates, f"{row['padding_efficiency']:.0%}", _ratio(row["ratio"])
    ends = f"{row['seconds_to_first_round']:.1f}", f"{row['peak_memory_mib']:.0f}", f"{row['final_loss']:.4f}"
    return title(row), row["system"], row["timed"], *speeds, *ends, row["layout"]
