"""The figures of ``theory.py``: functions from its columns to matplotlib figures, in the style of the reports."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.research.theory_records import Columns
from fedjax_collapse.results.plot import drawing, features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 8.4
_FORMULAS = {
    "exact": dict(linestyle="-"),
    "balanced": dict(linestyle="none", marker="o", markerfacecolor="none", markevery=5),
    "theorem": dict(linestyle="--"),
    "theorem_of_class_means": dict(linestyle=":"),
}
_ALIGNMENT = r"alignment $|\langle u_k, v_{L+1,k} \rangle|$"
_NAMES = ("exact", "balanced form", "theorem 1", "with class means")


@drawing.styled
def rates(columns: Columns) -> "Figure":
    """Rates of the singular values, exact and by the formulas, and the loss of alignment over time."""
    from matplotlib.lines import Line2D

    figure = drawing.new_figure(3.6, _WIDTH)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for k in np.unique(columns["k"]).astype(int):
        of_k = {name: column[columns["k"] == k] for name, column in columns.items()}
        for name, look in _FORMULAS.items():
            left.plot(of_k["time"], of_k[name], color=drawing.COLOURS[k - 1], **look)
        right.plot(of_k["time"], of_k["alignment"], color=drawing.COLOURS[k - 1])
    left.axhline(0, **drawing.THRESHOLD, zorder=1)
    left.set(xlabel="time", ylabel=r"$d\sigma_k / dt$")
    right.set(xlabel="time", ylabel=_ALIGNMENT)
    handles = [Line2D([], [], color="#555555", **{**look, "markevery": None}) for look in _FORMULAS.values()]
    handles += [Line2D([], [], color=drawing.COLOURS[k]) for k in range(3)]
    drawing.legend(figure, handles, [*_NAMES, *(f"k = {k + 1}" for k in range(3))])
    return figure


@drawing.styled
def classes(columns: Columns) -> "Figure":
    """Singular values over time of the clients with fewest and most classes; the effective rank of every client."""
    from matplotlib.lines import Line2D

    numbers = np.unique(columns["classes"])
    figure = drawing.new_figure(3.4, _WIDTH)
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    panels[1].sharey(panels[0])
    for axes, number in zip(panels, (numbers[1], numbers[-1]), strict=False):
        colour = drawing.COLOURS[np.flatnonzero(numbers == number)[0]]
        for k in np.unique(columns["k"]):
            chosen = (columns["classes"] == number) & (columns["k"] == k)
            axes.plot(columns["time"][chosen], columns["sigma"][chosen], color=colour, linewidth=1.0)
        axes.set(xlabel="time", title=f"{number} classes")
        axes.locator_params(axis="x", nbins=4)
    panels[0].set_ylabel(r"singular values $\sigma_k$")
    for index, number in enumerate(numbers):
        chosen = (columns["classes"] == number) & (columns["k"] == 1)
        panels[2].plot(columns["time"][chosen], columns["effective_rank"][chosen], color=drawing.COLOURS[index])
    panels[2].set(xlabel="time", ylabel="effective rank of the features", ylim=(0, None))
    handles = [Line2D([], [], color=c) for c in drawing.COLOURS[: len(numbers)]]
    drawing.legend(figure, handles, [of_classes(n) for n in numbers])
    return figure


@drawing.styled
def alignment(columns: Columns) -> "Figure":
    """Alignment over steps, a panel for each initial scale: means over initial networks, and what chance gives."""
    import matplotlib
    from matplotlib.lines import Line2D

    scales, ks = np.unique(columns["scale"]), np.unique(columns["k"]).astype(int)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(ks)))
    figure = drawing.new_figure(3.4, _WIDTH)
    for axes, scale in zip(figure.subplots(1, len(scales), sharey=True), scales, strict=True):
        for k, colour in zip(ks, colours, strict=True):
            of = {name: c[(columns["scale"] == scale) & (columns["k"] == k)] for name, c in columns.items()}
            steps = np.unique(of["step"])
            axes.plot(steps, [of["alignment"][of["step"] == step].mean() for step in steps], color=colour)
        start = columns["alignment"][columns["step"] == 0].mean()
        axes.axhline(start, **drawing.THRESHOLD)
        axes.set(xlabel="step of gradient descent", title=f"initial scale {scale:g}", ylim=(0, 1.03))
        axes.locator_params(axis="x", nbins=4)
    figure.axes[0].set_ylabel(_ALIGNMENT)
    handles = [*(Line2D([], [], color=colour) for colour in colours), Line2D([], [], **drawing.THRESHOLD)]
    drawing.legend(figure, handles, [*(f"k = {k}" for k in ks), "mean at the start"])
    return figure


@drawing.styled
def dirichlet(columns: Columns) -> "Figure":
    """Effective ranks against alpha: mean over clients, and a band of one standard deviation."""
    alphas = np.unique(columns["alpha"])
    figure = drawing.new_figure(3.4, _WIDTH)
    titles = {"rank_of_G": "effective rank of G at the start", "rank": "effective rank of the trained features"}
    for index, (axes, (name, title)) in enumerate(zip(figure.subplots(1, 2), titles.items(), strict=True)):
        values = [columns[name][columns["alpha"] == alpha] for alpha in alphas]
        mean, std = (np.array([of(v) for v in values]) for of in (np.mean, np.std))
        axes.plot(alphas, mean, color=drawing.COLOURS[index], marker=drawing.MARKERS[index])
        axes.fill_between(alphas, mean - std, mean + std, color=drawing.COLOURS[index], alpha=0.18, linewidth=0)
        axes.set(xscale="log", xlabel=r"Dirichlet $\alpha$", ylabel=title, ylim=(0, None))
    return figure


@drawing.styled
def proposition(columns: Columns) -> "Figure":
    """Both sides of the proposition, and the effective rank of K against FedDecorr's loss."""
    figure = drawing.new_figure(3.4, _WIDTH)
    left, right = figure.subplots(1, 2)
    ends = [0, columns["norm_minus_d"].max()]
    left.plot(ends, ends, **drawing.THRESHOLD)
    left.plot(columns["norm_minus_d"], columns["deviations"], color=drawing.COLOURS[0], marker="o", linestyle="none")
    left.set(xlabel=r"$\|K\|_F^2 - d$", ylabel=r"$\sum_k (\lambda_k - \bar\lambda)^2$")
    right.plot(columns["feddecorr"], columns["effective_rank"], color=drawing.COLOURS[1], marker="s", linestyle="none")
    right.set(xlabel=r"FedDecorr's loss $\|K\|_F^2 / d^2$", ylabel="effective rank of K", ylim=(0, None))
    return figure


