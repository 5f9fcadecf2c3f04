"""A figure of samples per second by system, with a panel for each workload."""

from pathlib import Path

from experiments.benchmarks import SYSTEMS, tables
from experiments.benchmarks.tables import Row
from fedjax_collapse.results.plot import drawing

_BAR, _PANEL = 0.3, 0.75  # heights in inches: of a bar, and of a panel without its bars


@drawing.styled
def draw(rows: list[Row], path: Path) -> None:
    """Draws the rows; the suffix of the path is the format of the file."""
    panels = {}
    for row in rows:
        panels.setdefault(f"{tables.title(row)}, {row.timed}", []).append(row)
    heights = [_PANEL + _BAR * len(panel) for panel in panels.values()]
    figure = drawing.new_figure(sum(heights))
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, title, panel)
    axes[-1].set_xlabel("true samples per second")
    figure.savefig(path)


def _draw_panel(axis, title, rows):
    systems = [row.system for row in rows]
    speeds = [row.samples_per_second for row in rows]
    bars = axis.barh(systems, speeds, color=[drawing.arm_colour([*SYSTEMS, *systems], system) for system in systems])
    axis.bar_label(bars, [_speed(row) for row in rows], padding=3)
    axis.set_title(title, loc="left")
    axis.set_xlim(0, 1.6 * max(speeds))
    axis.locator_params(axis="x", nbins=5)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="y", visible=False)
    axis.invert_yaxis()


def _speed(row):
    ratio = " ({median:.2f}x, {min:.2f} to {max:.2f})".format(**row.ratio) if row.ratio else ""
    return f"{row.samples_per_second:,.0f}{ratio}"
