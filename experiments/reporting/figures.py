"""The figures of a report: functions of a ``Study`` to a matplotlib ``Figure``, or to None without the data for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.reporting import drawing
from experiments.reporting.drawing import THRESHOLD, arm_colour, arm_line, label, new_figure, styled, whole_numbers
from experiments.reporting.study import MEASURED, Run, Study, number, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGNIFICANT = -2.0  # an eigenvalue whose natural logarithm lies above counts as a significant dimension
LOWEST = -12.0  # a spectrum is cut off here: a dimension that is exactly dead would flatten the rest
PHASES = {"compile": "#d9d9d9", "train": drawing.BAR, "evaluate": "#262626"}  # greys: colours are for arms


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
    grid = figure.subplots(-(-len(parts) // columns), columns, squeeze=False)
    lines = {}
    for axes, (setting, part) in zip(grid.flat, parts.items(), strict=False):
        lines |= _draw_curves(axes, part, {metric: "-"}, factor, study.arms)
        axes.set_title(label(setting, 32), loc="left")
    for axes in grid.flat[len(parts) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(heading)
    return _with_legend(figure, {arm: lines[arm] for arm in study.arms if arm in lines})


@styled
def spectra(study: Study) -> "Figure | None":
    """Log-eigenvalues of the feature covariance of the server model and of a local model."""
    figure = new_figure(3.7)
    return _with_legend(figure, _draw_spectra(figure.subplots(), study), local=True, threshold=True)


@styled
def effective_rank(study: Study) -> "Figure | None":
    """Effective rank of the features of the server model and of the watched local model, per round."""
    styles = {"effective_rank": "-", "local_effective_rank": "--"}
    return _over_rounds(study, styles, "effective rank (dimensions)")


@styled
def collapse_ratio(study: Study) -> "Figure | None":
    """R per round."""
    figure = _over_rounds(study, {"R": "-"}, "R (natural log)")
    if figure is not None:
        figure.axes[0].axhline(0, **THRESHOLD, zorder=1)
    return figure


@styled
def measurements(study: Study) -> "Figure | None":
    """The study's own measurements over rounds; a panel each, that of the server's model and of local ones in one."""
    shown = panels(study.measurements)
    if not shown:
        return None
    columns = min(2, len(shown))
    figure = new_figure(0.5 + 2.6 * -(-len(shown) // columns), width=8.4)
    grid = figure.subplots(-(-len(shown) // columns), columns, squeeze=False)
    lines = {}
    for axes, (name, styles) in zip(grid.flat, shown.items(), strict=False):
        lines |= _draw_curves(axes, study, styles)
        axes.set_title(label(name.removeprefix(MEASURED), 50), loc="left")
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    is_of_both = any(len(styles) > 1 for styles in shown.values())
    return _with_legend(figure, {arm: lines[arm] for arm in study.arms if arm in lines}, local=is_of_both)


@styled
def client_loss(study: Study) -> "Figure | None":
    """Training loss of every client in every round: one panel per arm, its first seed."""
    from matplotlib.colors import LogNorm, Normalize

    runs = {arm: run for arm in study.arms for run in study.of_arm(arm)[:1] if np.isfinite(_losses(run)).any()}
    if not runs:
        return None
    values = np.concatenate([_losses(run).ravel() for run in runs.values()])
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    logarithmic = high > 0 and low < high / 20
    low = max(low, high / 1e4) if logarithmic else low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high)
    columns = 1 if len(runs) <= 3 else 2
    lines = -(-len(runs) // columns)
    figure = new_figure(0.6 + 1.7 * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (arm, run) in zip(grid.flat, runs.items(), strict=False):
        losses = np.clip(_losses(run), low, None).T
        image = drawing.heat_map(axes, run.clients["round"], np.arange(len(losses)), losses, norm=norm, cmap="viridis")
        axes.set_title(label(arm, 40 if columns == 1 else 20), loc="left", color=arm_colour(study.arms, arm))
        whole_numbers(axes.xaxis)
        whole_numbers(axes.yaxis, 5)
    panels = list(grid.flat[: len(runs)])
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    for axes in grid.flat[len(runs) :]:
        axes.remove()
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("client", fontsize=10)
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
    left, speeds = np.zeros(len(arms)), [_samples_per_second(study, arm) for arm in arms]
    bars = []
    for phase, colour in PHASES.items():
        width = np.array([_mean_seconds(study, arm, phase) for arm in arms])
        bars.append(seconds_axes.barh(range(len(arms)), width, 0.6, left, color=colour))
        left = left + width
    speed_axes.barh(range(len(arms)), speeds, 0.6, color=[arm_colour(study.arms, arm) for arm in arms])
    for row, (total, speed) in enumerate(zip(left, speeds, strict=True)):
        seconds_axes.annotate(
            f"{total:,.1f}", (total, row), (3, 0), textcoords="offset points", va="center", fontsize=9
        )
        speed_axes.annotate(f"{speed:,.0f}", (speed, row), (3, 0), textcoords="offset points", va="center", fontsize=9)
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
    lines = _draw_curves(right, study, {"effective_rank": "-", "local_effective_rank": "--"}) or lines
    right.set_ylabel("effective rank (dimensions)")
    return _with_legend(figure, lines, local=True, threshold=True)


def _over_rounds(study: Study, styles: dict[str, str], heading: str, factor: float = 1) -> "Figure | None":
    """One panel of curves over rounds; ``styles`` maps metrics to line styles."""
    figure = new_figure(3.7)
    axes = figure.subplots()
    lines = _draw_curves(axes, study, styles, factor)
    axes.set_ylabel(heading)
    return _with_legend(figure, lines, local=len(styles) > 1)


def _draw_curves(
    axes: "Axes", study: Study, styles: dict[str, str], factor: float = 1, arms: Sequence[str] = ()
) -> dict[str, Any]:
    """Draws the metrics of every arm with bands where there are several seeds; returns one line per arm.

    ``arms``: all that have colours, where the study has not all of them.
    """
    lines = {}
    for arm in study.arms:
        for metric, style in styles.items():
            curve = study.curve(arm, metric)
            if not len(curve.rounds):
                continue
            look = arm_line(arms or study.arms, arm, len(curve.rounds)) | (
                {} if style == "-" else {"markerfacecolor": "white"}
            )
            line = axes.plot(curve.rounds, factor * curve.mean, style, **look)[0]
            lines.setdefault(arm, line)
            low, high = factor * (curve.mean - curve.std), factor * (curve.mean + curve.std)
            axes.fill_between(
                curve.rounds, low, high, color=look["color"], alpha=0.18 if style == "-" else 0.08, linewidth=0
            )
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
            look = arm_line(study.arms, arm, len(values)) | ({} if style == "-" else {"markerfacecolor": "white"})
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
        handles += [Line2D([], [], color="#555555"), Line2D([], [], color="#555555", linestyle="--")]
        labels += ["server model", "local model"]
    if threshold:
        handles.append(Line2D([], [], **THRESHOLD))
        labels.append(f"threshold {SIGNIFICANT:.0f}")
    drawing.legend(figure, handles, labels)
    return figure


def _losses(run: Run) -> np.ndarray:
    """Training cross-entropy [rounds, clients]; empty if not recorded."""
    return np.asarray(run.clients.get("task_loss", np.empty((0, 0))), float)


def _mean_seconds(study: Study, arm: str, phase: str) -> float:
    """Seconds of a run in a phase, mean over the arm's runs; null counts as none."""
    runs = [run for run in study.of_arm(arm) if run.timing]
    return float(np.mean([np.nansum([number(row.get(phase)) for row in run.timing]) for run in runs]))


def _share(study: Study, arm: str) -> str:
    """Which part of its program's time a run of the arm is given, if it was trained together with others."""
    counts = [number(row.get("shared_by")) for run in study.of_arm(arm) for row in run.timing]
    most = max((count for count in counts if count > 1), default=1)
    return f"\n1/{most:.0f} of shared time" if most > 1 else ""


def _samples_per_second(study: Study, arm: str) -> float:
    """All true samples of an arm by all its training seconds; 0 if not recorded."""
    rows = [row for run in study.of_arm(arm) for row in run.timing]
    samples, seconds = (np.nansum([number(row.get(key)) for row in rows]) for key in ("samples", "train"))
    return float(samples / seconds) if seconds > 0 else 0.0
