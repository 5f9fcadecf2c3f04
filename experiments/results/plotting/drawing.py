"""The style of figures, on a page and on paper: one colour and marker per arm, one size, and figures as SVG text."""

import contextlib
import contextvars
import functools
import html
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.results.selection import Selection
from fedjax_collapse.core import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ("svg", "pdf", "png")
_DATE = {".svg": "Date", ".pdf": "CreationDate", ".png": "Software"}  # metadata that differs between machines
WIDTH = 5.6  # inches of a figure in the report: two fit side by side in a wide window
COLUMN = 3.3  # inches of the same figure as a file: a column of a paper
# Okabe and Ito (2008): distinguishable with any common colour blindness. Yellow is left out: too pale for a line. The
# last five were chosen as far as possible from the others, in L*a*b*, for protan, deutan, tritan and full sight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
           "#9040F0", "#A0C070", "#805030", "#E00040", "#9080F0")  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
BAR = "#737373"  # greys: colours are for arms
# A page has a light and a dark theme, which replace these colours (page.css).
PAPER, GRID, ABSENT, MUTE, LIGHT, INK = "#fefefe", "#e6e6e6", "#dddddd", "#555555", "#d9d9d9", "#000000"
_VARIABLES = {PAPER: "paper", GRID: "grid", ABSENT: "absent", MUTE: "mute", LIGHT: "light", INK: "ink"}
_SEPARATE = 40  # the largest number of bars with gaps between them
THRESHOLD = {"color": MUTE, "linewidth": 1.2, "linestyle": ":"}
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so it is everywhere the same
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedjax_collapse",
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}
_IN_A_COLUMN = {
    "font.size": 7,
    "axes.titlesize": 7,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    **{f"{axis}tick.major.{what}": size for axis in "xy" for what, size in (("width", 0.6), ("size", 2.5))},
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
_is_for_column = contextvars.ContextVar("is_for_column", default=False)


@contextlib.contextmanager
def for_column() -> Iterator[None]:
    """Makes figures that are drawn in its body as wide as a column of a paper, with legible text."""
    token = _is_for_column.set(True)
    try:
        yield
    finally:
        _is_for_column.reset(token)


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that draws, to use the style of the report."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        import matplotlib

        with matplotlib.rc_context(STYLE | _IN_A_COLUMN if _is_for_column.get() else STYLE):
            return draw(*args, **kwargs)

    return wrapped


def draws(select: Callable[[Any], Selection]) -> Callable[..., Any]:
    """Decorates a function that draws a selection of a study's results, made by ``select``, which is also its CSV file.

    The decorated function takes a study and, optionally, the selection. It returns None if nothing is selected or the
    function returns None. ``select`` is an attribute of it.
    """

    def decorate(draw):
        @styled
        @functools.wraps(draw)
        def figure(study, selection=None):
            selection = select(study) if selection is None else selection
            return draw(study, selection) if selection.rows else None

        figure.select = select
        return figure

    return decorate


def new_figure(height: float, width: float = WIDTH) -> "Figure":
    """Returns an empty figure (sizes in inches of the report) that is not registered with pyplot."""
    from matplotlib.figure import Figure

    scale = COLUMN / WIDTH if _is_for_column.get() else 1
    return Figure(figsize=(scale * width, scale * height), layout="constrained")


def grid_of(figure: "Figure", panels: int, columns: int, heading: str = "", **options: Any) -> "list[Axes]":
    """Returns a grid of ``panels`` axes in ``columns`` columns; the leftmost have the heading.

    ``options`` are arguments of ``Figure.subplots``.
    """
    grid = figure.subplots(-(-panels // columns), columns, squeeze=False, **options)
    for axes in grid.flat[panels:]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(heading)
    return list(grid.flat[:panels])


def panels_of(arms: Collection[str], across: str, up: str) -> "tuple[Figure, list[Axes]]":
    """Returns a figure of whole numbers ``across``, and its panels: one for each arm, up to three beside each other."""
    figure = new_figure(0.6 + 2.3 * -(-len(arms) // 3), width=8.4)
    panels = grid_of(figure, len(arms), min(3, len(arms)), up, sharey=True)
    for axes, arm in zip(panels, arms, strict=True):
        axes.set_title(label(arm, 32), loc="left")
        axes.set_xlabel(across)
        whole_numbers(axes.xaxis)
    return figure, panels


def arm_colour(arms: Sequence[str], arm: str) -> str:
    """Returns the arm's categorical colour."""
    return COLOURS[arms.index(arm) % len(COLOURS)]


def arm_line(colours: Mapping[str, str], arm: str, points: int) -> dict[str, Any]:
    """Returns colour and marker of an arm's line, with about eight markers at places that differ between arms.

    ``colours`` are those of all arms.
    """
    index = list(colours).index(arm)
    lap = index // len(COLOURS)
    every = max(1, points // 8)
    return {
        "color": colours[arm],
        "marker": MARKERS[(index + lap) % len(MARKERS)],
        "markevery": (min(index * every // max(1, len(colours)), points - 1), every),
    }


def label(text: str, length: int = 36) -> str:
    """Returns the text for a figure: literal (no mathematics), and truncated if too long."""
    text = "".join(c if c.isprintable() else " " for c in text)
    text = text if len(text) <= length else text[: length - 1] + "…"
    return text.replace("$", r"\$")


def legend(figure: "Figure", handles: Sequence[Any], labels: Sequence[str], above: bool = True) -> None:
    """Adds the legend above or below the axes, in as many columns as fit; the figure grows with its rows."""
    import matplotlib

    size = matplotlib.rcParams["font.size"]
    width = 120 / size * figure.get_figwidth()  # characters that fit, roughly
    columns = min(len(labels), max(1, int(width // (max(map(len, labels)) + 7))))
    rows = -(-len(labels) // columns)
    columns = -(-len(labels) // rows)  # as many rows, but filled evenly
    figure.set_figheight(figure.get_figheight() + 0.02 * size * (rows - 1))
    place = f"outside {'upper' if above else 'lower'} center"
    figure.legend(handles, labels, loc=place, ncols=columns, columnspacing=1.4, handlelength=2.2)


def whole_numbers(axis: Any, most: int = 8) -> None:
    """Makes the ticks of an axis integers, at most ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))


def cell_edges(centres: np.ndarray) -> np.ndarray:
    """Returns the boundaries of cells around ascending centres; half a unit beyond a single centre."""
    centres = np.asarray(centres, float)
    between = (centres[1:] + centres[:-1]) / 2
    first = 2 * centres[0] - between[0] if len(between) else centres[0] - 0.5
    last = 2 * centres[-1] - between[-1] if len(between) else centres[0] + 0.5
    return np.concatenate([[first], between, [last]])


def heat_map(axes: "Axes", columns: np.ndarray, rows: np.ndarray, values: np.ndarray, **style: Any) -> Any:
    """Draws ``values[row, column]`` with row 0 on top and undefined cells in grey; returns what a colour bar needs."""
    axes.grid(False)
    axes.set_facecolor(ABSENT)
    masked = np.ma.masked_invalid(values)
    edges = cell_edges(rows)
    mesh = axes.pcolormesh(cell_edges(columns), edges, masked, rasterized=True, **style)
    axes.set_ylim(edges[-1], edges[0])
    axes.spines[:].set_visible(False)
    return mesh


def bars(axes: "Axes", values: np.ndarray, written: str | None = None, most: float | None = None) -> None:
    """Draws a horizontal bar per row, row 0 as in a heat map, all as one path so that there may be thousands.

    Args:
        axes: where to draw.
        values: [rows] the lengths.
        written: the format of a number on each bar; None for no numbers.
        most: the largest possible value, marked by a dotted line.
    """
    limit = float(most or max(values) or 1)
    rows = np.arange(len(values))
    lengths, edges = values, np.arange(len(values) + 1) - 0.5
    if len(values) <= _SEPARATE:
        edges = (rows[:, None] + [-0.4, 0.4]).ravel()
        lengths = np.stack([values, np.zeros(len(values))], axis=1).ravel()[:-1]
    axes.stairs(lengths, edges, orientation="horizontal", fill=True, color=BAR, rasterized=len(values) > 500)
    for row, value in enumerate(values) if written else ():
        inside = value > limit / 2
        look = {"ha": "right", "color": "white"} if inside else {"ha": "left"}
        place = {"xytext": (-3 if inside else 3, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
        axes.annotate(written.format(value), (value, row), **place, **look)
    if most is not None:
        axes.axvline(most, **THRESHOLD)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, limit * 1.04)
    axes.locator_params(axis="x", nbins=3, integer=np.issubdtype(values.dtype, np.integer))


def themed(text: str) -> str:
    """Replaces the colours that a page's themes define by the page's variables."""
    return re.sub("|".join(_VARIABLES), lambda found: f"var(--{_VARIABLES[found[0]]})", text)


@styled
def save_figure(figure: "Figure", path: Path, dpi: int = 200) -> Path:
    """Saves the figure, without a date, in the format given by the path's suffix; returns the path."""
    with files.shared(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata={_DATE[path.suffix]: None})
    return path


@styled
def svg(figure: "Figure", description: str) -> str:
    """Returns the figure as an ``<svg>`` element of a page, without the ids by which nothing refers to its parts."""
    out = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", dpi=200, metadata=nothing)
    size, drawing = re.search(r'<svg [^>]*(viewBox="[^"]*")[^>]*>(.*)', out.getvalue(), re.DOTALL).groups()
    drawing = re.sub(r' id="(image\w+|[a-zA-Z.0-9]+_\d+)"', "", drawing)
    return themed(f'<svg role="img" aria-label="{html.escape(description)}" {size}>{drawing}')


def defined_once(page: str) -> str:
    """Returns a page in which letters, markers and clipped areas, whose ids follow from their content, stand once."""
    ids = set()

    def first(found):
        is_new = (id := found[1] or found[2]) not in ids
        ids.add(id)
        return found[0] if is_new else ""

    return re.sub(r'<path id="([^"]+)"[^>]*/>|<clipPath id="([^"]+)">.*?</clipPath>', first, page, flags=re.DOTALL)
