"""What is dead in a study: runs that have learned nothing or have diverged, and features that have no variance."""

import math

from experiments.results.metrics import ACCURACY, DEAD_FEATURES, number, show_number
from experiments.results.study_results import Run, Study
from fedjax_collapse.run.measurement import HEADLINES

_MANY = 0.1  # the share of dead features above which an arm is named
_NOISE = 0.2  # of chance, for the classes of a test set are seldom of exactly equal size


def is_at_chance(accuracy: float, num_classes: int) -> bool:
    """Returns whether an accuracy is at most that of guessing, plus up to a fifth of it: less for few classes."""
    chance = 1 / num_classes
    return num_classes > 1 and accuracy <= chance * (1 + _NOISE * (1 - chance))


def dead_notes(study: Study) -> list[str]:
    """Names the cells with finished runs that are at chance or have diverged, and those with many dead features."""
    return list(filter(None, (_dead_networks(study), _dead_features(study))))


def _dead_networks(study: Study) -> str:
    found = []
    for cell in dict.fromkeys(run.cell for run in study.runs):
        runs = [run for run in study.of_cell(cell) if run.is_finished]
        kinds = list(map(_problem, runs))
        counts = {kind: kinds.count(kind) for kind in kinds if kind}
        of = f"of {len(runs)} seed{'s' * (len(runs) != 1)}"
        found += [f"{cell}: {count} {of} {kind}" for kind, count in counts.items()]
    return f"Dead networks: {'; '.join(found)}." if found else ""


def _dead_features(study: Study) -> str:
    entries = {cell: metrics.get(DEAD_FEATURES.name) or {} for cell, metrics in study.summary.items()}
    found = {cell: mean for cell, entry in entries.items() if (mean := number(entry.get("mean"))) > _MANY}
    shares = ", ".join(f"{cell} {DEAD_FEATURES.show(mean)} %" for cell, mean in found.items())
    return f"Dead features, the same for all test examples: {shares} (docs/dead_features.md)." if shares else ""


def _problem(run: Run) -> str:
    """Describes what is wrong with a finished run; empty if nothing is known."""
    accuracy = number(run.metrics[-1].get(ACCURACY.name))
    if not math.isfinite(accuracy):
        return "diverged, which the mean leaves out" if ACCURACY.name in run.metrics[-1] else ""
    counts = run.partition.get("class_counts")
    if counts is None or run.headline == HEADLINES["personal"]:  # whose clients have other numbers of classes
        return ""
    num_classes = counts.shape[1]
    at_chance = f"at chance ({show_number(100 / num_classes, '.3g')} %), which pulls the mean"
    return at_chance if is_at_chance(accuracy, num_classes) else ""
