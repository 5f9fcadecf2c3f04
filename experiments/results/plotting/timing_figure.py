"""The figure of a study's times: how long compiling, training and evaluating took, and how fast training was."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.results.metrics import PHASES, number
from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import draws, label, new_figure
from experiments.results.selection import Selection
from experiments.results.study_results import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREYS = (drawing.LIGHT, drawing.BAR, drawing.INK)  # of phases, since colours are for arms


def _times(study: Study) -> Selection:
    """Seconds of a run by phase, and true samples per second of training; means over seeds."""
    rows = []
    for arm in study.arms:
        runs = [run.timing for run in study.of_arm(arm) if run.timing]
        if runs:
            seconds = [np.mean([_total(timing, phase) for timing in runs]) for phase in PHASES]
            samples, training = (sum(_total(timing, key) for timing in runs) for key in ("samples", "train"))
            rows.append((arm, *seconds, samples / training if training > 0 else 0.0))
    return Selection(("arm", *PHASES, "samples per second"), rows)


def _total(timing, key) -> float:
    """Returns the sum over the rows of a run; null counts as zero."""
    return float(np.nansum([number(row.get(key)) for row in timing]))


@draws(_times)
def timing(study: Study, selection: Selection) -> "Figure":
    """Seconds of a run by phase, and true samples per second of training; means over seeds."""
    from matplotlib.ticker import EngFormatter

    arms, *seconds, speeds = selection.columns()
    shared = [study.shared_by(arm) for arm in arms]  # by runs that were batched with those of the arm
    names = [label(arm, 22) + f"\n1/{n} of shared time" * (n > 1) for arm, n in zip(arms, shared, strict=True)]
    figure = new_figure(1.5 + (0.55 if any("\n" in name for name in names) else 0.42) * len(arms))
    seconds_axes, speed_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    left, bars = np.zeros(len(arms)), []
    for width, colour in zip(seconds, _GREYS, strict=True):
        bars.append(seconds_axes.barh(range(len(arms)), width, 0.6, left, color=colour))
        left = left + width
    speed_axes.barh(range(len(arms)), speeds, 0.6, color=[colours_of(study)[arm] for arm in arms])
    for row, (total, speed) in enumerate(zip(left, speeds, strict=True)):
        beside = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
        seconds_axes.annotate(f"{total:,.1f}", (total, row), **beside)
        speed_axes.annotate(f"{speed:,.0f}", (speed, row), **beside)
    for axes, heading in ((seconds_axes, "seconds per run"), (speed_axes, "true samples/s")):
        axes.set_xlabel(heading)
        axes.grid(False, axis="y")
        axes.set_xlim(0, axes.dataLim.x1 * 1.35 or 1)
        axes.locator_params(axis="x", nbins=3)
    speed_axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    seconds_axes.set_yticks(range(len(arms)), names)
    seconds_axes.invert_yaxis()
    drawing.legend(figure, bars, list(PHASES))
    return figure
