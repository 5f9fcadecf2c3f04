"""The number of rounds in which each arm reaches the accuracy of another one, and the speed-up."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.results.metrics import ACCURACY, number, show_number
from experiments.results.study_results import Row, Run, Study, moments
from experiments.results.tables.paired import of_one_seed
from experiments.results.tables.table import unlike_note
from experiments.results.tables.view import EVERYTHING, View
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.schema.names import check_name


class Reached(NamedTuple):
    """How the runs of an arm have reached the targets of their seeds."""

    rounds: dict[str, Any]  # mean, std, n over the runs that have reached it
    speedup: float  # the base's rounds over the mean; NaN if no run has reached it
    num_runs: int  # the number of runs whose seed has a target


def rounds_to_target(study: Study, base: str) -> dict[CellName, Reached]:
    """Returns, by cell, the rounds to the target: the best accuracy of ``base`` in the same setting with the same seed.

    Only evaluated rounds of finished runs count, and only accuracies of the same kind of model as those of ``base``. As
    in FedMR's table 4 (Fan et al., TMLR 2023), ``base`` itself is listed with all its rounds, and the speed-up is their
    number over the arm's.

    Raises:
        UserError: no arm of the study has that name.
    """
    check_name("arm in --target", base, study.arms)
    found = {}
    for cell in dict.fromkeys(run.cell for run in study.runs):
        alike = [pair for pair in of_one_seed(study, cell, base) if pair[0].headline == pair[1].headline]
        found[cell] = _reached(alike, cell.arm == base)
    return found


def first_round(rows: Sequence[Row], accuracy: float) -> int | None:
    """Returns the first evaluated round with at least this accuracy; None if there is none."""
    return next((row["round"] for row in rows if number(row.get(ACCURACY.name)) >= accuracy), None)


def target_table(study: Study, base: str, view: View = EVERYTHING) -> list[list[str]]:
    """Returns the heading, and a row for each arm: for each setting its rounds to the target and the speed-up."""
    found = rounds_to_target(study, base)
    headings = [[f"{setting}: rounds".removeprefix(": "), "speed-up"] for setting in study.settings]
    rows = [["Arm", *(cell for pair in headings for cell in pair)]]
    for arm in dict.fromkeys(cell.arm for cell in view.of(study.summary)):
        cells = [CellName(setting, arm) for setting in study.settings]
        rows.append([arm, *(text for cell in cells for text in _shown(found.get(cell)))])
    return rows


def target_note(study: Study, base: str) -> str:
    """Explains the numbers of the table, and names the arms that have none because they are not comparable."""
    note = (
        f"Rounds: the first evaluated one with the best accuracy of {base} in the same setting with the same seed; "
        f"mean ± standard deviation over the seeds that reach it. {base} is listed with all its rounds; the speed-up "
        "is their number over the arm's."
    )
    return f"{note} {unlike_note(study.summary, base)}".rstrip()


def _reached(pairs: list[tuple[Run, Run]], is_base: bool) -> Reached:
    rounds, lengths = [], []
    for run, base in pairs:
        target = max((number(row.get(ACCURACY.name)) for row in base.metrics), key=lambda v: (v == v, v))
        length = base.last_round
        reached = length if is_base else first_round(run.metrics, target)
        if reached is not None:
            rounds.append(reached)
            lengths.append(length)
    speedup = sum(lengths) / sum(rounds) if rounds else math.nan
    return Reached(moments(rounds), speedup, len(pairs))


def _shown(reached: Reached | None) -> tuple[str, str]:
    if reached is None or not reached.num_runs:
        return "-", "-"
    count = reached.rounds["n"]
    if not count:
        return "not reached", "-"
    text = show_number(reached.rounds["mean"], ".4g")
    if reached.rounds["std"] is not None:
        text += f" ± {show_number(reached.rounds['std'], '.2g')}"
    return f"{text} ({count} of {reached.num_runs})", f"{show_number(reached.speedup, '.2f')}x"
