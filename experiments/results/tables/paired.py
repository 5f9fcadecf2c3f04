"""Pairs of runs of two arms: with the same seed on the same partition."""

from collections.abc import Mapping

import numpy as np

from experiments.results.metrics import ACCURACY, Metric
from experiments.results.study_results import Run, Study
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.core.records import UserError


def check_base(study: Study, base: str) -> None:
    """Raises UserError if the study has no such arm, which ``--base`` names."""
    if base not in study.arms:
        raise UserError(f"{study.path}: has no arm {base!r}, expected one of {', '.join(study.arms)} in --base")


def pairs(study: Study, cell: CellName, base: str, metric: Metric = ACCURACY) -> list[tuple[Run, Run]]:
    """Returns pairs of finished runs of both arms.

    The runs of a pair have the same seed, partition and number of rounds, and the metric is of the same kind of model.
    """
    return [
        (run, other)
        for run, other in of_one_seed(study, cell, base)
        if _kind(run, metric) == _kind(other, metric)
        and run.last_round == other.last_round
        and _is_same_partition(study, run, other)
    ]


def why_none(study: Study, cell: CellName, base: str, metric: Metric = ACCURACY) -> str:
    """Explains why a cell has no difference to the base arm."""
    if not any(run.is_finished for run in study.of_cell(cell._replace(arm=base))):
        return f"no run of {base} is finished"
    if not any(run.is_finished for run in study.of_cell(cell)):
        return "no run is finished"
    both = of_one_seed(study, cell, base)
    if not both:
        return "no seed in common"
    if all(_kind(run, metric) != _kind(other, metric) for run, other in both):
        what = f"what their {metric.quantity} is of"
        return f"their {metric.quantity} is of something else" if _kind(both[0][0], metric) else f"nothing says {what}"
    return f"no finite {metric.quantity} of one seed on the same partition at the same round"


def of_one_seed(study: Study, cell: CellName, base: str) -> list[tuple[Run, Run]]:
    """Returns the finished runs of a cell, each with the base arm's run in the same setting with the same seed."""
    of_base = {run.seed: run for run in study.of_cell(cell._replace(arm=base)) if run.is_finished}
    return [(run, of_base[run.seed]) for run in study.of_cell(cell) if run.is_finished and run.seed in of_base]


def _kind(run: Run, metric: Metric) -> str:
    """Returns which model the metric is of, for metrics that are not of the same one in all arms."""
    return {"headline": run.headline, "local": run.local}.get(metric.of, "")


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
