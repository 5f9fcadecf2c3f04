"""Losses of every client: per round, and per epoch within a round if ``training.logged_epochs`` recorded them."""

import itertools

import numpy as np

from fedjax_collapse.core.records import EPOCH
from fedjax_collapse.results.annotations import DataFrame, Figure
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import MUTE, Parts, by_arm, colours_of, draws, label, new_figure, stacked
from fedjax_collapse.results.study import Results

_MOST = 6  # arms in a figure of epochs
_TASK = "task_loss"


def _client_losses(study: Results) -> Parts:
    """Yields the training loss of the first seed of each arm, a column for each client; NaN outside the cohort.

    Without runs of a federation on disk, which record only cohorts.
    """
    for run in (study.of_arm(arm)[0] for arm in study.arms):
        if {_TASK, "round"} <= run.clients.keys() and "client" not in run.clients:
            losses = {f"client {i}": of for i, of in enumerate(np.asarray(run.clients[_TASK], float).T)}
            yield {"arm": run.arm, "seed": run.seed, "round": run.clients["round"]} | losses


@draws(_client_losses)
def client_loss(study: Results, selection: DataFrame) -> "Figure | None":
    """Mean training cross-entropy of each client during its local training in each round, first seed of each arm.

    A row that stays bright is a client that learns less; grey means not in that round's cohort.
    """
    parts = {arm: of.set_index("round").iloc[:, 2:].T for arm, of in by_arm(selection).items()}
    parts = {arm: of.set_axis(range(len(of))) for arm, of in parts.items() if np.isfinite(of).any(axis=None)}
    if not parts:
        return None
    low, high = (find(selection.iloc[:, 3:].to_numpy()) for find in (np.nanmin, np.nanmax))
    logarithmic = bool(high > 0 and low < high / 20)
    least = high / 1e4 if logarithmic else -np.inf
    shown = [(arm, part.clip(lower=least)) for arm, part in parts.items()]
    return drawing.heat_maps(shown, "client", "cross-entropy (nats)", logarithmic)


def _within_rounds(study: Results) -> Parts:
    """Yields losses of each epoch that a client took in the last round of each arm's first seed."""
    parts = []
    for run in (study.of_arm(arm)[0] for arm in study.arms):
        for name in (name for name in run.clients if name.startswith(EPOCH)):
            epoch, _, loss = name.removeprefix(EPOCH).partition("/")
            if loss == _TASK or "/" in loss:  # all but the score
                values, last = run.clients[name][-1], int(run.clients["round"][-1])
                clients = run.clients["client"][-1] if "client" in run.clients else range(len(values))
                where = {"arm": run.arm, "round": last, "loss": loss, "client": clients, "epoch": int(epoch)}
                parts.append(where | {"value": values})
    yield stacked(parts).replace([np.inf, -np.inf], np.nan).dropna()


@draws(_within_rounds)
def within_round(study: Results, selection: DataFrame) -> Figure:
    """Mean of the cross-entropy and of every term over each epoch of local training, before their strengths.

    In the last round of the first seed of up to six arms: grey lines are clients, the coloured line is their mean
    (training.logged_epochs).
    """
    parts = by_arm(selection, ["arm", "loss"])
    arms = list(dict.fromkeys(arm for arm, _ in parts))[:_MOST]
    losses = sorted({loss for arm, loss in parts if arm in arms}, key=lambda loss: (loss != _TASK, loss))
    figure, colours = new_figure(0.6 + 2.0 * len(losses), drawing.WIDE), colours_of(study)
    grid = figure.subplots(len(losses), len(arms), sharey="row", squeeze=False)
    for axes, (loss, arm) in zip(grid.flat, itertools.product(losses, arms), strict=True):
        if (arm, loss) not in parts:
            axes.set_axis_off()
            continue
        of_clients = parts[arm, loss].pivot(index="epoch", columns="client", values="value")
        axes.plot(of_clients, color=MUTE, linewidth=0.8, alpha=0.6)
        axes.plot(of_clients.mean(axis=1), color=colours[arm], linewidth=2, marker="o")
        drawing.whole_numbers(axes.xaxis)
        if loss == _TASK:
            axes.set_title(f"{label(arm, 60 // len(arms))}, round {parts[arm, loss]['round'].iloc[0]}")
    for line, loss in zip(grid, losses, strict=True):
        first = next(axes for axes in line if axes.axison)
        first.set_ylabel("cross-entropy (nats)" if loss == _TASK else label(loss, 24))
        first.tick_params(labelleft=True)
    figure.supxlabel("epoch within the round", fontsize="medium")
    return figure
