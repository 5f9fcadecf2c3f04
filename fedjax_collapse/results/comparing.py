"""Comparisons of arms over pairs of runs with the same seed and partition, and what they say about a study."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedjax_collapse.config.cells import CellName, merged
from fedjax_collapse.results.metrics import ACCURACY, DEAD_FEATURES, EFFECTIVE_RANK, Metric, number, show_number
from fedjax_collapse.results.study import Results, Run
from fedjax_collapse.results.summaries import mean_and_std
from fedjax_collapse.run.measurement import HEADLINES

CONFIDENCE = 0.95  # of intervals
_DIGITS = 12  # beyond these a difference is rounding, which would break ties
_MANY = 0.1  # the share of dead features above which an arm is named
_NOISE = 0.2  # of chance, for the classes of a test set are seldom of exactly equal size


class Comparison(NamedTuple):
    """Differences of pairs of runs; NaN where undefined: with fewer than two pairs all but the mean."""

    mean: float
    std: float  # sample standard deviation (n - 1)
    n: int  # the number of pairs
    low: float  # the interval that contains the true mean with probability ``CONFIDENCE``, if differences are normal
    high: float
    differences: tuple[float, ...]

    @property
    def p(self) -> float:
        """Wilcoxon's p of the signed-rank test, two-sided, exact for small n."""
        ranked = np.round(self.differences, _DIGITS)
        if self.n < 2 or not ranked.any():
            return 1.0 if self.n > 1 else math.nan
        from scipy.stats import wilcoxon  # takes long to import

        return float(wilcoxon(ranked).pvalue)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def may_be_zero(self) -> bool:
        """Whether there is an interval, and it contains 0."""
        return self.low <= 0 <= self.high


def compare(differences: list[float]) -> Comparison:
    """Returns mean, standard deviation, and Student's t interval of the mean, of paired differences."""
    mean, std = mean_and_std(differences)
    n, margin = len(differences), math.nan
    if n > 1:
        from scipy.special import stdtrit

        margin = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(n)
    return Comparison(mean, std, n, mean - margin, mean + margin, tuple(differences))


def smallest_p(n: int) -> float:
    """Returns the smallest two-sided p of Wilcoxon's test with ``n`` pairs: all differences have one sign."""
    return 2.0 ** (1 - n)


