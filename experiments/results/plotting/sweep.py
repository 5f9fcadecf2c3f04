"""The figure of a sweep: metrics after the last round against the swept value."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.results.metrics import EFFECTIVE_RANK, Metric, R, number
from experiments.results.plotting.drawing import COLOURS, MARKERS, MUTE, draws, label, legend, new_figure
from experiments.results.selection import Selection
from experiments.results.study_results import Study
from fedjax_collapse.config.cells import Arm, arms_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = (":", "--", "-.")
_MARGIN = 0.05  # of the range of the values
_SMALLEST, _LARGEST = 1e-30, 1e30  # numbers on an axis
_WIDE = 10  # the least ratio of largest to smallest value for a logarithmic axis


class Line(NamedTuple):
    """Arms that differ in the value of one axis."""

    name: str
    values: tuple[Any, ...]
    arms: tuple[str, ...]


def _swept(study: Study) -> dict[str, Arm]:
    """Returns the arms of the config that have results; none if none of them belongs to a sweep."""
    shown = {cell.arm for cell in study.summary}
    arms = {name: arm for name, arm in arms_of(study.config).items() if name in shown}
    return arms if any(arm.values for arm in arms.values()) else {}


def _metrics_of(study: Study) -> tuple[Metric, ...]:
    return study.score, EFFECTIVE_RANK, R


def _after_the_last_round(study: Study) -> Selection:
    """Metrics after the last round, with the swept values."""
    swept, summary = _swept(study), {cell.arm: metrics for cell, metrics in study.summary.items()}
    names = list(map(study.of_local, (metric.name for metric in _metrics_of(study))))
    axes = list(dict.fromkeys(axis for arm in swept.values() for axis in arm.values))
    heading = ("arm", *axes, *(f"{name}: {part}" for name in names for part in ("mean", "std")))
    entries = {arm: [summary[arm].get(name) or {} for name in names] for arm in swept}
    numbers = {arm: [number(of.get(part)) for of in own for part in ("mean", "std")] for arm, own in entries.items()}
    return Selection(
        heading, [(name, *(arm.values.get(axis, "") for axis in axes), *numbers[name]) for name, arm in swept.items()]
    )


@draws(_after_the_last_round)
def sweep(study: Study, selection: Selection) -> "Figure":
    """A panel for each metric against the first axis of the sweep; a line for each arm and values of other axes."""
    from matplotlib.lines import Line2D

    swept, axis, metrics = _swept(study), selection.heading[1], _metrics_of(study)
    lines, others = lines_of(swept, axis), [name for name, arm in swept.items() if axis not in arm.values]
    moments = {arm: np.reshape(row[-2 * len(metrics) :], (len(metrics), 2)) for arm, *row in selection.rows}
    figure = new_figure(3.4, width=11)
    ticks = list(dict.fromkeys(value for line in lines for value in line.values))
    for place, (axes, metric) in enumerate(zip(figure.subplots(1, len(metrics)), metrics, strict=True)):
        shown = {arm: metric.factor * of_arm[place] for arm, of_arm in moments.items()}
        x = _places(axes, ticks)
        for i, line in enumerate(lines):
            points = sorted((x[value], *shown[arm]) for value, arm in zip(line.values, line.arms, strict=True))
            where, mean, std = np.array(points).T
            axes.errorbar(where, mean, yerr=np.nan_to_num(std), capsize=3, **_look(i))
        for i, arm in enumerate(others):
            axes.axhline(shown[arm][0], **_unswept_look(i))
        axes.set(xlabel=label(axis), ylabel=metric.axis)
    looks = [*map(_look, range(len(lines))), *map(_unswept_look, range(len(others)))]
    legend(
        figure,
        [Line2D([], [], **look) for look in looks],
        [label(name) for name in [*(line.name for line in lines), *others]],
    )
    return figure


def lines_of(swept: dict[str, Arm], axis: str) -> list[Line]:
    """Returns the arms that have the axis, grouped by the arm of the config and the values of other axes."""
    found: dict[tuple, list[tuple[Any, str]]] = {}
    for name, arm in swept.items():
        if axis in arm.values:
            rest = tuple(f"{other}={value}" for other, value in arm.values.items() if other != axis)
            found.setdefault((arm.declared, *rest), []).append((_hashable(arm.values[axis]), name))
    return [Line(" ".join(key), *map(tuple, zip(*points, strict=True))) for key, points in found.items()]


def _places(axes: "Axes", values: list[Any]) -> dict[Any, float]:
    """Returns the position of each value on the axis: numbers at their value, anything else evenly spaced.

    The axis is wide enough for all of them, measured or not.
    """
    if not all(map(_is_a_place, values)):
        axes.set(xticks=range(len(values)), xticklabels=[label(str(value), 16) for value in values])
        axes.set_xlim(-0.5, len(values) - 0.5)
        return {value: float(i) for i, value in enumerate(values)}
    low, high = min(values), max(values)
    if low > 0 and high >= _WIDE * low:
        beyond = (high / low) ** _MARGIN
        axes.set(xscale="log", xlim=(low / beyond, high * beyond))
    else:
        beyond = _MARGIN * (high - low) or abs(high) or 0.5
        axes.set_xlim(low - beyond, high + beyond)
    return {value: float(value) for value in values}


def _is_a_place(value: Any) -> bool:
    """Returns whether the value is a number that can be shown on an axis."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (value == 0 or _SMALLEST <= abs(value) <= _LARGEST)


def _look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _unswept_look(i: int) -> dict[str, Any]:
    """Returns the style of an arm that is not swept: grey, since colours are for those that are."""
    return {"color": MUTE, "linestyle": _STYLES[i % len(_STYLES)], "linewidth": 1.2}


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value
