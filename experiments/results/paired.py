"""Differences between arms, run by run: with the same seed on the same partition."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.config.cells import CellName
from experiments.results.metrics import ACCURACY, number
from experiments.results.study_results import Run, Study, moments


def paired_difference(study: Study, cell: CellName, base: str) -> dict[str, Any]:
    """Returns mean, standard deviation (n - 1) and number of the differences in accuracy to the base arm.

    Each is between two runs of the same setting with one seed, on one partition and at one round; others are left out.
    """
    values = [
        number(run.metrics[-1].get(ACCURACY.name)) - number(other.metrics[-1].get(ACCURACY.name))
        for run, other in pairs(study, cell, base)
    ]
    return moments([value for value in values if np.isfinite(value)])


def pairs(study: Study, cell: CellName, base: str) -> list[tuple[Run, Run]]:
    """Returns pairs of finished runs of both arms.

    The runs of a pair have the same seed, partition and number of rounds, and accuracies of the same kind of model.
    """
    return [
        (run, other)
        for run, other in of_one_seed(study, cell, base)
        if run.headline == other.headline
        and run.last_round == other.last_round
        and _is_same_partition(study, run, other)
    ]


def why_none(study: Study, cell: CellName, base: str) -> str:
    """Explains why a cell has no difference to the base arm."""
    if not any(run.is_finished for run in study.of_cell(cell._replace(arm=base))):
        return f"no run of {base} is finished"
    if not any(run.is_finished for run in study.of_cell(cell)):
        return "no run is finished"
    both = of_one_seed(study, cell, base)
    if not both:
        return "no seed in common"
    if all(run.headline != other.headline for run, other in both):
        return (
            "their accuracy is of something else" if both[0][0].headline else "nothing says what their accuracy is of"
        )
    return "no finite accuracies of one seed on the same partition at the same round"


def of_one_seed(study: Study, cell: CellName, base: str) -> list[tuple[Run, Run]]:
    """Returns the finished runs of a cell, each with the base arm's run in the same setting with the same seed."""
    of_base = {run.seed: run for run in study.of_cell(cell._replace(arm=base)) if run.is_finished}
    return [(run, of_base[run.seed]) for run in study.of_cell(cell) if run.is_finished and run.seed in of_base]


def _is_same_partition(study: Study, first: Run, second: Run) -> bool:
    """Compares the hashes that the last start recorded; without them the examples of each class at each client."""
    hashes = [_hashes(study, run) for run in (first, second)]
    if all(hashes):
        return hashes[0] == hashes[1]
    counts = [run.partition.get("class_counts") for run in (first, second)]
    return all(of_run is not None for of_run in counts) and np.array_equal(*counts)


def _hashes(study: Study, run: Run) -> Mapping[str, str]:
    for start in reversed(study.starts):
        if found := ((start.get("sha256") or {}).get(str(run.cell)) or {}).get(f"seed{run.seed}"):
            return found
    return {}