@drawing.styled
def discs(columns: Columns) -> "Figure":
    """The discs, the rows of each classifier as arrows, and its decision regions; arrows of all classes dotted."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Circle

    names = list(dict.fromkeys(columns["classifier"]))
    rows, centres = np.split(np.stack([columns[c] for c in ("x", "y", "centre_x", "centre_y")], -1), 2, axis=1)
    weights = {name: rows[columns["classifier"] == name] for name in names}
    centres, radius = centres[columns["classifier"] == names[0]], columns["radius"][0]
    figure = drawing.new_figure(3.2, _WIDTH)
    x, y = np.linspace(-1.35, 1.75, 400), np.linspace(-2.4, 2.4, 600)
    places = np.stack(np.meshgrid(x, y), axis=-1)
    for axes, name in zip(drawing.grid_of(figure, len(names), len(names)), names, strict=True):
        regions = np.argmax(places @ weights[name].T, axis=-1)
        colours = ListedColormap(drawing.COLOURS[: len(centres)])
        extent = (x[0], x[-1], y[0], y[-1])
        axes.imshow(regions, colours, vmin=0, vmax=len(centres) - 1, origin="lower", extent=extent, alpha=0.15)
        parts = zip(centres, weights[name], weights[names[0]], drawing.COLOURS, strict=False)
        for c, (centre, row, best, colour) in enumerate(parts, 1):
            look = dict(facecolor=colour, alpha=0.5) if row.any() else dict(facecolor="none", linestyle=":")
            axes.add_patch(Circle(centre, radius, edgecolor=colour, **look))
            axes.plot(*centre, color=colour, marker="o")
            axes.annotate(f"{c}", centre, (4, 4), textcoords="offset points")
            if name == "mean":
                axes.annotate("", best, (0, 0), arrowprops=dict(arrowstyle="->", color=drawing.MUTE, linestyle=":"))
            if row.any():
                arrow = dict(arrowstyle="-|>", color=drawing.INK, shrinkA=0, shrinkB=0)
                axes.annotate("", row, (0, 0), arrowprops=arrow)
        features.strip(axes)
        axes.set_title(name)
    return figure


@drawing.styled
def sphere(columns: Columns) -> "Figure":
    """The unit sphere, a panel for each arm, of the first seed, turned so that the mean of the features is in front."""
    from matplotlib.lines import Line2D

    arms, classes = list(dict.fromkeys(columns["arm"])), np.unique(columns["class"])
    figure = drawing.new_figure(2.2, _WIDTH)
    looks = {c: dict(color=drawing.COLOURS[c], marker=drawing.MARKERS[c]) for c in classes.tolist()}
    for axes, arm in zip(drawing.grid_of(figure, len(arms), len(arms)), arms, strict=True):
        shown = (columns["arm"] == arm) & (columns["seed"] == columns["seed"].min())
        points = _facing(np.stack([columns[c][shown] for c in "xyz"], axis=-1))
        features.strip(axes)
        features.draw_sphere(axes, {c: points[columns["class"][shown] == c] for c in looks}, looks)
        axes.set_title(arm)
    handles = [Line2D([], [], linestyle="", **look) for look in looks.values()]
    is_held = {c: columns["held"][columns["class"] == c].all() for c in looks}
    drawing.legend(figure, handles, [f"class {c} (held)" if is_held[c] else f"class {c}" for c in looks])
    return figure


def _facing(points):
    """Returns the points [points, 3] reflected so that their mean is towards the viewer."""
    mean = points.mean(axis=0)
    normal = mean / np.linalg.norm(mean) - features.point(*features.VIEW)
    return points - 2 * np.outer(points @ normal, normal) / (normal @ normal)


def of_classes(number: int) -> str:
    """Returns number and noun."""
    return f"{number} classes" if number > 1 else "1 class"
