"""Spectra of features: of the server model and a local one, and of all watched clients' models."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_collapse.analysis.spectrum import FLOOR
from fedjax_collapse.results.annotations import DataFrame, Figure
from fedjax_collapse.results.metrics import show_number
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import MUTE, THRESHOLD, Parts, arm_line, by_arm, colours_of, draws, stacked
from fedjax_collapse.results.study import Results

SIGNIFICANT = -2.0  # eigenvalues with a larger natural logarithm count as significant dimensions
LOWEST = -12.0  # spectra are cut off here, because an eigenvalue of exactly zero would flatten the rest
SMALLEST = 1e-4  # percent of the variance, likewise
_SERVER = "server"


def spectra_of(study: Results, absolute: bool = False) -> DataFrame:
    """Returns percentages of the variance in descending order, at the last round that any run of the arm saved.

    If ``absolute``, natural logarithms of the eigenvalues. Logarithms are averaged over the runs that saved this round.
    Columns are arm, round, index (from 1), server and local.
    """
    parts = []
    for arm, features in study.num_features.items():
        saved = [run.spectra for run in study.with_spectra if run.arm == arm]
        last = max(int(arrays["round"].max()) for arrays in saved)
        saved = [arrays for arrays in saved if last in arrays["round"]]
        both = {name: np.array([of[name][of["round"] == last][-1] for of in saved]) for name in (_SERVER, "local")}
        means = {name: _mean_log(of) if absolute else 100 * np.exp(_mean_log(shares(of))) for name, of in both.items()}
        parts.append({"arm": arm, "round": last, "index": range(1, features + 1)} | means)
    return stacked(parts)


def shares(spectra: np.ndarray) -> np.ndarray:
    """Returns spectra [runs, features] divided by their sums; NaN where all features are constant."""
    totals = spectra.sum(axis=1, keepdims=True)
    return np.divide(spectra, totals, out=np.full_like(spectra, np.nan), where=totals > 0)


def _mean_log(rows: np.ndarray) -> np.ndarray:
    """Returns the mean over the spectra that are finite, if there are any."""
    finite = rows[np.isfinite(rows).all(axis=1)]
    return np.log(np.maximum(finite if len(finite) else rows, FLOOR)).mean(axis=0)


@draws(lambda study: [spectra_of(study)])
def spectra(study: Results, selection: DataFrame) -> Figure:
    """Share of the variance of the test-set features in each principal dimension.

    It is an eigenvalue of their covariance divided by the sum of all, largest first, of the server model and of the
    watched client's model after local training in the same round: the earlier a curve falls, the fewer dimensions the
    features use, whatever their size. Geometric mean over seeds; values below 0.0001 % are cut off. --absolute draws
    the eigenvalues themselves.
    """
    figure = _draw_spectra(study, selection, "share of the variance (%)", {})
    figure.axes[0].set_yscale("log")
    figure.axes[0].set_ylim(max(np.fmin(selection[[_SERVER, "local"]].min(axis=None), 100) / 2, SMALLEST), 100)
    return figure


@draws(lambda study: [spectra_of(study, absolute=True)])
def absolute_spectra(study: Results, selection: DataFrame) -> Figure:
    """Natural log of the eigenvalues (= singular values) of the covariance of the test-set features, largest first.

    Averaged over seeds, of the server model and of the watched client's model after local training in the same round. A
    curve is also low where a method shrinks all features, without fewer dimensions; significant dimensions are
    eigenvalues with natural log > −2 (dotted), so that their number depends on the scale of the features. Values below
    −12 are cut off.
    """
    threshold = {f"threshold {show_number(SIGNIFICANT, '.0f')}": THRESHOLD}
    figure = _draw_spectra(study, selection, "log eigenvalue (natural)", threshold)
    figure.axes[0].axhline(SIGNIFICANT, **THRESHOLD, zorder=1)
    lowest = np.fmin(selection[[_SERVER, "local"]].min(axis=None), SIGNIFICANT)
    figure.axes[0].set_ylim(bottom=max(lowest - 0.5, LOWEST))
    return figure


def _draw_spectra(study: Results, selection: DataFrame, up: str, others: Mapping[str, Any]) -> Figure:
    """Draws both spectra of each arm by index, with styles of ``others`` in the legend."""
    figure, colours, rounds = drawing.new_figure(3.7), colours_of(study), selection["round"].unique()
    when = f"round {rounds[0]}" if len(rounds) == 1 else "last saved round"
    axes = figure.subplots()
    axes.set(xlabel=f"principal dimension ({when})", ylabel=up)
    for arm, part in by_arm(selection).items():
        look = arm_line(colours, arm, len(part))
        axes.plot(part["index"], part[_SERVER], **look)
        axes.plot(part["index"], part["local"], "--", markerfacecolor=drawing.PAPER, **look)
    drawing.whole_numbers(axes.xaxis)
    drawing.arm_legend(figure, colours, selection["arm"].unique(), drawing.SERVER_AND_LOCAL | others)
    return figure


def _of_clients(study: Results) -> Parts:
    """Yields percentages of the variance in descending order, at the last saved round of each arm's first run."""
    for arm in study.num_features:
        saved = next((run.spectra for run in study.of_arm(arm) if len(run.spectra.get("watched", ()))), None)
        if saved is not None:
            names = [_SERVER, *map(str, saved["watched"][-1])]
            percents = 100 * np.maximum(shares(np.stack([saved[_SERVER][-1], *saved["clients"][-1]])), 0)
            index = range(1, 1 + percents.shape[1])
            for name, of in zip(names, percents, strict=True):
                if np.isfinite(of).all():
                    yield {"arm": arm, "model": name, "index": index, "share": of}


@draws(_of_clients)
def client_spectra(study: Results, selection: DataFrame) -> Figure:
    """Share of the variance of the test-set features in each principal dimension, largest first.

    Of every watched client's model after local training in the last saved round, and of the server's model that is
    averaged from them; of the first seed.
    """
    colours, parts = colours_of(study), by_arm(selection)
    figure, panels = drawing.panels_of([*parts], "principal dimension", "share of the variance (%)", sharey=True)
    for axes, (arm, part) in zip(panels, parts.items(), strict=True):
        for name, of_model in by_arm(part, "model").items():
            of_server, of_client = {"color": drawing.INK, "zorder": 3}, {"color": colours[arm], "linewidth": 0.5}
            axes.plot(of_model["index"], of_model["share"], **(of_server if name == _SERVER else of_client))
        axes.set(yscale="log", ylim=(max(selection["share"].min() / 2, SMALLEST), 100))
    looks = [{"color": drawing.INK}, {"color": MUTE, "linewidth": 0.5}]
    drawing.legend(figure, looks, ["server model", "local models"])
    return figure
