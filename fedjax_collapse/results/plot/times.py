"""The figure of times: how long compiling, training and evaluating took, and how fast training was."""

from fedjax_collapse.results.annotations import DataFrame, Figure
from fedjax_collapse.results.metrics import PHASES
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import Parts, colours_of, draws, label, new_figure
from fedjax_collapse.results.study import Results

_GREYS = (drawing.LIGHT, drawing.BAR, drawing.INK)  # of phases, since colours are for arms
_SPEED = "samples per second"


def _times(study: Results) -> Parts:
    """Yields seconds of a run by phase, mean over seeds, and true samples per second of training."""
    rows = study.timing.reindex(columns=["arm", "seed", *PHASES, "samples"])
    means = rows.groupby(["arm", "seed"], sort=False).sum().groupby("arm", sort=False).mean()
    speeds = (means.pop("samples") / means["train"]).where(means["train"] > 0, 0.0)
    yield means.assign(**{_SPEED: speeds}).reset_index()


@draws(_times)
def timing(study: Results, selection: DataFrame) -> Figure:
    """Left: seconds of one run, mean over seeds, with their sum; right: training samples per second of training.

    Padding is not counted, and compilation excluded. The table has medians of training time over rounds, without those
    that compile and the first of a run; per client: divided by the clients that trained, whether one after the other or
    at once. Batched runs are one program, whose time is divided equally among them (shared_by in timing.jsonl), so such
    arms cannot be compared by time; memory is that of the whole program, as estimated by the compiler.
    """
    from matplotlib.ticker import EngFormatter

    colours, speeds, left, bars = colours_of(study), selection[_SPEED], 0 * selection[_SPEED], []
    shared = map(study.shared_by, selection["arm"])  # by runs that were batched with those of the arm
    names = [label(a, 22) + f"\n1/{n} of shared time" * (n > 1) for a, n in zip(selection["arm"], shared, strict=True)]
    figure = new_figure(1.5 + (0.55 if any("\n" in name for name in names) else 0.42) * len(names))
    seconds_axes, speed_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for phase, grey in zip(PHASES, _GREYS, strict=True):
        bars.append(seconds_axes.barh(selection.index, selection[phase], 0.6, left, color=grey))
        left = left + selection[phase]
    speed_axes.barh(selection.index, speeds, 0.6, color=selection["arm"].map(colours))
    panels = ((seconds_axes, left, ",.1f", "seconds per run"), (speed_axes, speeds, ",.0f", "true samples/s"))
    for axes, values, form, heading in panels:
        axes.bar_label(axes.containers[-1], [f"{value:{form}}" for value in values], padding=3, fontsize="small")
        axes.set_xlabel(heading)
        axes.grid(False, axis="y")
        axes.set_xlim(0, axes.dataLim.x1 * 1.35 or 1)
        axes.locator_params(axis="x", nbins=3)
    speed_axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    seconds_axes.set_yticks(selection.index, names)
    seconds_axes.invert_yaxis()
    drawing.legend(figure, bars, list(PHASES))
    return figure
