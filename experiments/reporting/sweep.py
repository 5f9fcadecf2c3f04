"""The figure of a sweep: metrics after the last round against the value that is swept."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.cells import Arm, arms_of
from experiments.reporting.drawing import COLOURS, MARKERS, MUTE, label, legend, new_figure, styled
from experiments.reporting.study import Study, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METRICS = (("accuracy", "accuracy (%)", 100), ("effective_rank", "effective rank", 1), ("R", "R (natural log)", 1))
_STYLES = (":", "--", "-.")
_MARGIN = 0.05  # of what the values span
_SMALLEST, _LARGEST = 1e-30, 1e30  # of numbers on an axis
_WIDE = 10  # times the smallest value: from there on values are on a logarithmic axis


class Line(NamedTuple):
    """Arms that differ in the value of one axis."""

    name: str
    values: tuple[Any, ...]
    arms: tuple[str, ...]


@styled
def sweep(study: Study) -> "Figure | None":
    """A panel for each metric against the first axis of the sweep; a line for each arm and values of other axes."""
    swept = {name: arm for name, arm in arms_of(study.config).items() if name in study.summary}
    axis = next((axis for arm in swept.values() for axis in arm.values), None)
    if axis is None:
        return None
    lines, others = lines_of(swept, axis), [name for name, arm in swept.items() if axis not in arm.values]
    figure = new_figure(3.4, width=11)
    ticks = list(dict.fromkeys(value for line in lines for value in line.values))
    for axes, (metric, heading, factor) in zip(figure.subplots(1, len(_METRICS)), _METRICS, strict=True):
        place = _places(axes, ticks)
        for i, line in enumerate(lines):
            _draw_line(axes, study, line, (metric, factor), [place[value] for value in line.values], i)
        for i, arm in enumerate(others):
            mean = factor * number((study.summary[arm].get(study.of_local(metric)) or {}).get("mean"))
            axes.axhline(mean, **_beside(i))
        axes.set(xlabel=label(axis), ylabel=heading)
    handles = _handles(len(lines), len(others))
    legend(figure, handles, [label(name) for name in [*(line.name for line in lines), *others]])
    return figure


def lines_of(swept: dict[str, Arm], axis: str) -> list[Line]:
    """The arms that have the axis, by what else they are: the arm of the config, and the values of other axes."""
    found: dict[tuple, list[tuple[Any, str]]] = {}
    for name, arm in swept.items():
        if axis in arm.values:
            rest = tuple(f"{other}={value}" for other, value in arm.values.items() if other != axis)
            found.setdefault((arm.declared, *rest), []).append((_hashable(arm.values[axis]), name))
    return [Line(" ".join(key), *map(tuple, zip(*points, strict=True))) for key, points in found.items()]


def _draw_line(axes: "Axes", study: Study, line: Line, metric: tuple[str, float], places: list[float], i: int) -> None:
    name, factor = metric
    entries = [study.summary[arm].get(study.of_local(name)) or {} for arm in line.arms]
    mean, std = (factor * np.array([number(entry.get(part)) for entry in entries]) for part in ("mean", "std"))
    order = np.argsort(places)
    x, y, error = np.array(places)[order], mean[order], np.nan_to_num(std)[order]
    axes.errorbar(x, y, yerr=error, capsize=3, **_look(i))


def _places(axes: "Axes", values: list[Any]) -> dict[Any, float]:
    """Where on the axis each value is: numbers where they are, anything else side by side.

    The axis is as wide as all of them need, whichever are measured.
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
    """Whether it is a number that an axis can have."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (value == 0 or _SMALLEST <= abs(value) <= _LARGEST)


def _handles(num_lines: int, num_others: int) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **look) for look in [*map(_look, range(num_lines)), *map(_beside, range(num_others))]]


def _look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _beside(i: int) -> dict[str, Any]:
    """Of an arm that is not swept; grey, as colours are for those that are."""
    return {"color": MUTE, "linestyle": _STYLES[i % len(_STYLES)], "linewidth": 1.2}


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value
