"""The figure of a sweep: metrics after the last round against the swept value."""

from typing import Any

from fedjax_collapse.config.cells import Arm, CellName, settings_of
from fedjax_collapse.results.annotations import Axes, DataFrame, Figure
from fedjax_collapse.results.metrics import EFFECTIVE_RANK, Metric, R
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import Parts, by_arm, draws, label
from fedjax_collapse.results.plot.rounds import local_name
from fedjax_collapse.results.study import Results

_STYLES = (":", "--", "-.")
_MARGIN = 0.05  # of the range of the values
_SMALLEST, _LARGEST = 1e-30, 1e30  # numbers on an axis
_WIDE = 10  # the least ratio of largest to smallest value for a logarithmic axis


def _metrics_of(study: Results) -> dict[str, Metric]:
    return {local_name(study, metric.name): metric for metric in (study.score, EFFECTIVE_RANK, R)}


def _after_the_last_round(study: Results) -> Parts:
    """Yields metrics of finished runs after the last round: a row for each cell, with its swept values.

    Empty for a part of a study whose sweep makes settings, as all settings together show it, and for a study whose
    settings each show it.
    """
    import pandas as pd

    within = study.of_setting(study.settings[0]).config.get("sweep") or {}
    if not study.axes or study.final.empty or study.has_settings != (len(study.axes) > len(within)):
        return
    values = study.final.reindex(columns=[*_metrics_of(study)])
    moments = values.groupby(level=["setting", "arm"], sort=False).agg(["mean", "std"])
    rows = []
    for cell in (CellName(*names) for names in moments.index):
        arm = study.arms_in.get(cell.setting, {}).get(cell.arm) or Arm({}, cell.arm, {})
        values = {axis: arm.values.get(axis) for axis in study.axes}
        swept = {axis: of if isinstance(of, (int, float, str, type(None))) else str(of) for axis, of in values.items()}
        own = [name for name in settings_of(study.config) if study.of_cell(cell)[0].name.startswith(f"{name}/")]
        of_setting = {"setting": cell.setting} if study.has_settings else {}
        rows.append(of_setting | {"arm": cell.arm, "declared": " ".join([*own[:1], arm.declared])} | swept)
    moments.columns = [": ".join(names) for names in moments.columns]
    labels = pd.DataFrame(rows, dtype=object)
    if labels[study.axes[0]].notna().any():  # in an arm that has results
        yield pd.concat([labels, moments.reset_index(drop=True)], axis=1)


@draws(_after_the_last_round, of_settings=True)
def sweep(study: Results, selection: DataFrame) -> Figure:
    """Accuracy (or the task's score), effective rank of the server model and R after the last round.

    Against the values of the first swept key; lines differ in the arm and the values of the others. Mean over seeds,
    with one standard deviation (n - 1) to either side; a grey line is an arm that is not swept over this key.
    """
    axis, *others = study.axes
    values = [{other: row[other] for other in others if row[other] is not None} for row in selection.to_dict("records")]
    lines = [Arm({}, declared, of) for declared, of in zip(selection["declared"], values, strict=True)]
    names = [" ".join([line.declared, *(f"{o}={v}" for o, v in line.values.items())]) for line in lines]
    arms = dict(zip(names, lines, strict=True))
    selection, is_swept = selection.assign(line=names), selection[axis].notna()
    swept, unswept = by_arm(selection[is_swept], "line"), selection[~is_swept]
    colours = drawing.colours_for({name: arms[name] for name in swept})
    looks = {name: drawing.arm_look(colours, name) for name in colours}
    for i, name in enumerate(unswept["line"]):
        looks[name] = {"color": drawing.MUTE, "linestyle": _STYLES[i % len(_STYLES)], "linewidth": 1.2}
    figure, metrics = drawing.new_figure(3.4, drawing.WIDE), _metrics_of(study)
    for axes, (name, metric) in zip(figure.subplots(1, len(metrics)), metrics.items(), strict=True):
        x = _places(axes, list(dict.fromkeys(selection[axis].dropna())))
        mean, std = (metric.factor * selection[f"{name}: {part}"] for part in ("mean", "std"))
        for line, part in swept.items():
            where = part[axis].map(x).sort_values()
            axes.errorbar(where, mean[where.index], yerr=std[where.index].fillna(0), capsize=3, **looks[line])
        for line, of in zip(unswept["line"], mean[unswept.index], strict=True):
            axes.axhline(of, **looks[line])
        axes.set(xlabel=label(axis), ylabel=metric.axis)
    drawing.legend(figure, list(looks.values()), [*map(label, looks)])
    return figure


def _places(axes: Axes, values: list[Any]) -> dict[Any, float]:
    """Returns the position of each value on the axis: numbers at their value, anything else evenly spaced.

    The axis is wide enough for all of them, measured or not.
    """
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not all(value == 0 or _SMALLEST <= abs(value) <= _LARGEST for value in numbers):
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
