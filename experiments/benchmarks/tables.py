"""What is reported of measurements: rows for a file, and tables of them for people."""

import statistics
from typing import Any

from experiments.benchmarks import network_steps
from experiments.benchmarks.network_steps import BATCH_SIZE
from experiments.benchmarks.worker import Measurement

Row = dict[str, Any]


def make_row(workload: str, system: str, total_seconds: float, measured: Measurement, scale: float = 1.0) -> Row:
    """What is reported of a measurement, all but the ratio; rates are of the median round."""
    median = statistics.median(measured.seconds)
    return {
        "workload": workload,
        "scale": scale,
        "system": system,
        "seconds_per_round": _moments(measured.seconds),
        "samples_per_second": measured.samples / median,
        "client_steps_per_second": measured.steps / median,
        "padding_efficiency": measured.samples / measured.processed,
        "seconds_to_first_round": measured.seconds_to_first_round,
        "total_seconds": total_seconds,
        "peak_memory_mib": measured.peak_memory_mib,
        "final_loss": measured.loss,
        "layout": measured.layout,
    }


def add_ratios(rows: list[Row]) -> list[Row]:
    """The rows with ``ratio``: throughput over the best PyTorch loop's of the same workload, None if none was run."""
    best = {}
    for row in rows:
        if row["system"].startswith("pytorch"):
            best[row["workload"]] = max(best.get(row["workload"], 0), row["samples_per_second"])
    return [
        row | {"ratio": row["samples_per_second"] / best[row["workload"]] if row["workload"] in best else None}
        for row in rows
    ]


def title(row: Row) -> str:
    """The workload for people, with its scale unless it is whole."""
    return row["workload"] if row["scale"] == 1 else f"{row['workload']} (scale {row['scale']:g})"


def speed(row: Row) -> str:
    """True samples per second for people, and the ratio if there is one."""
    ratio = "" if row["ratio"] is None else f" ({row['ratio']:.2f}x)"
    return f"{row['samples_per_second']:,.0f}{ratio}"


def table(rows: list[Row]) -> str:
    """The rows for people."""
    heads = ("workload", "system", "s/round (min-max)", "samples/s", "steps/s", "unpadded", "ratio")
    heads += ("first round s", "total s", "MiB", "final loss", "layout")
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


def network_row(network: str, system: str, measured: network_steps.Measurement) -> Row:
    """What is reported of a network on a system, all but the ratio."""
    seconds = measured.seconds_per_step
    return {
        "network": network,
        "system": system,
        "seconds_per_step": _moments(seconds),
        "images_per_second": BATCH_SIZE / statistics.median(seconds),
        "seconds_to_first_round": measured.seconds_to_first_round,
    }


def add_network_ratios(rows: list[Row]) -> list[Row]:
    """The rows with ``ratio``: speed over that of the faster PyTorch loop of the same network."""
    best = {}
    for row in rows:
        if row["system"].startswith("pytorch"):
            best[row["network"]] = max(best.get(row["network"], 0), row["images_per_second"])
    return [row | {"ratio": row["images_per_second"] / best[row["network"]] if best else None} for row in rows]


def network_table(rows: list[Row]) -> str:
    """The rows of ``--networks`` for people."""
    heads = ("network", "system", "ms/step (min-max)", "images/s", "ratio", "first round s")
    return _align([heads, *map(_network_cells, rows)])


def growth_row(workload: str, clients: int, measured: Measurement) -> Row:
    """What is reported of a number of clients, all but the cost."""
    return {
        "workload": workload,
        "clients": clients,
        "seconds_per_round": _moments(measured.seconds),
        "samples_per_second": measured.samples / statistics.median(measured.seconds),
        "seconds_to_first_round": measured.seconds_to_first_round,
        "peak_memory_mib": measured.peak_memory_mib,
        "layout": measured.layout,
    }


def add_growth(rows: list[Row]) -> list[Row]:
    """The rows with ``cost``: seconds per sample over those of the same workload's first row, 1 if nothing grows."""
    first = {}
    for row in rows:
        first.setdefault(row["workload"], row["samples_per_second"])
    return [row | {"cost": first[row["workload"]] / row["samples_per_second"]} for row in rows]


def growth_table(rows: list[Row]) -> str:
    """The rows of ``--growth`` for people."""
    heads = ("workload", "clients", "s/round (min-max)", "samples/s", "s/sample over first", "first round s", "MiB")
    return _align([(*heads, "layout"), *map(_growth_cells, rows)])


def _overhead_cells(row):
    return _range(row["seconds_per_round"], "4g"), _range(row["overhead"], "3f")


def _growth_cells(row):
    speeds = _range(row["seconds_per_round"], "4g"), f"{row['samples_per_second']:.0f}", f"{row['cost']:.2f}"
    ends = f"{row['seconds_to_first_round']:.1f}", f"{row['peak_memory_mib']:.0f}", row["layout"]
    return row["workload"], str(row["clients"]), *speeds, *ends


def _network_cells(row):
    milliseconds = {name: 1000 * seconds for name, seconds in row["seconds_per_step"].items()}
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    speed = f"{row['images_per_second']:.0f}", ratio, f"{row['seconds_to_first_round']:.1f}"
    return row["network"], row["system"], _range(milliseconds, "3g"), *speed


def _align(cells):
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _moments(seconds):
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def _range(moments, digits):
    return "{0:.{d}} ({1:.{d}}-{2:.{d}})".format(*(moments[name] for name in ("median", "min", "max")), d=digits)


def _cells(row):
    seconds = _range(row["seconds_per_round"], "4g")
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    rates = (f"{row[name]:.0f}" for name in ("samples_per_second", "client_steps_per_second"))
    speeds = *rates, f"{row['padding_efficiency']:.0%}"
    ends = f"{row['seconds_to_first_round']:.1f}", f"{row['total_seconds']:.1f}", f"{row['peak_memory_mib']:.0f}"
    return title(row), row["system"], seconds, *speeds, ratio, *ends, f"{row['final_loss']:.4f}", row["layout"]
