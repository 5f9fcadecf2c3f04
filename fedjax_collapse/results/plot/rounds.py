"""Metrics over rounds: means over seeds, in panels, and the figure for a first page."""

import functools
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedjax_collapse.results import metrics
from fedjax_collapse.results.annotations import Axes, DataFrame, Figure
from fedjax_collapse.results.comparing import verdict
from fedjax_collapse.results.metrics import is_measured, metric_of
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import arm_line, by_arm, colours_of, draws, whole_numbers
from fedjax_collapse.results.plot.spectrum import shares
from fedjax_collapse.results.study import Results

LATE = 0.3  # the fraction of the rounds that is drawn again, enlarged
_FEWEST = 12  # the least number of evaluated rounds for that
_BAND = (
    "A line is the mean over seeds, a band (up to four arms) one standard deviation (n - 1) to either side; the last "
    "part of a panel that is alone is enlarged on the right, with twelve rounds or more."
)
_WIDTH = 6  # inches of the headline, so that its text is legible on a narrow page
_TITLE = 66  # characters in a line of its title
_SMALLEST = 0.1  # percent of the variance; dimensions with less are not in it
_SEED = {"linewidth": 0.7, "alpha": 0.4}
_MOST_BANDS = 4  # arms; more bands than that hide one another


def curves(study: Results, metrics: Sequence[str]) -> DataFrame:
    """Returns mean and standard deviation (n - 1) over seeds of metrics after each evaluated round.

    Columns are arm, metric, round, mean and std, in the units of ``metrics.jsonl``; the first is setting if there are
    several.
    """
    import pandas as pd

    labels = ["setting"] * study.has_settings + ["arm"]
    names = [name for name in dict.fromkeys(metrics) if name in study.frame]
    long = study.frame.melt([*labels, "round"], names, "metric", "value")
    for name, order in {"setting": study.settings, "arm": study.arms, "metric": names}.items():
        if name in long:
            long[name] = pd.Categorical(long[name], order)
    moments = long.dropna().groupby([*labels, "metric", "round"], observed=True)["value"].agg(["mean", "std"])
    return moments.reset_index().astype(dict.fromkeys((*labels, "metric"), object))


def local_name(study: Results, metric: str) -> str:
    """Returns the name of a metric of local models; of its mean over clients if several are watched."""
    return f"{metric}_mean" if f"{metric}_mean" in study.frame else metric


def draw_curves(axes: Axes, colours: Mapping[str, str], selection: DataFrame, bands: bool = True) -> None:
    """Draws the metrics of every arm in their units, with ``bands`` of up to four arms.

    Metrics of local models are dashed. ``colours`` has the colour of each arm.
    """
    is_of_local = {name: metric_of(name).of == "local" for name in selection["metric"].unique()}
    bands = bands and selection["arm"].nunique() <= _MOST_BANDS
    for (arm, name), curve in by_arm(selection, ["arm", "metric"]).items():
        is_dashed = is_of_local[name] and len(is_of_local) > 1
        look = arm_line(colours, arm, len(curve)) | ({"markerfacecolor": drawing.PAPER} if is_dashed else {})
        mean, std = (metric_of(name).factor * curve[part].to_numpy() for part in ("mean", "std"))
        axes.plot(curve["round"], mean, "--" if is_dashed else "-", **look)
        if bands:
            alpha = 0.08 if is_dashed else 0.18
            axes.fill_between(curve["round"], mean - std, mean + std, color=look["color"], alpha=alpha, linewidth=0)
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)


def _enlarge(axes: Axes, first: int, last: int) -> None:
    """Limits the axes to these rounds and to the values of lines in them."""
    values = np.concatenate([np.r_[line.get_ydata()][line.get_xdata() >= first] for line in axes.lines])
    axes.set_xlim(first, last)
    axes.set_xlabel(f"rounds {first} to {last}")
    if len(values):
        margin = 0.06 * np.ptp(values) or 0.01 * abs(values.max()) or 1
        axes.set_ylim(values.min() - margin, values.max() + margin)
    whole_numbers(axes.xaxis, 4)


def over_rounds(of_each: bool = False, finish: Callable[..., None] = lambda study, figure: None) -> Callable:
    """Makes a figure of a function that returns the names of metrics: a panel for each setting if there are several.

    Args:
        of_each: whether each metric has a panel, which it shares with the local models' metric.
        finish: adds to the figure, given the results and the figure.
    """

    def decorate(names_of):
        @functools.wraps(names_of)
        def figure(study, selection):
            groups = metrics.panels(selection["metric"].unique()).values()
            titles = {name: metric_of(of[0]).heading if of_each else "" for of in groups for name in of}
            parts = by_arm(selection, selection.get("setting", selection["metric"].map(titles)))
            finish(study, drawn := _draw_panels(study, selection, parts))
            return drawn

        figure.__doc__ = f"{names_of.__doc__.rstrip()} {_BAND}"
        return draws(lambda study: [curves(study, names_of(study))], of_settings=not of_each)(figure)

    return decorate


def _draw_panels(study: Results, selection: DataFrame, parts: "Mapping[str, DataFrame]") -> Figure:
    """Returns curves over rounds, a panel for each title; a panel without one is narrow, with late rounds enlarged."""
    name, rounds, colours = selection["metric"].iloc[0], np.unique(selection["round"]), colours_of(study)
    up, late = "" if is_measured(name) else metric_of(name).axis, "" in parts and len(rounds) >= _FEWEST
    if "" in parts:
        figure = drawing.new_figure(3.7)
        shown = drawing.grid_of(figure, 1 + late, 1 + late, up, width_ratios=(3, 2)[: 1 + late])
    else:
        columns = min(2, len(parts)) * is_measured(name)
        figure, shown = drawing.panels_of(list(parts), up=up, columns=columns, height=2.6)
    for axes, part in zip(shown, [*parts.values()] * (1 + late), strict=True):
        draw_curves(axes, colours, part)
    if late:
        _enlarge(shown[1], rounds[int((1 - LATE) * len(rounds))], rounds[-1])
    is_of_both = any(line.get_linestyle() == "--" for axes in shown for line in axes.lines)
    drawing.arm_legend(figure, colours, selection["arm"].unique(), drawing.SERVER_AND_LOCAL if is_of_both else {})
    return figure


