"""Runs that have learned nothing, or have diverged, and pull the mean of their arm."""

import math

from experiments.results.metrics import ACCURACY, number, show_number
from experiments.results.study_results import Run, Study
from fedjax_collapse.simulation.measurement import HEADLINES

_NOISE = 0.2  # of chance, for the classes of a test set are seldom of exactly equal size


def is_at_chance(accuracy: float, num_classes: int) -> bool:
    """Returns whether an accuracy is at most that of guessing, plus up to a fifth of it: less for few classes."""
    chance = 1 / num_classes
    return num_classes > 1 and accuracy <= chance * (1 + _NOISE * (1 - chance))


def chance_note(study: Study) -> str:
    """Names the cells with finished runs at chance or diverged after their last round; empty if there are none."""
    found = []
    for cell in dict.fromkeys(run.cell for run in study.runs):
        runs = [run for run in study.of_cell(cell) if run.is_finished]
        kinds = list(map(_problem, runs))
        counts = {kind: kinds.count(kind) for kind in kinds if kind}
        of = f"of {len(runs)} seed{'s' * (len(runs) != 1)}"
        found += [f"{cell}: {count} {of} {kind}" for kind, count in counts.items()]
    return f"Dead networks: {'; '.join(found)}." if found else ""


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
