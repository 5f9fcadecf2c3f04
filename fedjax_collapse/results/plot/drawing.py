"""The style of figures, on a page and on paper: one look per arm, few sizes, legends, and figures as SVG text."""

import functools
import html
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import StringIO
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedjax_collapse.config.cells import Arm
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.annotations import Axes, DataFrame, Figure
from fedjax_collapse.results.study import Results

FIGURES = ("svg", "pdf", "png")
_DATE = {".svg": "Date", ".pdf": "CreationDate", ".png": "Software"}  # metadata that differs between machines
WIDTH = 5.6  # inches of a figure in the report: two fit side by side in a wide window
WIDE = 8.4  # of one as wide as the page
COLUMN = 3.3  # of a figure of WIDTH as a file: a column of a paper
# Okabe and Ito (2008): distinguishable with any common colour blindness. Yellow is left out: too pale for a line. The
# last five were chosen as far as possible from the others, in L*a*b*, for protan, deutan, tritan and full sight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
           "#9040F0", "#A0C070", "#805030", "#E00040", "#9080F0")  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
BAR = "#737373"  # greys: colours are for arms
_SCALES = ("plasma", "viridis")  # of the first swept arm, of the second and so on
_FROM, _TO = 0.27, 0.78  # the part of a scale that is visible on light and on dark paper
# A page has a light and a dark theme, which replace these colours (page.css).
PAPER, GRID, ABSENT, MUTE, LIGHT, INK = "#fefefe", "#e6e6e6", "#dddddd", "#555555", "#d9d9d9", "#000000"
_VARIABLES = {PAPER: "paper", GRID: "grid", ABSENT: "absent", MUTE: "mute", LIGHT: "light", INK: "ink"}
Parts = Iterable[Mapping[str, Any] | DataFrame]  # of a frame
_LONGEST = 48  # letters of an arm's name in a legend
SERVER_AND_LOCAL = {"server model": dict(color=MUTE, linestyle="-"), "local model": dict(color=MUTE, linestyle="--")}
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
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.columnspacing": 1.4,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedjax_collapse",
    "figure.facecolor": PAPER,
    "figure.figsize": (WIDTH, WIDTH),
    "figure.constrained_layout.use": True,
    "axes.facecolor": PAPER,
}
_IN_A_COLUMN = STYLE | {
    "font.size": 7,
    "axes.titlesize": 7,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    **{f"{axis}tick.major.{what}": size for axis in "xy" for what, size in (("width", 0.6), ("size", 2.5))},
    "figure.facecolor": "white",
    "figure.figsize": (COLUMN, COLUMN),
    "axes.facecolor": "white",
}


def for_column() -> AbstractContextManager[None]:
    """Makes figures that are drawn in its body as wide as a column of a paper, with legible text."""
    import matplotlib

    return matplotlib.rc_context(_IN_A_COLUMN)


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that draws, to use the style of the report, or of a column inside of ``for_column``."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        import matplotlib

        is_styled = matplotlib.rcParams["svg.hashsalt"] == STYLE["svg.hashsalt"]
        with matplotlib.rc_context({} if is_styled else STYLE):
            return draw(*args, **kwargs)

    return wrapped


def draws(
    select: Callable[[Results], Parts], of_settings: bool = False
) -> "Callable[[Callable[..., Figure | None]], Callable[..., Figure | None]]":
    """Decorates a function that draws the frame that ``select`` makes of results, which is also the figure's CSV file.

    The decorated function takes results and, optionally, the frame. It returns None if the frame is empty or the
    function returns None; it raises UserError for several settings unless it shows them, ``of_settings``. ``select`` is
    an attribute of it.
    """

    def decorate(draw):
        @styled
        @functools.wraps(draw)
        def figure(study, selection=None):
            if study.has_settings and not of_settings:
                one = f"study.of_setting({study.settings[0]!r})"
                raise UserError(f"{study.path}: has settings; expected the part for one of them, such as {one}")
            selection = figure.select(study) if selection is None else selection
            return None if selection.empty else draw(study, selection)

        figure.select = lambda study: stacked(select(study))
        return figure

    return decorate