def comparison(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> Comparison:
    """Returns the differences of a cell from the base arm in the same setting, in the units of ``metrics.jsonl``."""
    both = ([run.numbers.get(metric.name, math.nan) for run in pair] for pair in pairs(study, cell, base, metric))
    return compare([first - second for first, second in both if math.isfinite(first - second)])


def pairs(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> list[tuple[Run, Run]]:
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


def of_one_seed(study: Results, cell: CellName, base: str) -> list[tuple[Run, Run]]:
    """Returns the finished runs of a cell, each with the base arm's run in the same setting with the same seed."""
    of_base = {run.seed: run for run in study.of_cell(cell._replace(arm=base)) if run.is_finished}
    return [(run, of_base[run.seed]) for run in study.of_cell(cell) if run.is_finished and run.seed in of_base]


def why_none(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> str:
    """Explains why a cell has no difference to the base arm."""
    both = of_one_seed(study, cell, base)
    alike = [(run, other) for run, other in both if _kind(run, metric) == _kind(other, metric)]
    together = [(run, other) for run, other in alike if run.last_round == other.last_round]
    if not any(run.is_finished for run in study.of_cell(cell._replace(arm=base))):
        return f"no run of {base} is finished"
    if not any(run.is_finished for run in study.of_cell(cell)):
        return "no run is finished"
    if not both:
        return "no seed in common"
    if not alike:
        of = metric.quantity
        return (
            f"their {of} is of something else" if _kind(both[0][0], metric) else f"nothing says what their {of} is of"
        )
    if together and not any(_is_same_partition(study, *pair) for pair in together):
        return f"their partitions differ from those of {base}"
    return f"no finite {metric.quantity} of one seed at the same round"


def _kind(run: Run, metric: Metric) -> str:
    """Returns which model the metric is of, for metrics that are not of the same one in all arms."""
    return {"headline": run.headline, "local": run.local}.get(metric.of, "")


def _is_same_partition(study: Results, first: Run, second: Run) -> bool:
    """Compares the hashes that the last start recorded; without them the examples of each class at each client."""
    hashes = [_hashes(study, run) for run in (first, second)]
    if all(hashes):
        return hashes[0] == hashes[1]
    counts = [run.partition.get("class_counts") for run in (first, second)]
    return all(of_run is not None for of_run in counts) and np.array_equal(*counts)


def _hashes(study: Results, run: Run) -> Mapping[str, str]:
    for start in reversed(study.starts):
        if found := ((start.get("sha256") or {}).get(run.name) or {}).get(f"seed{run.seed}"):
            return found
    return {}


class Best(NamedTuple):
    """The cells of a setting with the best mean of a metric, and those that may be as good."""

    best: set[CellName]
    alike: set[CellName]  # their differences from the best, over pairs of runs, have an interval that contains 0


def best_of(study: Results, metric: Metric) -> Best:
    """Returns the best cells of each setting; none of a metric of which neither direction is better.

    Only arms with the same kind of accuracy are compared, and only with at least two pairs of runs to compare.
    """
    found, groups = Best(set(), set()), {}
    for cell, kind in study.headlines.items():
        groups.setdefault((cell.setting, kind), []).append(cell)
    sign = {"higher": 1, "lower": -1}.get(metric.better, 0)
    for cells in groups.values() if sign else ():
        moments = {cell: study.moments(cell, metric.name) for cell in cells}
        means = {cell: sign * mean for cell, (mean, _, n) in moments.items() if n > 1}
        tops = [cell for cell, mean in means.items() if mean == max(means.values())]
        if not tops:
            continue
        compared = {cell: comparison(study, cell, tops[0].arm, metric) for cell in cells if cell not in tops}
        if len(tops) > 1 or any(of.has_interval for of in compared.values()):
            found.best.update(tops)
            found.alike.update(cell for cell, of in compared.items() if of.may_be_zero)
    return found


def dead_notes(study: Results) -> list[str]:
    """Names the cells whose finished runs are at chance or have diverged, and those with many dead features."""
    problems: dict[str, list[str]] = {}
    for cell in study.cells:
        runs = [run for run in study.of_cell(cell) if run.is_finished]
        kinds = list(map(_problem, runs))
        for kind in filter(None, dict.fromkeys(kinds)):
            count = f" ({kinds.count(kind)} of {len(runs)} seeds)" if kinds.count(kind) < len(runs) else ""
            problems.setdefault(kind, []).append(f"{cell}{count}")
    means = {cell: study.moments(cell, DEAD_FEATURES.name)[0] for cell in study.cells}
    shares = ", ".join(f"{cell} {DEAD_FEATURES.show(mean)} %" for cell, mean in means.items() if mean > _MANY)
    notes = [f"Dead networks, {kind}: {', '.join(cells)}." for kind, cells in problems.items()]
    return notes + [f"Dead features, the same for all test examples: {shares} (docs/dead_features.md)."] * bool(shares)


def is_at_chance(accuracy: float, num_classes: int) -> bool:
    """Returns whether an accuracy is at most that of guessing, plus up to a fifth of it: less for few classes."""
    chance = 1 / num_classes
    return num_classes > 1 and accuracy <= chance * (1 + _NOISE * (1 - chance))


def _problem(run: Run) -> str:
    """Describes what is wrong with a finished run; empty if nothing is known."""
    accuracy = run.metrics[-1].get(ACCURACY.name, 1.0)
    if not math.isfinite(accuracy):
        return "diverged, which means leave out"
    counts = run.partition.get("class_counts") if run.headline != HEADLINES["personal"] else None
    num_classes = 0 if counts is None else counts.shape[1]  # of personal models the clients' own differ
    is_dead = num_classes and is_at_chance(accuracy, num_classes)
    return f"at chance ({show_number(100 / num_classes, '.3g')} %), which pulls means" if is_dead else ""


class Gain(NamedTuple):
    """What an arm gains over the base arm, run by run, after the last round."""

    arm: str
    score: np.ndarray  # [pairs] in points
    rank: np.ndarray  # [pairs] effective rank divided by the base arm's; NaN where one was not recorded or is 0


def verdict(study: Results) -> str:
    """Returns the finding: what raises effective rank most over plain federated averaging, and what raises accuracy.

    Compared with the first arm of plain federated averaging are all arms with methods, over pairs of runs with equal
    seed and partition and with the same kind of accuracy (or score of the task), by their means. The finding is empty
    for several settings, with a score that is no percentage, or without such arms or pairs.
    """
    if study.has_settings or study.score.unit != "%":
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


def _arms(study: Results) -> tuple[str, list[str]]:
    """Returns the first arm of plain federated averaging (empty if there is none) and the arms with methods."""
    arms = {arm: of.changes for declared in study.arms_in.values() for arm, of in declared.items()}
    values = {
        arm: merged(study.config, changes if isinstance(changes, Mapping) else {}) for arm, changes in arms.items()
    }
    others = [arm for arm, of in values.items() if isinstance(of.get("methods"), Mapping) and of["methods"]]
    plain = [arm for arm, of in values.items() if arm not in others and of.get("private", "none") == "none"]
    return next(iter(plain), ""), others


def _gain(study: Results, arm: str, base: str) -> Gain:
    """Returns the gains of the pairs whose scores are finite."""
    cell = CellName(study.setting or "", arm)
    ends = [[run.metrics[-1] for run in both] for both in pairs(study, cell, base, study.score)]
    score, rank = (
        metric.factor * np.reshape([[number(row.get(metric.name)) for row in both] for both in ends], (-1, 2))
        for metric in (study.score, EFFECTIVE_RANK)
    )
    finite = np.all(np.isfinite(score), axis=1)
    ratio = np.divide(rank[:, 0], rank[:, 1], out=np.full(len(rank), np.nan), where=rank[:, 1] > 0)
    return Gain(arm, (score[:, 0] - score[:, 1])[finite], ratio[finite])
