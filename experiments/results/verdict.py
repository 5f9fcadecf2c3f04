"""What decorrelation does to the score of a study, in one sentence."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.config.cells import CellName, arms_of, merged
from experiments.results.metrics import EFFECTIVE_RANK, Metric, number
from experiments.results.study_results import Run, Study
from experiments.results.tables.paired import pairs

DECORRELATION = ("feddecorr", "decov", "structured_decov", "vicreg")  # methods that penalise correlated features


class Gain(NamedTuple):
    """What an arm gains over the base arm, run by run, after the last round."""

    arm: str
    score: np.ndarray  # [pairs] in points
    rank: np.ndarray  # [pairs] effective rank, NaN where it was not recorded


def verdict(study: Study) -> str:
    """Returns the finding: the gain of the best arm with decorrelation over the first arm of plain federated averaging.

    The best arm has the largest mean gain in accuracy, or in the score of the task, over pairs of runs with equal seed
    and partition. Decorrelation "gives back" accuracy if accuracy and effective rank are higher in each of several
    seeds. The sentence is empty for a study with settings, with a score that is no percentage, or without such arms or
    pairs.
    """
    if study.config.get("settings") or study.score.unit != "%":
        return ""
    base, others = _arms(study)
    found = [gain for gain in (_gain(study, arm, base) for arm in others) if len(gain.score)]
    if not found:
        return ""
    arm, score, rank = max(found, key=lambda gain: gain.score.mean())
    mean, up, seeds, name = score.mean(), int(np.sum(score > 0)), len(score), study.score.quantity
    spread = f" ({_signed(score.min())} to {_signed(score.max())})" if seeds > 1 else ""
    where = f"in {up} of {seeds} seeds{spread}" if seeds > 1 else "in the only seed"
    if mean <= 0:
        above = f"above it {where}" if seeds > 1 else where
        return f"Decorrelation gains no {name}: {arm} is {-mean:.1f} points below {base}, {above}"
    if up < seeds or seeds == 1:
        return f"{arm} is {mean:.1f} points of {name} above {base}, {where}"
    if np.all(rank > 0):
        return f"Decorrelation ({arm}) gives back {mean:.1f} points of {name}, {where}"
    return f"{arm} gains {mean:.1f} points of {name} over {base}, {where}, without a higher rank in each"


def _arms(study: Study) -> tuple[str, list[str]]:
    """Returns the first arm of plain federated averaging (empty if there is none) and the arms with decorrelation."""
    values = {
        arm: merged(study.config, of.changes if isinstance(of.changes, Mapping) else {})
        for arm, of in arms_of(study.config).items()
    }
    plain = [arm for arm, of in values.items() if not _methods(of) and of.get("private", "none") == "none"]
    return next(iter(plain), ""), [arm for arm, of in values.items() if _methods(of) & {*DECORRELATION}]


def _methods(values: Mapping[str, Any]) -> set[str]:
    methods = values.get("methods")
    return set(methods) if isinstance(methods, Mapping) else set()


def _gain(study: Study, arm: str, base: str) -> Gain:
    """Returns the differences of the pairs whose scores are finite."""
    of_both = pairs(study, CellName("", arm), base)
    score, rank = (_differences(of_both, metric) for metric in (study.score, EFFECTIVE_RANK))
    finite = np.isfinite(score)
    return Gain(arm, score[finite], rank[finite])


def _differences(of_both: list[tuple[Run, Run]], metric: Metric) -> np.ndarray:
    ends = [[number(run.metrics[-1].get(metric.name)) for run in both] for both in of_both]
    return metric.factor * -np.diff(np.reshape(ends, (-1, 2)))[:, 0]


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")
