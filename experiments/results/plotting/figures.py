"""The figures of a report: functions from a ``Study`` to a matplotlib ``Figure``, or to None without data.

Each draws a selection of the study's results, its attribute ``select``, which is also its CSV file.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.results.metrics import (
    ACCURACY,
    EFFECTIVE_RANK,
    LOCAL_EFFECTIVE_RANK,
    TASK_LOSS,
    R,
    metric_of,
    number,
    panels,
    show_number,
)
from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import THRESHOLD, arm_line, draws, grid_of, label, new_figure, whole_numbers
from experiments.results.selection import Selection
from experiments.results.study_results import Study, mean_and_std
from fedjax_collapse.analysis.spectrum import FLOOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGNIFICANT = -2.0  # eigenvalues with a larger natural logarithm count as significant dimensions
LOWEST = -12.0  # spectra are cut off here, because an eigenvalue of exactly zero would flatten the rest
SMALLEST = 1e-4  # percent of the variance, likewise
LATE = 0.3  # the fraction of the rounds that is drawn again, enlarged
_MOST_BANDS = 4  # arms; more bands than that hide one another
_FEWEST = 12  # the least number of evaluated rounds for that
_CURVE = ("arm", "metric", "round", "mean", "std")


def curves(study: Study, metrics: Sequence[str], factors: Mapping[str, float] | None = None) -> Selection:
    """Returns mean and standard deviation over seeds, in the units of ``metrics.jsonl``.

    Args:
        study: the study.
        metrics: the names of the metrics.
        factors: multiply the values of each arm; arms without a factor are left out.
    """
    rows = []
    for arm, part in study.table.by("arm").items():
        factor = factors.get(arm) if factors is not None else 1
        for metric in metrics if factor else ():
            values: dict[int, list[float]] = {}
            for r, value in zip(part.column("round"), map(number, part.column(metric)), strict=True):
                if math.isfinite(value):
                    values.setdefault(r, []).append(value)
            rows += [(arm, metric, r, *(factor * moment for moment in mean_and_std(values[r]))) for r in sorted(values)]
    return Selection(_CURVE, rows)


def over_rounds(metrics_of: Callable[[Study], Sequence[str]]) -> Callable[..., "Figure | None"]:
    """Returns the figure of these metrics per round."""

    @draws(lambda study: curves(study, metrics_of(study)))
    def figure(study: Study, selection: Selection) -> "Figure":
        return _over_rounds(study, selection, metrics_of(study))

    return figure


def over_settings(metrics_of: Callable[[Study], list[str]]) -> Callable[..., "Figure | None"]:
    """Returns the figure of a metric per round, in a panel for each setting; an arm has one line style in all.

    ``metrics_of`` returns the metric of a study in a list, which is empty if there is nothing to draw.
    """

    def select(study: Study) -> Selection:
        metrics = metrics_of(study)
        parts = {setting: curves(study.of_setting(setting), metrics) for setting in study.settings}
        return Selection(
            ("setting", *_CURVE), [(setting, *row) for setting, part in parts.items() for row in part.rows]
        )

    @draws(select)
    def figure(study: Study, selection: Selection) -> "Figure":
        parts, columns = selection.by("setting"), min(4, len(study.settings))
        drawn = new_figure(0.6 + 2.1 * -(-len(study.settings) // columns), width=11)
        lines, (metric,) = {}, metrics_of(study)
        grid = grid_of(drawn, len(study.settings), columns, metric_of(metric).axis)
        for axes, setting in zip(grid, study.settings, strict=True):
            lines |= draw_curves(axes, colours_of(study), parts.get(setting, Selection(_CURVE, ())), [metric])
            axes.set_title(label(setting, 32), loc="left")
        return with_legend(drawn, {arm: lines[arm] for arm in colours_of(study) if arm in lines})

    return figure


def score_of(study: Study) -> list[str]:
    """Returns the score of a task that has no accuracy, in a list that is empty if it has one."""
    return [study.score.name] if study.score != ACCURACY else []


accuracy = over_rounds(lambda study: [ACCURACY.name])
score = over_rounds(score_of)
training_loss = over_rounds(lambda study: [TASK_LOSS.name])


def ranks(study: Study) -> list[str]:
    """Returns the names of the server's effective rank and the local one, the mean over the watched clients."""
    return [EFFECTIVE_RANK.name, study.of_local(LOCAL_EFFECTIVE_RANK.name)]


@draws(lambda study: curves(study, ranks(study)))
def effective_rank(study: Study, selection: Selection) -> "Figure":
    """Effective rank per round, also as a percentage of the features if all arms have the same number."""
    figure = _over_rounds(study, selection, ranks(study))
    numbers = set(study.num_features.values())
    if len(numbers) == 1:
        (number,) = numbers
        to_share, to_rank = (lambda rank: 100 * rank / number), (lambda share: share * number / 100)
        scale = figure.axes[-1].secondary_yaxis("right", functions=(to_share, to_rank))
        scale.set_ylabel(f"% of {number} features")
    return figure


