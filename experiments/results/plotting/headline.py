"""The figure of a study for a first page: what collapse does to accuracy, with the finding as its title."""

import re
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.results.metrics import EFFECTIVE_RANK, Metric, number
from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.figures import curves, draw_curves, shares, with_legend
from experiments.results.study_results import Study
from experiments.results.verdict import verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 11  # inches
_TITLE = 118  # characters in a line of the title
_SMALLEST = 0.1  # percent of the variance; dimensions with less are not drawn
_SEED = {"linewidth": 0.7, "alpha": 0.4}


@drawing.styled
def headline(study: Study) -> "Figure | None":
    """Accuracy, or the score of the task, and effective rank per round, and the server's spectrum at the end.

    Thick lines are means over seeds, thin ones are single seeds; the title is the study's verdict. The result is None
    without effective ranks and spectra.
    """
    figure = drawing.new_figure(4.4, width=_WIDTH)
    accuracy, rank, spectrum = figure.subplots(1, 3)
    _draw_rounds(accuracy, study, study.score)
    lines = _draw_rounds(rank, study, EFFECTIVE_RANK) | _draw_variance(spectrum, study)
    if title := verdict(study):
        sentences = re.split(r"(?<=\.) ", drawing.label(title, 6 * _TITLE))
        wrapped = "\n".join(textwrap.fill(sentence, _TITLE) for sentence in sentences)
        figure.suptitle(wrapped, x=0.01, ha="left", fontsize="large", fontweight="bold")
    return with_legend(figure, lines, above=False)


def _draw_rounds(axes: "Axes", study: Study, metric: Metric) -> dict[str, Any]:
    """Draws the metric of every run, and the mean of every arm; returns the lines of the means."""
    for (arm, _), run in study.table.by("arm", "seed").items():
        values = [metric.factor * number(value) for value in run.column(metric.name)]
        axes.plot(run.column("round"), values, color=colours_of(study)[arm], **_SEED)
    axes.set_title(metric.axis, loc="left")
    return draw_curves(axes, colours_of(study), curves(study, [metric.name]), [metric.name], bands=False)


def _draw_variance(axes: "Axes", study: Study) -> dict[str, Any]:
    """Draws the share of the variance in each principal dimension of the server's features at the last saved round."""
    lines = {}
    for arm in study.num_features:
        ends = [run.spectra["server"][-1] for run in study.of_arm(arm) if len(run.spectra.get("round", ()))]
        percents = 100 * shares(np.reshape(ends, (len(ends), -1)))
        percents = percents[np.all(np.isfinite(percents), axis=1)]
        percents = percents[:, np.any(percents > _SMALLEST, axis=0)]
        for of_run in percents:
            axes.plot(np.arange(1, 1 + len(of_run)), of_run, color=colours_of(study)[arm], **_SEED)
        if len(percents):
            look = drawing.arm_line(colours_of(study), arm, percents.shape[1])
            lines[arm] = axes.plot(np.arange(1, 1 + percents.shape[1]), percents.mean(axis=0), **look)[0]
    axes.set_yscale("log")
    axes.set_ylim(_SMALLEST, 100)
    axes.set_title("variance of the features at the end (%)", loc="left")
    axes.set_xlabel("principal dimension")
    drawing.whole_numbers(axes.xaxis)
    return lines
