"""The figures of a report: functions of a ``Study`` to a matplotlib ``Figure``, or to None without the data for it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.reporting import drawing
from experiments.reporting.drawing import (
    THRESHOLD,
    arm_colour,
    arm_line,
    grid_of,
    label,
    new_figure,
    styled,
    whole_numbers,
)
from experiments.reporting.study import Run, Study, number, panels
from fedjax_collapse.records import MEASURED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGNIFICANT = -2.0  # an eigenvalue whose natural logarithm lies above counts as a significant dimension
LOWEST = -12.0  # a spectrum is cut off here: a dimension that is exactly dead would flatten the rest
TASK_LOSS = "train/task_loss"  # in the rows of metrics.jsonl
PHASES = {"compile": drawing.LIGHT, "train": drawing.BAR, "evaluate": drawing.INK}  # greys: colours are for arms
LATE = 0.3  # the share of the rounds that is drawn once more, enlarged
_FEWEST = 12  # evaluated rounds for that


@styled
def accuracy(study: Study) -> "Figure | None":
    """Test accuracy of the server model per round."""
    return _over_rounds(study, {"accuracy": "-"}, "test accuracy (%)", factor=100)


@styled
def over_settings(study: Study, metric: str, heading: str, factor: float = 1) -> "Figure | None":
    """The metric per round, in a panel for each setting; an arm has the same line in all of them."""
    parts = {setting: study.of_setting(setting) for setting in study.settings}
    columns = min(4, len(parts))
    figure = new_figure(0.6 + 2.1 * -(-len(parts) // columns), width=11)
    lines = {}
    for axes, (setting, part) in zip(grid_of(figure, len(parts), columns, heading), parts.items(), strict=True):
        lines |= _draw_curves(axes, part, {metric: "-"}, factor, study.arms)
        axes.set_title(label(setting, 32), loc="left")
    return _with_legend(figure, {arm: lines[arm] for arm in study.arms if arm in lines})


@styled
def spectra(study: Study) -> "Figure | None":
    """Log-eigenvalues of the feature covariance of the server model and of a local model."""
    figure = new_figure(3.7)
    return _with_legend(figure, _draw_spectra(figure.subplots(), study), local=True, threshold=True)


def ranks(study: Study) -> dict[str, str]:
    """Effective ranks of the server's model and of local ones, the mean over those that are watched; line styles."""
    return {"effective_rank": "-", study.of_local("local_effective_rank"): "--"}


@styled
def effective_rank(study: Study) -> "Figure | None":
    """Effective rank of the features of the server model and of the watched local model (the mean over several), per
    round.

    A second scale has it as a share of the number of features, where that is the same for all arms.
    """
    figure = _over_rounds(study, ranks(study), "effective rank (dimensions)")
    numbers = set(study.num_features.values())
    if figure is not None and len(numbers) == 1:
        (number,) = numbers
        to_share, to_rank = (lambda rank: 100 * rank / number), (lambda share: share * number / 100)
        scale = figure.axes[-1].secondary_yaxis("right", functions=(to_share, to_rank))
        scale.set_ylabel(f"% of {number} features")
    return figure


@styled
def rank_share(study: Study) -> "Figure | None":
    """Effective rank over the number of features, per round, where arms differ in that number."""
    numbers = study.num_features
    if len(set(numbers.values())) < 2:
        return None
    factors = {arm: 100 / number for arm, number in numbers.items()}
    return _over_rounds(study, ranks(study), "effective rank (% of the features)", factors)


@styled
def collapse_ratio(study: Study) -> "Figure | None":
    """R per round."""
    figure = _over_rounds(study, {study.of_local("R"): "-"}, "R (natural log)")
    if figure is not None:
        figure.axes[0].axhline(0, **THRESHOLD, zorder=1)
    return figure


@styled
def domains(study: Study) -> "Figure | None":
    """Accuracy on the test examples of each domain, per round; a panel each."""
    shown = {name.partition("/")[2]: {name: "-"} for name in study.domain_accuracies}
    return _panels(study, shown, 3, 100, "test accuracy (%)")


@styled
def measurements(study: Study) -> "Figure | None":
    """The study's own measurements over rounds; a panel each, that of the server's model and of local ones in one."""
    shown = panels(study.measurements)
    return _panels(study, {name.removeprefix(MEASURED): styles for name, styles in shown.items()}, 2)


@styled
def training_loss(study: Study) -> "Figure | None":
    """Training loss per round, mean over its clients."""
    return _over_rounds(study, {TASK_LOSS: "-"}, "training loss of the task")