@draws(lambda study: curves(study, ranks(study), {arm: 1 / number for arm, number in study.num_features.items()}))
def rank_share(study: Study, selection: Selection) -> "Figure | None":
    """Effective rank over the number of features, per round, if arms differ in that number."""
    if len(set(study.num_features.values())) < 2:
        return None
    return _over_rounds(study, selection, ranks(study), "effective rank (% of the features)", 100)


@draws(lambda study: curves(study, [study.of_local(R.name)]))
def collapse_ratio(study: Study, selection: Selection) -> "Figure":
    """R per round."""
    figure = _over_rounds(study, selection, [study.of_local(R.name)])
    figure.axes[0].axhline(0, **THRESHOLD, zorder=1)
    return figure


@draws(lambda study: curves(study, study.domain_accuracies))
def domains(study: Study, selection: Selection) -> "Figure":
    """Accuracy on the test examples of each domain, per round, in a panel each."""
    shown = {metric_of(name).heading: [name] for name in study.domain_accuracies}
    return _panels(study, selection, shown, 3, ACCURACY.axis)


@draws(lambda study: curves(study, [name for names in panels(study.measurements).values() for name in names]))
def measurements(study: Study, selection: Selection) -> "Figure":
    """Custom measurements over rounds, in a panel each; those of the server's model and of local ones share a panel."""
    shown = panels(study.measurements)
    return _panels(study, selection, {metric_of(name).heading: names for name, names in shown.items()}, 2)


def _spectra(study: Study, absolute: bool) -> Selection:
    """Percentages of the variance in descending order, at the last round that any run of the arm saved.

    If ``absolute``, natural logarithms of the eigenvalues. Logarithms are averaged over the runs that saved this round.
    """
    rows = []
    for arm in study.num_features:
        runs = [run.spectra for run in study.of_arm(arm) if len(run.spectra.get("round", ()))]
        last = max(int(arrays["round"].max()) for arrays in runs)
        runs = [arrays for arrays in runs if last in arrays["round"]]
        ends = (np.array([of[name][of["round"] == last][-1] for of in runs]) for name in ("server", "local"))
        both = (_mean_log(end) if absolute else 100 * np.exp(_mean_log(shares(end))) for end in ends)
        rows += [(arm, last, i, *pair) for i, pair in enumerate(zip(*both, strict=True), 1)]
    return Selection(("arm", "round", "index", "server", "local"), rows)


def shares(spectra: np.ndarray) -> np.ndarray:
    """Returns spectra [runs, features] divided by their sums; NaN where all features are constant."""
    totals = spectra.sum(axis=1, keepdims=True)
    return np.divide(spectra, totals, out=np.full_like(spectra, np.nan), where=totals > 0)


def _mean_log(rows: np.ndarray) -> np.ndarray:
    """Returns the mean over the spectra that are finite, if there are any."""
    finite = rows[np.isfinite(rows).all(axis=1)]
    return np.log(np.maximum(finite if len(finite) else rows, FLOOR)).mean(axis=0)


def over_index(absolute: bool) -> Callable[..., "Figure | None"]:
    """Returns the figure of the spectra of the server model and of a local model, normalised or ``absolute``."""

    @draws(functools.partial(_spectra, absolute=absolute))
    def figure(study: Study, selection: Selection) -> "Figure":
        drawn = new_figure(3.7)
        lines = _draw_spectra(drawn.subplots(), colours_of(study), selection, absolute)
        return with_legend(drawn, lines, local=True, threshold=absolute)

    return figure


spectra, absolute_spectra = over_index(False), over_index(True)


def _over_rounds(
    study: Study, selection: Selection, metrics: Sequence[str], axis: str = "", factor: float = 0
) -> "Figure":
    """A panel of curves over rounds, and one of the late rounds; by default in the unit of the first metric."""
    figure = new_figure(3.7)
    rounds = np.unique(selection.columns()[2])
    if len(rounds) < _FEWEST:
        whole = figure.subplots()
        lines = draw_curves(whole, colours_of(study), selection, metrics, factor)
    else:
        whole, late = figure.subplots(1, 2, width_ratios=(3, 2))
        lines = draw_curves(whole, colours_of(study), selection, metrics, factor)
        draw_curves(late, colours_of(study), selection, metrics, factor)
        _enlarge(late, rounds[int((1 - LATE) * len(rounds))], rounds[-1])
    whole.set_ylabel(axis or metric_of(metrics[0]).axis)
    return with_legend(figure, lines, local=len(metrics) > 1)