def stacked(parts: Parts) -> DataFrame:
    """Concatenates frames, or mappings of columns by name; empty if there are none."""
    import pandas as pd

    frames = [pd.DataFrame(part) for part in parts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def by_arm(selection: DataFrame, column: str = "arm") -> "dict[Any, DataFrame]":
    """Returns the rows of each arm, or of each value of another column, in their order."""
    return dict(list(selection.groupby(column, sort=False)))


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Returns an empty figure (sizes in inches of the report) that is not registered with pyplot."""
    from matplotlib import figure, rcParams

    scale = rcParams["figure.figsize"][0] / WIDTH
    return figure.Figure(figsize=(scale * width, scale * height))


def grid_of(figure: Figure, panels: int, columns: int, heading: str = "", **options: Any) -> "list[Axes]":
    """Returns a grid of ``panels`` axes in ``columns`` columns; the leftmost have the heading.

    ``options`` are arguments of ``Figure.subplots``.
    """
    grid = figure.subplots(-(-panels // columns), columns, squeeze=False, **options)
    for axes in grid.flat[panels:]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(heading)
    return list(grid.flat[:panels])


def panels_of(
    titles: Sequence[str], across: str = "", up: str = "", columns: int = 0, height: float = 2.3, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """Returns a figure as wide as the page, and its panels with whole numbers across: one for each title.

    Args:
        titles: the titles of the panels.
        across: the label of the horizontal axes.
        up: the label of the vertical ones.
        columns: panels in a row; by default up to three, in evenly filled rows.
        height: of a line, in inches.
        options: arguments of ``Figure.subplots``.
    """
    columns = columns or -(-len(titles) // -(-len(titles) // 3))
    figure = new_figure(0.6 + height * -(-len(titles) // columns), WIDE)
    panels = grid_of(figure, len(titles), columns, up, **options)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(label(title, 72 // columns))
        whole_numbers(axes.xaxis, 18 // columns)
    for axes in panels[-columns:]:
        axes.set_xlabel(across)
    return figure, panels


def colours_of(study: Results) -> dict[str, str]:
    """Returns the colour of each arm that has results, the same in every figure and table, in the order of legends.

    Arms that a sweep has made of one arm follow each other; see ``colours_for``.
    """
    shown, declared = study.arms, {name: arm for of in study.arms_in.values() for name, arm in of.items()}
    colours = colours_for(declared | {name: declared.get(name, Arm({}, name, {})) for name in shown})
    return {arm: colour for arm, colour in colours.items() if arm in shown}


def colours_for(arms: Mapping[str, Arm]) -> dict[str, str]:
    """Returns a colour for each arm.

    Arms of one declared arm that differ in one number follow each other by ascending value; their colours are evenly
    spaced on a scale, from its dark end. All other arms have categorical colours.
    """
    from matplotlib import colormaps, colors

    declared: dict[str, dict[str, Arm]] = {}
    for name, arm in arms.items():
        declared.setdefault(arm.declared, {})[name] = arm
    group_of, colours = {}, {}
    for i, group in enumerate(filter(None, map(_by_number, declared.values()))):
        scale = colormaps[_SCALES[i % len(_SCALES)]]
        colours |= zip(group, map(colors.to_hex, scale(np.linspace(_FROM, _TO, len(group)))), strict=True)
        group_of |= dict.fromkeys(group, group)
    others = [name for name in arms if name not in colours]
    colours |= {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
    return {name: colours[name] for arm in arms for name in group_of.get(arm, [arm])}


def _by_number(arms: Mapping[str, Arm]) -> list[str]:
    """Returns the arms by the value in which they differ; none unless that is one number."""
    axes = dict.fromkeys(axis for arm in arms.values() for axis in arm.values)
    differ = [axis for axis in axes if len({repr(arm.values.get(axis)) for arm in arms.values()}) > 1]
    values = {name: arm.values.get(differ[0]) for name, arm in arms.items()} if len(differ) == 1 else {"": None}
    is_swept = all(isinstance(value, Real) and not isinstance(value, bool) for value in values.values())
    return sorted(values, key=values.get) if is_swept else []


def arm_look(colours: Mapping[str, str], arm: str) -> dict[str, Any]:
    """Returns colour and marker of an arm; ``colours`` are those of all arms."""
    index = list(colours).index(arm)
    return {"color": colours[arm], "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]}


def arm_line(colours: Mapping[str, str], arm: str, points: int) -> dict[str, Any]:
    """Returns the same for a line of many points: about eight markers, at places that differ between arms."""
    every, index = max(1, points // 8), list(colours).index(arm)
    start = min(index * every // max(1, len(colours)), points - 1)
    return arm_look(colours, arm) | {"markevery": (start, every)}


def label(text: str, length: int = 36) -> str:
    """Returns the text for a figure: literal (no mathematics), and without its middle if too long."""
    text = "".join(c if c.isprintable() else " " for c in text)
    text = text if len(text) <= length else f"{text[: (length - 1) // 2]}…{text[-(length // 2) :]}"
    return text.replace("$", r"\$")


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], above: bool = True) -> None:
    """Adds the legend above or below the axes, in as many columns as fit; the figure grows with its rows.

    A handle is an artist of matplotlib, or the style of a line.
    """
    from matplotlib import lines, rcParams

    handles = [lines.Line2D([], [], **handle) if isinstance(handle, dict) else handle for handle in handles]
    size = rcParams["font.size"]
    width = 125 / size * figure.get_figwidth()  # characters that fit, roughly
    lengths = [len(text) + 7 for text in labels]
    parts = {n: np.array_split(lengths, n) for n in range(len(labels), 0, -1)}  # as matplotlib divides the entries
    columns = next(n for n, of in parts.items() if n == 1 or sum(map(max, of)) <= width)
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.02 * size * (rows - 1))
    place = f"outside {'upper' if above else 'lower'} center"
    figure.legend(handles, labels, loc=place, ncols=columns)


def arm_legend(
    figure: Figure,
    colours: Mapping[str, str],
    arms: Collection[str],
    others: Mapping[str, Any] = MappingProxyType({}),
    above: bool = True,
) -> None:
    """Adds a legend of these arms, in the order of ``colours``, and of ``others``, styles of lines by label."""
    shown = [arm for arm in colours if arm in arms]
    looks = [*(arm_look(colours, arm) for arm in shown), *others.values()]
    if looks:
        legend(figure, looks, [*(label(arm, _LONGEST) for arm in shown), *others], above)


def whole_numbers(axis: Any, most: int = 8) -> None:
    """Makes the ticks of an axis integers, at most ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))