@styled
def client_loss(study: Study) -> "Figure | None":
    """Training loss of every client in every round: one panel per arm, its first seed."""
    from matplotlib.colors import LogNorm, Normalize

    runs = {arm: run for arm in study.arms for run in study.of_arm(arm)[:1] if np.isfinite(client_losses(run)).any()}
    if not runs:
        return None
    values = np.concatenate([client_losses(run).ravel() for run in runs.values()])
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    logarithmic = high > 0 and low < high / 20
    low = max(low, high / 1e4) if logarithmic else low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high)
    columns = 1 if len(runs) <= 3 else 2 if len(runs) <= 8 else 3
    lines = -(-len(runs) // columns)
    clients = max(client_losses(run).shape[1] for run in runs.values())
    figure = new_figure(0.6 + (1.7 if clients <= 50 else 2.4) * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (arm, run) in zip(grid.flat, runs.items(), strict=False):
        losses = np.clip(client_losses(run), low, None).T
        image = drawing.heat_map(axes, run.clients["round"], np.arange(len(losses)), losses, norm=norm, cmap="viridis")
        axes.set_title(label(arm, 34 // columns), loc="left", color=arm_colour(study.arms, arm))
        whole_numbers(axes.xaxis, 9 // columns)
        whole_numbers(axes.yaxis, 5)
    panels = list(grid.flat[: len(runs)])
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    for axes in grid.flat[len(runs) :]:
        axes.remove()
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("client", fontsize="medium")
    figure.colorbar(image, ax=panels, label="cross-entropy (nats" + (", log scale)" if logarithmic else ")"))
    return figure


@styled
def timing(study: Study) -> "Figure | None":
    """Seconds of a run by phase, and true samples per second of training; means over seeds."""
    from matplotlib.ticker import EngFormatter

    arms = [arm for arm in study.arms if any(run.timing for run in study.of_arm(arm))]
    if not arms:
        return None
    figure = new_figure(1.5 + (0.55 if any(_share(study, arm) for arm in arms) else 0.42) * len(arms))
    seconds_axes, speed_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    left, speeds = np.zeros(len(arms)), [samples_per_second(study, arm) for arm in arms]
    bars = []
    for phase, colour in PHASES.items():
        width = np.array([mean_seconds(study, arm, phase) for arm in arms])
        bars.append(seconds_axes.barh(range(len(arms)), width, 0.6, left, color=colour))
        left = left + width
    speed_axes.barh(range(len(arms)), speeds, 0.6, color=[arm_colour(study.arms, arm) for arm in arms])
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
    seconds_axes.set_yticks(range(len(arms)), [label(arm, 22) + _share(study, arm) for arm in arms])
    seconds_axes.invert_yaxis()
    drawing.legend(figure, bars, list(PHASES))
    return figure


@styled
def headline(study: Study) -> "Figure | None":
    """A small wide figure: spectra of local and server models on the left, effective rank per round on the right."""
    figure = new_figure(3.2, width=8.4)
    left, right = figure.subplots(1, 2)
    lines = _draw_spectra(left, study)
    lines = _draw_curves(right, study, ranks(study)) or lines
    right.set_ylabel("effective rank (dimensions)")
    return _with_legend(figure, lines, local=True, threshold=True)


def _over_rounds(
    study: Study, styles: dict[str, str], heading: str, factor: float | Mapping[str, float] = 1
) -> "Figure | None":
    """A panel of curves over rounds, and one of the late rounds; ``styles`` maps metrics to line styles."""
    figure = new_figure(3.7)
    rounds = np.unique([r for arm in study.arms for metric in styles for r in study.curve(arm, metric).rounds])
    if len(rounds) < _FEWEST:
        whole = figure.subplots()
        lines = _draw_curves(whole, study, styles, factor)
    else:
        whole, late = figure.subplots(1, 2, width_ratios=(3, 2))
        lines = _draw_curves(whole, study, styles, factor)
        _draw_curves(late, study, styles, factor)
        _enlarge(late, rounds[int((1 - LATE) * len(rounds))], rounds[-1])
    whole.set_ylabel(heading)
    return _with_legend(figure, lines, local=len(styles) > 1)


def _enlarge(axes: "Axes", first: int, last: int) -> None:
    """Limits the axes to these rounds and to the values that lines have there."""
    parts = [line.get_ydata()[(line.get_xdata() >= first) & (line.get_xdata() <= last)] for line in axes.lines]
    values = np.concatenate([part[np.isfinite(part)] for part in parts])
    axes.set_xlim(first, last)
    axes.set_xlabel(f"rounds {first} to {last}")
    if len(values):
        margin = 0.06 * (values.max() - values.min()) or 0.01 * abs(values.max()) or 1
        axes.set_ylim(values.min() - margin, values.max() + margin)
    whole_numbers(axes.xaxis, 4)


def _panels(
    study: Study, shown: Mapping[str, dict[str, str]], columns: int, factor: float = 1, heading: str = ""
) -> "Figure | None":
    """By title the metrics of a panel, each with its line style."""
    if not shown:
        return None
    height = -(-len(shown) // columns)
    columns = -(-len(shown) // height)  # as many lines, but filled evenly
    figure = new_figure(0.5 + 2.6 * height, width=8.4)
    lines = {}
    for axes, (title, styles) in zip(grid_of(figure, len(shown), columns, heading), shown.items(), strict=True):
        lines |= _draw_curves(axes, study, styles, factor)
        axes.set_title(label(title, 100 // columns), loc="left")
    is_of_both = any(len(styles) > 1 for styles in shown.values())
    return _with_legend(figure, {arm: lines[arm] for arm in study.arms if arm in lines}, local=is_of_both)


def _draw_curves(
    axes: "Axes",
    study: Study,
    styles: dict[str, str],
    factor: float | Mapping[str, float] = 1,
    arms: Sequence[str] = (),
) -> dict[str, Any]:
    """Draws the metrics of every arm with bands where there are several seeds; returns one line per arm.

    ``factor``: of the values, or of those of each arm; ``arms``: all that have colours, where the study has not all.
    """
    lines, factors = {}, factor if isinstance(factor, Mapping) else dict.fromkeys(study.arms, factor)
    for arm in filter(factors.get, study.arms):
        for metric, style in styles.items():
            curve = study.curve(arm, metric)
            if not len(curve.rounds):
                continue
            look = arm_line(arms or study.arms, arm, len(curve.rounds)) | (
                {} if style == "-" else {"markerfacecolor": drawing.PAPER}
            )
            mean, std = factors[arm] * curve.mean, factors[arm] * curve.std
            line = axes.plot(curve.rounds, mean, style, **look)[0]
            lines.setdefault(arm, line)
            alpha = (0.18 if style == "-" else 0.08) * min(1, 4 / len(study.arms))
            axes.fill_between(curve.rounds, mean - std, mean + std, color=look["color"], alpha=alpha, linewidth=0)
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)
    return lines


def _draw_spectra(axes: "Axes", study: Study) -> dict[str, Any]:
    """Draws both spectra of every arm and the threshold; returns one line per arm."""
    lines, lowest, rounds = {}, SIGNIFICANT, set()
    for arm in study.arms:
        if (log := study.log_spectra(arm)) is None:
            continue
        rounds.add(log.round)
        for values, style in ((log.server, "-"), (log.local, "--")):
            look = arm_line(study.arms, arm, len(values)) | ({} if style == "-" else {"markerfacecolor": drawing.PAPER})
            line = axes.plot(np.arange(1, len(values) + 1), values, style, **look)[0]
            lines.setdefault(arm, line)
            lowest = min([lowest, *values[np.isfinite(values)]])
    axes.axhline(SIGNIFICANT, **THRESHOLD, zorder=1)
    axes.set_ylim(bottom=max(lowest - 0.5, LOWEST))
    when = f"round {rounds.pop()}" if len(rounds) == 1 else "last saved round"
    axes.set(xlabel=f"index of the eigenvalue ({when})", ylabel="log eigenvalue (natural)")
    whole_numbers(axes.xaxis)
    return lines


def _with_legend(
    figure: "Figure", lines: dict[str, Any], local: bool = False, threshold: bool = False
) -> "Figure | None":
    """The figure with its legend: arms by colour, and what else is in it by line style; None without lines."""
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
        labels.append(f"threshold {SIGNIFICANT:.0f}")
    drawing.legend(figure, handles, labels)
    return figure


def client_losses(run: Run) -> np.ndarray:
    """Training cross-entropy [rounds, clients]; empty if not recorded."""
    return np.asarray(run.clients.get("task_loss", np.empty((0, 0))), float)


def mean_seconds(study: Study, arm: str, phase: str) -> float:
    """Seconds of a run in a phase, mean over the arm's runs; null counts as none."""
    runs = [run for run in study.of_arm(arm) if run.timing]
    return float(np.mean([np.nansum([number(row.get(phase)) for row in run.timing]) for run in runs]))


def _share(study: Study, arm: str) -> str:
    """Which part of its program's time a run of the arm is given, if it was trained together with others."""
    most = study.shared_by(arm)
    return f"\n1/{most} of shared time" if most > 1 else ""


def samples_per_second(study: Study, arm: str) -> float:
    """All true samples of an arm by all its training seconds; 0 if not recorded."""
    rows = [row for run in study.of_arm(arm) for row in run.timing]
    samples, seconds = (np.nansum([number(row.get(key)) for row in rows]) for key in ("samples", "train"))
    return float(samples / seconds) if seconds > 0 else 0.0
