"""The classifier's singular values over rounds, as FedUV's figure 1, where ``head_spectrum`` saved them."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.reporting import drawing
from experiments.reporting.drawing import arm_colour, grid_of, label, new_figure, styled, whole_numbers
from experiments.reporting.study import Study, is_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROUNDS = 5  # that are drawn, at most
_COLUMNS = 3


class HeadSpectra(NamedTuple):
    """Of the server's model; arms may have classifiers of different sizes."""

    rounds: np.ndarray  # [rounds], those that every run has
    values: dict[str, np.ndarray]  # by arm, [rounds, values], descending, mean over seeds


@styled
def head_spectra(study: Study) -> "Figure | None":
    """Singular values of the classifier's weight by their index, a panel for each arm, later rounds darker."""
    from matplotlib.lines import Line2D

    found = _found(study)
    if found is None:
        return None
    lines = -(-len(found.values) // _COLUMNS)
    figure = new_figure(0.6 + 2.3 * lines, width=8.4)
    grid = grid_of(figure, len(found.values), min(_COLUMNS, len(found.values)), "singular value", sharey=True)
    strengths = np.linspace(0.25, 1, len(found.rounds)) if len(found.rounds) > 1 else np.ones(1)
    for axes, (arm, values) in zip(grid, found.values.items(), strict=True):
        for of_round, alpha in zip(values, strengths, strict=True):
            colour = arm_colour(study.arms, arm)
            axes.plot(np.arange(len(of_round)) + 1, of_round, color=colour, alpha=alpha, marker=".")
        axes.set_title(label(arm, 32), loc="left")
        axes.set_xlabel("index of the singular value")
        axes.set_ylim(bottom=0)
        whole_numbers(axes.xaxis)
    handles = [Line2D([], [], color=drawing.INK, alpha=alpha) for alpha in strengths]
    drawing.legend(figure, handles, [f"round {r}" for r in found.rounds])
    return figure


def rows_of_head_spectra(study: Study) -> list[list]:
    """What is drawn, with a heading."""
    found = _found(study)
    rows: list[list] = [["arm", "round", "index", "singular value"]]
    for arm, values in found.values.items() if found else ():
        for r, of_round in zip(found.rounds, values, strict=True):
            rows += [[arm, int(r), i, float(value)] for i, value in enumerate(of_round, 1)]
    return rows


def _found(study) -> HeadSpectra | None:
    """Read when it is drawn, as most studies are without."""
    saved = {arm: [_saved(study, run) for run in study.of_arm(arm)] for arm in study.arms}
    saved = {arm: [of_run for of_run in of_arm if of_run] for arm, of_arm in saved.items()}
    saved = {arm: [of_run for of_run in of_arm if _width(of_run) == _width(of_arm[0])] for arm, of_arm in saved.items()}
    saved = {arm: of_arm for arm, of_arm in saved.items() if of_arm}
    shared = [set(of_run) for of_arm in saved.values() for of_run in of_arm]
    rounds = np.array(sorted(set.intersection(*shared))) if shared else np.empty(0, int)
    if not len(rounds):
        return None
    rounds = rounds[np.unique(np.linspace(0, len(rounds) - 1, _ROUNDS).round().astype(int))]
    return HeadSpectra(
        rounds,
        {arm: np.mean([[of_run[r] for r in rounds] for of_run in of_arm], axis=0) for arm, of_arm in saved.items()},
    )


def _width(of_run):
    return len(next(iter(of_run.values())))


def _saved(study, run):
    """By round; of features that are not finite nothing, nor of an array of that name that is something else."""
    arrays = study.measured_arrays(run)
    name = next((name for name, values in arrays.items() if name.endswith("/singular_values") and is_of(values, 2)), "")
    pairs = zip(map(int, arrays["round"]), arrays[name], strict=True) if name else ()
    return {r: values for r, values in pairs if np.isfinite(values).all()}