def cell_edges(centres: np.ndarray) -> np.ndarray:
    """Returns the boundaries of cells around ascending centres; half a unit beyond a single centre."""
    centres = np.asarray(centres, float)
    if len(centres) == 1:
        return centres[0] + np.array([-0.5, 0.5])
    between = (centres[1:] + centres[:-1]) / 2
    return np.r_[2 * centres[0] - between[0], between, 2 * centres[-1] - between[-1]]


def heat_map(axes: Axes, columns: np.ndarray, rows: np.ndarray, values: np.ndarray, **style: Any) -> Any:
    """Draws ``values[row, column]`` with row 0 on top and undefined cells in grey; returns the mesh."""
    axes.grid(False)
    axes.set_facecolor(ABSENT)
    axes.spines[:].set_visible(False)
    edges, masked = cell_edges(rows), np.ma.masked_invalid(values)
    axes.set_ylim(edges[-1], edges[0])
    return axes.pcolormesh(cell_edges(columns), edges, masked, rasterized=True, **style)


def heat_maps(
    parts: "Sequence[tuple[str, DataFrame]]", up: str, values: str, logarithmic: bool, columns: int = 0
) -> "Figure | None":
    """Returns a heat map [rows, rounds] below each title, with one colour scale; None without values.

    Args:
        parts: titles with frames whose columns are rounds.
        up: the label of the rows.
        values: the label of the colour bar.
        logarithmic: whether the colour scale is, on which only positive values are defined.
        columns: as for ``panels_of``.
    """
    titles, parts = zip(*parts, strict=True)
    cells = np.concatenate([part.to_numpy(float).ravel() for part in parts])
    cells = cells[np.isfinite(cells) & ((cells > 0) | (not logarithmic))]
    if not len(cells):
        return None
    scale = {"norm": "log" if logarithmic else "linear", "vmin": cells.min(), "vmax": cells.max()}
    figure, panels = panels_of(titles, "round", up, columns, sharey=len({*map(len, parts)}) == 1)
    for axes, part in zip(panels, parts, strict=True):
        image = heat_map(axes, part.columns, part.index, part, cmap="viridis", **scale)
        whole_numbers(axes.yaxis, 6)
    figure.colorbar(image, ax=panels, label=values + ", log scale" * logarithmic)
    return figure


def themed(text: str) -> str:
    """Replaces the colours that a page's themes define by the page's variables."""
    return re.sub("|".join(_VARIABLES), lambda found: f"var(--{_VARIABLES[found[0]]})", text)


@styled
def save_figure(figure: Figure, path: Path, dpi: int = 200) -> Path:
    """Saves the figure, without a date, in the format given by the path's suffix; returns the path."""
    with files.shared(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata={_DATE[path.suffix]: None})
    return path


@styled
def svg(figure: Figure, description: str) -> str:
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
