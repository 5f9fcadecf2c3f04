"""What raises the rank and what raises the score of a study, in a sentence or two."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from experiments.results.metrics import EFFECTIVE_RANK, Metric, number, show_number
from experiments.results.study_results import Run, Study
from experiments.results.tables.paired import pairs
from fedjax_collapse.config.cells import CellName, arms_of, merged


class Gain(NamedTuple):
    """What an arm gains over the base arm, run by run, after the last round."""

    arm: str
    score: np.ndarray  # [pairs] in points
    rank: np.ndarray  # [pairs] effective rank divided by the base arm's; NaN where one was not recorded or is 0


def verdict(study: Study) -> str:
    """Returns the finding: what raises effective rank most over plain federated averaging, and what raises accuracy.

    Compared with the first arm of plain federated averaging are all arms with methods, over pairs of runs with equal
    seed and partition and with the same kind of accuracy (or score of the task), by their means. The finding is empty
    for a study with settings, with a score that is no percentage, or without such arms or pairs.
    """
    if study.config.get("settings") or study.score.unit != "%":
        return ""
    base, others = _arms(study)
    gains = [gain for gain in (_gain(study, arm, base) for arm in others) if len(gain.score)]
    if not gains:
        return ""
    best = max(gains, key=lambda gain: gain.score.mean())
    ranked = [gain for gain in gains if np.all(np.isfinite(gain.rank))]
    widest = max(ranked, key=lambda gain: gain.rank.mean()) if ranked else best
    name, sentences = study.score.quantity, []
    if ranked:
        ratio = f"{_ratio(widest.rank.mean())} times that of {base}, {_where(widest.rank, 1, _ratio)}"
        points = f", with {_points(widest.score.mean())} points of {name}, {_where(widest.score, 0, _points)}"
        points = points if widest is not best else ""
        sentences.append(_most(widest.arm, "effective rank", widest.rank.mean() > 1) + ratio + points)
    points = f"{_points(best.score.mean())} points over {base}, {_where(best.score, 0, _points)}"
    ratio = f", at {_ratio(best.rank.mean())} times the rank" if widest is not best and best in ranked else ""
    sentences.append(_most(best.arm, name, best.score.mean() > 0) + points + ratio)
    return ". ".join(sentences)


def _most(arm: str, what: str, is_raised: bool) -> str:
    return f"{arm} raises {what} most: " if is_raised else f"No arm raises {what}: {arm} comes nearest with "


def _where(values: np.ndarray, base: float, show: Callable[[float], str]) -> str:
    """Says in how many seeds the values are above the base's, with their range."""
    if len(values) == 1:
        return "in the only seed"
    higher = f"higher in {np.sum(values > base)} of {len(values)} seeds"
    return f"{higher} ({show(values.min())} to {show(values.max())})"


def _points(points: float) -> str:
    return show_number(points, "+.1f")


def _ratio(ratio: float) -> str:
    return show_number(ratio, ".1f")


def _arms(study: Study) -> tuple[str, list[str]]:
    """Returns the first arm of plain federated averaging (empty if there is none) and the arms with methods."""
    values = {
        arm: merged(study.config, of.changes if isinstance(of.changes, Mapping) else {})
        for arm, of in arms_of(study.config).items()
    }
    others = [arm for arm, of in values.items() if isinstance(of.get("methods"), Mapping) and of["methods"]]
    plain = [arm for arm, of in values.items() if arm not in others and of.get("private", "none") == "none"]
    return next(iter(plain), ""), others


def _gain(study: Study, arm: str, base: str) -> Gain:
    """Returns the gains of the pairs whose scores are finite."""
    of_both = pairs(study, CellName("", arm), base)
    score, rank = (_ends(of_both, metric) for metric in (study.score, EFFECTIVE_RANK))
    finite = np.all(np.isfinite(score), axis=1)
    ratio = np.divide(rank[:, 0], rank[:, 1], out=np.full(len(rank), np.nan), where=rank[:, 1] > 0)
    return Gain(arm, (score[:, 0] - score[:, 1])[finite], ratio[finite])


def _ends(of_both: list[tuple[Run, Run]], metric: Metric) -> np.ndarray:
    """Returns the metric after the last round, [pairs, 2], of both runs of each pair."""
    ends = [[number(run.metrics[-1].get(metric.name)) for run in both] for both in of_both]
    return metric.factor * np.reshape(ends, (-1, 2))
