"""The time of a client and a round, and the memory of a round: the table below the report's figure of times."""

import math
from typing import Any

import numpy as np

from experiments.results.metrics import number, show_number
from experiments.results.study_results import Row, Run, Study, moments
from fedjax_collapse.config.cells import CellName

_MIB = 2**20
HEADING = ["Arm", "Runs", "Rounds timed", "Seconds per round", "per client", "Evaluation (s)"]
HEADING += ["Round on a device (MiB)", "Stored there (MiB)"]


def timing_table(study: Study) -> list[list[str]]:
    """Returns the heading and a row for each arm, medians over its rounds; empty if none was timed.

    Seconds per round are those of training, compilation excluded. A run's first rows after its starts, when devices are
    not warm, are left out as soon as there are others. Per client: divided by the clients that trained in those rounds,
    whether one after the other or at once.
    """
    rows = [_row(study, arm) for arm in study.arms if any(run.timing for run in study.of_arm(arm))]
    return [HEADING, *rows] if rows else []


def seconds_per_round(study: Study) -> dict[CellName, dict[str, Any]]:
    """Returns for each cell mean, standard deviation and number over its seeds of a run's median over rounds.

    The medians are those of the table; the mean is None if no run is timed.
    """
    found = {}
    for run in study.runs:
        timed = _finite(_seconds(row, count) for row, count in steady(run))
        found.setdefault(run.cell, []).extend([float(np.median(timed))] if timed else [])
    return {cell: moments(seconds) for cell, seconds in found.items()}


def steady(run: Run) -> list[tuple[Row, int]]:
    """Returns the timed rows, each with its number of rounds: all but the first and those that compile."""
    rounds = sorted({row["round"] for row in (*run.metrics, *run.timing)})  # a row of timing may be missing
    since = dict(zip(rounds, np.diff([0, *rounds]).tolist(), strict=True))
    covered = [(row, since[row["round"]]) for row in run.timing]
    warm = [(row, count) for row, count in covered[1:] if not number(row.get("compile")) > 0]
    return warm or covered[1:] or covered


def _row(study, arm):
    runs = [run for run in study.of_arm(arm) if run.timing]
    timed = [(run, row, count) for run in runs for row, count in steady(run)]
    together = study.shared_by(arm)
    names = f"{len(runs)}" + (f" ({together} as one program)" if together > 1 else "")
    per_round = [_seconds(row, count) for _, row, count in timed]
    trained = [(number(row.get("train")), _trained(run, row, count)) for run, row, count in timed]
    per_client = [seconds / clients for seconds, clients in trained if clients]
    evaluating = [number(row.get("evaluate")) for _, row, _ in timed]
    memory = [[number(row.get(name)) / _MIB for _, row, _ in timed] for name in ("round_bytes", "stored_bytes")]
    shown = [_median(values, ".3g") for values in (per_round, per_client, evaluating)]
    return [arm, names, str(sum(count for *_, count in timed)), *shown, *(_median(values, ".1f") for values in memory)]


def _seconds(row, count):
    """Returns the seconds of training for each of the rounds of a row; NaN if not recorded."""
    return number(row.get("train")) / count


def _trained(run: Run, row: Row, count: int) -> int:
    """Returns the number of times that a client trained in the rounds of a row; 0 if not recorded."""
    if "steps" not in run.clients:
        return 0
    rounds = run.clients["round"]
    covered = (rounds > row["round"] - count) & (rounds <= row["round"])
    return int(np.sum(run.clients["steps"][covered] > 0))


def _median(values, form):
    values = _finite(values)
    return show_number(np.median(values), form) if values else "-"


def _finite(values):
    return [value for value in values if math.isfinite(value)]
