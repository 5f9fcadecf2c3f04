"""The classifier's singular values over rounds, as in FedUV's figure 1, if ``head_spectrum`` saved them."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import draws
from experiments.results.selection import Selection
from experiments.results.study_results import Study, is_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROUNDS = 5  # the most rounds that are drawn


def _singular_values(study: Study) -> Selection:
    """Singular values of the classifier's weight in the server's model, mean over seeds, at a few common rounds."""
    saved = {arm: [of_run for run in study.of_arm(arm) if (of_run := _saved(study, run))] for arm in study.arms}
    saved = {arm: [of_run for of_run in of_arm if _width(of_run) == _width(of_arm[0])] for arm, of_arm in saved.items()}
    shared = [set(of_run) for of_arm in saved.values() for of_run in of_arm]
    rounds = sorted(set.intersection(*shared)) if shared else []
    places = np.unique(np.linspace(0, len(rounds) - 1, _ROUNDS).round().astype(int)) if rounds else ()
    rows = [
        (arm, rounds[place], i, float(value))
        for arm, of_arm in saved.items()
        for place in (places if of_arm else ())
        for i, value in enumerate(np.mean([of_run[rounds[place]] for of_run in of_arm], axis=0), 1)
    ]
    return Selection(("arm", "round", "index", "singular value"), rows)


@draws(_singular_values)
def head_spectra(study: Study, selection: Selection) -> "Figure":
    """Singular values of the classifier's weight by their index, a panel for each arm, later rounds darker."""
    from matplotlib.lines import Line2D

    parts, rounds = selection.by("arm"), np.unique(selection.columns()[1])
    strengths = np.linspace(0.25, 1, len(rounds)) if len(rounds) > 1 else np.ones(1)
    figure, panels = drawing.panels_of(parts, "index of the singular value", "singular value")
    for axes, (arm, part) in zip(panels, parts.items(), strict=True):
        for of_round, alpha in zip(part.by("round").values(), strengths, strict=True):
            axes.plot(*of_round.columns(), color=colours_of(study)[arm], alpha=alpha, marker=".")
        axes.set_ylim(bottom=0)
    handles = [Line2D([], [], color=drawing.INK, alpha=alpha) for alpha in strengths]
    drawing.legend(figure, handles, [f"round {r}" for r in rounds])
    return figure


def _width(of_run):
    return len(next(iter(of_run.values())))


def _saved(study, run):
    """Returns the singular values by round; nothing for values that are not finite, or another array of that name."""
    arrays = study.measured_arrays(run)
    name = next((name for name, values in arrays.items() if name.endswith("/singular_values") and is_of(values, 2)), "")
    pairs = zip(map(int, arrays["round"]), arrays[name], strict=True) if name else ()
    return {r: values for r, values in pairs if np.isfinite(values).all()}