def _enlarge(axes: "Axes", first: int, last: int) -> None:
    """Limits the axes to these rounds and to the values of lines in them."""
    parts = [line.get_ydata()[(line.get_xdata() >= first) & (line.get_xdata() <= last)] for line in axes.lines]
    values = np.concatenate([part[np.isfinite(part)] for part in parts])
    axes.set_xlim(first, last)
    axes.set_xlabel(f"rounds {first} to {last}")
    if len(values):
        margin = 0.06 * (values.max() - values.min()) or 0.01 * abs(values.max()) or 1
        axes.set_ylim(values.min() - margin, values.max() + margin)
    whole_numbers(axes.xaxis, 4)


def _panels(
    study: Study, selection: Selection, shown: Mapping[str, Sequence[str]], columns: int, heading: str = ""
) -> "Figure":
    """Draws panels by title; ``shown`` maps titles to the metrics of a panel."""
    height = -(-len(shown) // columns)
    columns = -(-len(shown) // height)  # as many lines, but filled evenly
    figure = new_figure(0.5 + 2.6 * height, width=8.4)
    lines = {}
    for axes, (title, metrics) in zip(grid_of(figure, len(shown), columns, heading), shown.items(), strict=True):
        lines |= draw_curves(axes, colours_of(study), selection, metrics)
        axes.set_title(label(title, 100 // columns), loc="left")
    is_of_both = any(len(metrics) > 1 for metrics in shown.values())
    return with_legend(figure, {arm: lines[arm] for arm in colours_of(study) if arm in lines}, local=is_of_both)


def draw_curves(
    axes: "Axes",
    colours: Mapping[str, str],
    selection: Selection,
    metrics: Sequence[str],
    factor: float = 0,
    bands: bool = True,
) -> dict[str, Any]:
    """Draws the metrics of every arm, with ``bands`` of up to four arms; returns one line per arm.

    ``colours`` has all arms, in the order of lines; ``factor`` multiplies the values, by default to the metric's unit.
    """
    lines, parts = {}, selection.by("arm", "metric")
    num_arms = len({arm for arm, _ in parts})
    for (arm, metric), curve in parts.items():
        if metric not in metrics:
            continue
        is_dashed = len(metrics) > 1 and metric_of(metric).of == "local"
        rounds, *moments = curve.columns()
        mean, std = ((factor or metric_of(metric).factor) * values for values in moments)
        look = arm_line(colours, arm, len(rounds)) | ({"markerfacecolor": drawing.PAPER} if is_dashed else {})
        line = axes.plot(rounds, mean, "--" if is_dashed else "-", **look)[0]
        lines.setdefault(arm, line)
        if bands and num_arms <= _MOST_BANDS:
            alpha = 0.08 if is_dashed else 0.18
            axes.fill_between(rounds, mean - std, mean + std, color=look["color"], alpha=alpha, linewidth=0)
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)
    return {arm: lines[arm] for arm in colours if arm in lines}


def _draw_spectra(axes: "Axes", colours: Mapping[str, str], selection: Selection, absolute: bool) -> dict[str, Any]:
    """Draws both spectra of every arm, with the threshold of absolute ones; returns one line per arm of ``colours``."""
    lines, lowest, rounds = {}, SIGNIFICANT if absolute else 100, set()
    for (arm, round), part in selection.by("arm", "round").items():
        rounds.add(round)
        index, *both = part.columns()
        for values, style in zip(both, ("-", "--"), strict=True):
            look = arm_line(colours, arm, len(values)) | ({} if style == "-" else {"markerfacecolor": drawing.PAPER})
            line = axes.plot(index, values, style, **look)[0]
            lines.setdefault(arm, line)
            lowest = min([lowest, *values[np.isfinite(values)]])
    if absolute:
        axes.axhline(SIGNIFICANT, **THRESHOLD, zorder=1)
        axes.set_ylim(bottom=max(lowest - 0.5, LOWEST))
    else:
        axes.set_yscale("log")
        axes.set_ylim(max(lowest / 2, SMALLEST), 100)
    when = f"round {rounds.pop()}" if len(rounds) == 1 else "last saved round"
    axes.set(
        xlabel=f"principal dimension ({when})",
        ylabel="log eigenvalue (natural)" if absolute else "share of the variance (%)",
    )
    whole_numbers(axes.xaxis)
    return {arm: lines[arm] for arm in colours if arm in lines}


def with_legend(
    figure: "Figure", lines: dict[str, Any], local: bool = False, threshold: bool = False, above: bool = True
) -> "Figure | None":
    """Returns the figure with its legend: arms by colour, and the models by line style; None without lines."""
    from matplotlib.lines import Line2D

    if not lines:
        return None
    handles = [Line2D([], [], color=line.get_color(), marker=line.get_marker()) for line in lines.values()]
    labels = [label(arm) for arm in lines]
    if local:
        handles += [Line2D([], [], color=drawing.MUTE, linestyle=style) for style in ("-", "--")]
        labels += ["server model", "local model"]
    if threshold:
        handles.append(Line2D([], [], **THRESHOLD))
        labels.append(f"threshold {show_number(SIGNIFICANT, '.0f')}")
    drawing.legend(figure, handles, labels, above)
    return figure
