"""Comparisons of arms over pairs of runs with the same seed and partition, and a study's finding."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.config.cells import CellName, merged
from fedjax_collapse.results.metrics import ACCURACY, DEAD_FEATURES, EFFECTIVE_RANK, Metric, show_number
from fedjax_collapse.results.study import Results, Run
from fedjax_collapse.results.summaries import mean_and_std
from fedjax_collapse.results.writing import Alike, Bold
from fedjax_collapse.run.measurement import HEADLINES

CONFIDENCE = 0.95  # of intervals
_FEWEST = 3  # pairs, for an arm to be recommended
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


def compare(differences: Sequence[float], confidence: float = CONFIDENCE) -> Comparison:
    """Returns mean, standard deviation, and Student's t interval of the mean, of paired differences."""
    mean, std = mean_and_std(differences)
    n, margin = len(differences), math.nan
    if n > 1:
        from scipy.special import stdtrit

        margin = float(stdtrit(n - 1, (1 + confidence) / 2)) * std / math.sqrt(n)
    return Comparison(mean, std, n, mean - margin, mean + margin, tuple(differences))


def comparison(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> Comparison:
    """Returns the differences of a cell from the base arm in the same setting, in the units of ``metrics.jsonl``."""
    both = ([run.numbers.get(metric.name, math.nan) for run in pair] for pair in pairs(study, cell, base, metric))
    return compare([first - second for first, second in both if math.isfinite(first - second)])


def pairs(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> list[tuple[Run, Run]]:
    """Returns pairs of finished runs of both arms.

    The runs of a pair have the same seed, partition and number of rounds, and the metric is of the same kind of model.
    """
    return [*_conditions(study, cell, base, metric).values()][-1]


def why_none(study: Results, cell: CellName, base: str, metric: Metric = ACCURACY) -> str:
    """Explains why a cell has no difference to the base arm."""
    unmet = (why for why, left in _conditions(study, cell, base, metric).items() if not left)
    return next(unmet, f"no finite {metric.quantity} of one seed at the same round")


def of_one_seed(study: Results, cell: CellName, base: str) -> list[tuple[Run, Run]]:
    """Returns the finished runs of a cell, each with the base arm's run in the same setting with the same seed."""
    of_base = {run.seed: run for run in study.of_cell(cell._replace(arm=base))}
    return [(run, of_base[run.seed]) for run in study.of_cell(cell) if run.seed in of_base]


def _conditions(study: Results, cell: CellName, base: str, metric: Metric) -> dict[str, Any]:
    """Returns the runs or pairs that meet each condition and those before it, by what it means if there are none."""
    both = of_one_seed(study, cell, base)
    kinds = [[getattr(run, metric.of, "") for run in pair] for pair in both]  # of the model: ``headline`` or ``local``
    alike = [pair for pair, (own, other) in zip(both, kinds, strict=True) if own == other]
    together = [(run, other) for run, other in alike if run.last_round == other.last_round]
    unlike = "their {} is of something else" if kinds and kinds[0][0] else "nothing says what their {} is of"
    return {
        f"no run of {base} is finished": study.of_cell(cell._replace(arm=base)),
        "no run is finished": study.of_cell(cell),
        "no seed in common": both,
        unlike.format(metric.quantity): alike,
        f"no finite {metric.quantity} of one seed at the same round": together,
        f"their partitions differ from those of {base}": [of for of in together if _is_same_partition(study, *of)],
    }


def _is_same_partition(study: Results, first: Run, second: Run) -> bool:
    """Compares the hashes that the last start recorded; without them the examples of each class at each client."""
    hashes = [_hashes(study, run) for run in (first, second)]
    if all(hashes):
        return hashes[0] == hashes[1]
    counts = [run.partition.get("class_counts") for run in (first, second)]
    return counts[0] is not None and np.array_equal(*counts)


def _hashes(study: Results, run: Run) -> Mapping[str, str]:
    for start in reversed(study.starts):
        if found := ((start.get("sha256") or {}).get(run.name) or {}).get(f"seed{run.seed}"):
            return found
    return {}


def best_of(study: Results, metric: Metric) -> dict[CellName, type[str]]:
    """Returns ``Bold`` for the best cells of each setting, ``Alike`` for those that may be as good; else nothing.

    The differences of the latter from the best, over pairs of runs, have an interval that contains 0. Only arms with
    the same kind of accuracy are compared, and only with at least two pairs of runs to compare. There are none if
    neither direction of the metric is better.
    """
    found, groups = {}, {}
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
            found |= dict.fromkeys(tops, Bold) | {cell: Alike for cell, of in compared.items() if of.may_be_zero}
    return found


def recommendations(study: Results, base: str = "", columns: Sequence[Metric] = ()) -> list[str]:
    """Returns a sentence for each setting: which arms have a better score than the base arm, or that none was found.

    Compared are arms with at least three pairs of runs with the base arm. An arm is named if the interval of its
    differences excludes 0 after Bonferroni's correction for their number, and none of its runs has diverged.

    Args:
        study: the results.
        base: the arm to compare with, by default the first.
        columns: the metrics that are shown; there is no sentence if the score is not one of them. By default all.
    """
    if study.score not in (columns or [study.score]):
        return []
    found = {setting: _recommended(study, setting, base or study.base) for setting in study.settings}
    return [f"{setting}: " * study.has_settings + text for setting, text in found.items() if text]


def _recommended(study: Results, setting: str, base: str) -> str:
    metric, named = study.score, []
    cells = [cell for cell in study.cells if cell.setting == setting and cell.arm != base]
    differences = {cell: comparison(study, cell, base, metric).differences for cell in cells}
    differences = {cell: of for cell, of in differences.items() if len(of) >= _FEWEST}
    if not differences:
        return ""
    for cell, of_cell in differences.items():
        of = compare(of_cell, 1 - (1 - CONFIDENCE) / len(differences))
        worst = of.low if metric.better == "higher" else -of.high
        if round(worst, _DIGITS) > 0 and study.moments(cell, metric.name)[2] == len(study.of_cell(cell)):
            mean, low, high = map(metric._replace(format=f"+{metric.format}").show, (of.mean, of.low, of.high))
            named.append(f"{cell.arm} {mean}{' points' * (metric.unit == '%')} ({low} to {high})")
    counts = sorted(map(len, differences.values()))
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    arms = f"{len(named) or 'none'} of {len(differences)} arm{'s' * (len(differences) > 1)}"
    how = f"{seeds} paired seeds; {100 * CONFIDENCE:.0f} % intervals with Bonferroni's correction"
    return f"Found better than {base} in {metric.quantity}: {arms} ({how}){': ' * bool(named)}{', '.join(named)}."


def dead_notes(study: Results) -> list[str]:
    """Names the cells whose finished runs are at chance or have diverged, and those with many dead features."""
    problems: dict[str, list[str]] = {}
    for cell in study.cells:
        kinds = [_problem(run) for run in study.of_cell(cell)]
        for kind in filter(None, dict.fromkeys(kinds)):
            some = f" ({kinds.count(kind)} of {len(kinds)} seeds)" * (len({*kinds}) > 1)
            problems.setdefault(kind, []).append(f"{cell}{some}")
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


def verdict(study: Results) -> str:
    """Returns the finding: what raises effective rank most over plain federated averaging, and what raises accuracy.

    Compared with the first arm of plain federated averaging are all arms with methods, over pairs of runs with equal
    seed and partition and with the same kind of accuracy (or score of the task), by their means. The finding is empty
    for several settings, with a score that is no percentage, or without such arms or pairs.
    """
    if study.has_settings or study.score.unit != "%":
        return ""
    base, others = _arms(study)
    gains = {arm: gain for arm in others if len((gain := _gain(study, arm, base))[0])}
    if not gains:
        return ""
    ranked = {arm: rank for arm, (_, rank) in gains.items() if np.isfinite(rank).all()}
    best = max(gains, key=lambda arm: gains[arm][0].mean())
    widest = max(ranked, key=lambda arm: ranked[arm].mean(), default=best)
    name, sentences = study.score.quantity, []
    if ranked:
        points = f", with {_told(gains[widest][0], 0, '+.1f', f'points of {name}')}" * (widest != best)
        ratio = _told(ranked[widest], 1, ".1f", f"times that of {base}")
        sentences.append(_most(widest, "effective rank", round(ranked[widest].mean(), 1) > 1) + ratio + points)
    ratio = (
        f", at {show_number(ranked[best].mean(), '.1f')} times the rank" if widest != best and best in ranked else ""
    )
    points = _told(gains[best][0], 0, "+.1f", f"points over {base}")
    sentences.append(_most(best, name, round(gains[best][0].mean(), 1) > 0) + points + ratio)
    return ". ".join(sentences)


def _most(arm: str, what: str, is_raised: bool) -> str:
    return f"{arm} raises {what} most: " if is_raised else f"No arm raises {what}: {arm} comes nearest with "


def _told(values: np.ndarray, base: float, form: str, unit: str) -> str:
    """Formats the mean in its unit, in how many seeds the values are above the base's, and their range."""
    mean, low, high = (show_number(of, form) for of in (values.mean(), values.min(), values.max()))
    where = f"higher in {np.sum(values > base)} of {len(values)} seeds ({low} to {high})"
    return f"{mean} {unit}, {where if len(values) > 1 else 'in the only seed'}"


def _arms(study: Results) -> tuple[str, list[str]]:
    """Returns the first arm of plain federated averaging (empty if there is none) and the arms with methods."""
    arms = {arm: of.changes for declared in study.arms_in.values() for arm, of in declared.items()}
    values = {arm: merged(study.config, of if isinstance(of, Mapping) else {}) for arm, of in arms.items()}
    others = [arm for arm, of in values.items() if isinstance(of.get("methods"), Mapping) and of["methods"]]
    plain = [arm for arm, of in values.items() if arm not in others and of.get("private", "none") == "none"]
    return next(iter(plain), ""), others


def _gain(study: Results, arm: str, base: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gains of an arm over the base arm after the last round, in each pair of runs with finite scores.

    That is the difference of scores in points, and effective rank divided by the base arm's; NaN where one was not
    recorded or is 0.
    """
    both = pairs(study, CellName(study.setting or "", arm), base, study.score)
    score, rank = (
        metric.factor * np.reshape([[run.numbers.get(metric.name, math.nan) for run in pair] for pair in both], (-1, 2))
        for metric in (study.score, EFFECTIVE_RANK)
    )
    finite = np.all(np.isfinite(score), axis=1)
    ratio = np.divide(rank[:, 0], rank[:, 1], out=np.full(len(rank), np.nan), where=rank[:, 1] > 0)
    return (score[:, 0] - score[:, 1])[finite], ratio[finite]
