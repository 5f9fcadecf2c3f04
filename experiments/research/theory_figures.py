"""The figures of ``theory.py``: functions from its columns to matplotlib figures, in the style of the reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from experiments.results.plotting.drawing import COLOURS, MARKERS, THRESHOLD, legend, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Columns = Mapping[str, np.ndarray]
_WIDTH = 8.4
_FORMULAS = {
    "exact": dict(linestyle="-"),
    "balanced": dict(linestyle="none", marker="o", markerfacecolor="none", markevery=5),
    "theorem": dict(linestyle="--"),
    "theorem_of_class_means": dict(linestyle=":"),
}
_NAMES = ("exact", "balanced form", "theorem 1", "with class means")


@styled
def rates(columns: Columns) -> "Figure":
    """Rates of the singular values, exact and by the formulas, and the loss of alignment over time."""
    from matplotlib.lines import Line2D

    figure = new_figure(3.6, _WIDTH)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for k in np.unique(columns["k"]).astype(int):
        of_k = {name: column[columns["k"] == k] for name, column in columns.items()}
        for name, look in _FORMULAS.items():
            left.plot(of_k["time"], of_k[name], color=COLOURS[k - 1], **look)
        right.plot(of_k["time"], of_k["alignment"], color=COLOURS[k - 1])
    left.axhline(0, **THRESHOLD, zorder=1)
    left.set(xlabel="time", ylabel=r"$d\sigma_k / dt$")
    right.set(xlabel="time", ylabel=r"alignment $|\langle u_k, v_{L+1,k} \rangle|$")
    handles = [Line2D([], [], color="#555555", **{**look, "markevery": None}) for look in _FORMULAS.values()]
    handles += [Line2D([], [], color=COLOURS[k]) for k in range(3)]
    legend(figure, handles, [*_NAMES, *(f"k = {k + 1}" for k in range(3))])
    return figure


@styled
def classes(columns: Columns) -> "Figure":
    """Singular values over time of the clients with fewest and most classes; the effective rank of every client."""
    from matplotlib.lines import Line2D

    numbers = np.unique(columns["classes"])
    figure = new_figure(3.4, _WIDTH)
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    panels[1].sharey(panels[0])
    for axes, number in zip(panels, (numbers[1], numbers[-1]), strict=False):
        colour = COLOURS[np.flatnonzero(numbers == number)[0]]
        for k in np.unique(columns["k"]):
            chosen = (columns["classes"] == number) & (columns["k"] == k)
            axes.plot(columns["time"][chosen], columns["sigma"][chosen], color=colour, linewidth=1.0)
        axes.set(xlabel="time", title=f"{number} classes")
        axes.locator_params(axis="x", nbins=4)
    panels[0].set_ylabel(r"singular values $\sigma_k$")
    for index, number in enumerate(numbers):
        chosen = (columns["classes"] == number) & (columns["k"] == 1)
        panels[2].plot(columns["time"][chosen], columns["effective_rank"][chosen], color=COLOURS[index])
    panels[2].set(xlabel="time", ylabel="effective rank of the features", ylim=(0, None))
    legend(figure, [Line2D([], [], color=c) for c in COLOURS[: len(numbers)]], [of_classes(n) for n in numbers])
    return figure


@styled
def dirichlet(columns: Columns) -> "Figure":
    """Effective ranks against alpha: mean over clients, and a band of one standard deviation."""
    alphas = np.unique(columns["alpha"])
    figure = new_figure(3.4, _WIDTH)
    titles = {"rank_of_G": "effective rank of G at the start", "rank": "effective rank of the trained features"}
    for index, (axes, (name, title)) in enumerate(zip(figure.subplots(1, 2), titles.items(), strict=True)):
        values = [columns[name][columns["alpha"] == alpha] for alpha in alphas]
        mean, std = (np.array([of(v) for v in values]) for of in (np.mean, np.std))
        axes.plot(alphas, mean, color=COLOURS[index], marker=MARKERS[index])
        axes.fill_between(alphas, mean - std, mean + std, color=COLOURS[index], alpha=0.18, linewidth=0)
        axes.set(xscale="log", xlabel=r"Dirichlet $\alpha$", ylabel=title, ylim=(0, None))
    return figure


@styled
def proposition(columns: Columns) -> "Figure":
    """Both sides of the proposition, and the effective rank of K against FedDecorr's loss."""
    figure = new_figure(3.4, _WIDTH)
    left, right = figure.subplots(1, 2)
    ends = [0, columns["norm_minus_d"].max()]
    left.plot(ends, ends, **THRESHOLD)
    left.plot(columns["norm_minus_d"], columns["deviations"], color=COLOURS[0], marker="o", linestyle="none")
    left.set(xlabel=r"$\|K\|_F^2 - d$", ylabel=r"$\sum_k (\lambda_k - \bar\lambda)^2$")
    right.plot(columns["feddecorr"], columns["effective_rank"], color=COLOURS[1], marker="s", linestyle="none")
    right.set(xlabel=r"FedDecorr's loss $\|K\|_F^2 / d^2$", ylabel="effective rank of K", ylim=(0, None))
    return figure


def of_classes(number: int) -> str:
    """Returns number and noun."""
    return f"{number} classes" if number > 1 else "1 class"