def _add_shares(study: Results, figure: Figure) -> None:
    """Adds a scale of percentages of the features if all arms have the same number."""
    count, *others = {*study.num_features.values()} or {0}
    if count and not others and not study.has_settings:
        functions = (lambda rank: 100 * rank / count), (lambda share: share * count / 100)
        figure.axes[-1].secondary_yaxis("right", functions=functions).set_ylabel(f"% of {count} features")


def _add_zero(study: Results, figure: Figure) -> None:
    for axes in figure.axes:
        axes.axhline(0, **drawing.THRESHOLD, zorder=1)


@over_rounds()
def accuracy(study: Results) -> list[str]:
    """The headline accuracy (see the note below the table), higher is better."""
    return [metrics.ACCURACY.name]


@over_rounds()
def score(study: Results) -> list[str]:
    """The score of a task that has no accuracy (see the note below the table)."""
    return [study.score.name] * (study.score != metrics.ACCURACY)


@over_rounds()
def training_loss(study: Results) -> list[str]:
    """Loss of the task during local training (cross-entropy, or what a method puts in its place).

    Without the terms of regularizers: mean over the clients of a round, weighted by their examples.
    """
    return [metrics.TASK_LOSS.name]


@over_rounds(finish=_add_shares)
def effective_rank(study: Results) -> list[str]:
    """Effective rank = exp of the entropy of the normalised eigenvalues (divided by their sum).

    It is 1 if one direction carries all variance, the number of features if all carry the same, so that a falling curve
    is dimensional collapse. The scale on the right, for arms with equally many features, is their percentage.
    """
    local = local_name(study, metrics.LOCAL_EFFECTIVE_RANK.name)
    return [metrics.EFFECTIVE_RANK.name, *[local] * (not study.has_settings)]


@over_rounds(finish=_add_zero)
def collapse_ratio(study: Results) -> list[str]:
    """R = mean over k of log(λ_k local / λ_k global).

    λ_k is the k-th largest eigenvalue of the local and of the global (server) model of the same round: 0 means equal
    spectra, below 0 the local spectrum is the lower one; if several clients are watched, the mean over them.
    """
    return [local_name(study, metrics.R.name)]


@over_rounds(of_each=True)
def domains(study: Results) -> list[str]:
    """Accuracy of the server model on the test examples of each domain."""
    return list(filter(metrics.is_of_domain, study.frame))


@over_rounds(of_each=True)
def measurements(study: Results) -> list[str]:
    """Custom measurements (measured/<name> in metrics.jsonl); those of several local models are the mean over them."""
    return [name for names in metrics.panels(study.measurements).values() for name in names]


@draws(lambda study: [curves(study, [study.score.name, metrics.EFFECTIVE_RANK.name])])
def headline(study: Results, selection: DataFrame) -> "Figure | None":
    """Accuracy, or the score of the task, and effective rank per round, and the server's spectrum at the end.

    Thick lines are means over seeds, thin ones are single seeds; the title is the study's verdict. The result is None
    without effective ranks and spectra.
    """
    figure, colours = drawing.new_figure(4.2, _WIDTH), colours_of(study)
    accuracy, rank, spectrum = figure.subplots(1, 3)
    for axes, metric in ((accuracy, study.score), (rank, metrics.EFFECTIVE_RANK)):
        rows = study.frame.reindex(columns=["arm", "seed", "round", metric.name])
        for (arm, _), run in by_arm(rows, ["arm", "seed"]).items():
            axes.plot(run["round"], metric.factor * run[metric.name], color=colours[arm], **_SEED)
        part = selection[selection["metric"] == metric.name]
        draw_curves(axes, colours, part, bands=False)
        axes.set_title(metric.axis.replace(" (", "\n("))
    arms = {*part["arm"], *_draw_variance(spectrum, study, colours)}  # with effective ranks or spectra
    if title := verdict(study):
        sentences = re.split(r"(?<=\.) ", drawing.label(title, 9 * _TITLE))
        wrapped = "\n".join(textwrap.fill(sentence, _TITLE) for sentence in sentences)
        figure.suptitle(wrapped, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    drawing.arm_legend(figure, colours, arms, above=False)
    return figure if arms else None


def _draw_variance(axes: Axes, study: Results, colours: Mapping[str, str]) -> list[str]:
    """Draws fractions of the variance by principal dimension of the server's last features; returns the arms."""
    arms = []
    for arm, features in study.num_features.items():
        ends = [run.spectra["server"][-1] for run in study.with_spectra if run.arm == arm]
        percents = 100 * shares(np.reshape(ends, (-1, features)))
        percents = percents[np.isfinite(percents).all(1)]
        percents = percents[:, (percents > _SMALLEST).any(0)]
        if len(percents):
            index = 1 + np.arange(len(percents.T))
            axes.plot(index, percents.T, color=colours[arm], **_SEED)
            axes.plot(index, percents.mean(axis=0), **arm_line(colours, arm, len(index)))
            arms.append(arm)
    axes.set(yscale="log", ylim=(_SMALLEST, 100), xlabel="dimension", title="final variance\nof features (%)")
    axes.yaxis.set_major_formatter("{x:g}")
    whole_numbers(axes.xaxis, 4)
    return arms
