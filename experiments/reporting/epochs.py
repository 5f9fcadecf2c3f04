"""The figure of losses within a round, of every client epoch by epoch, where ``training.logged_epochs`` has them."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.reporting.drawing import MUTE, arm_colour, label, new_figure, styled, whole_numbers
from experiments.reporting.study import Run, Study
from fedjax_collapse.records import EPOCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 6  # columns
_TASK = "task_loss"


class WithinRound(NamedTuple):
    """What an arm's first run logged of the epochs of its last round."""

    round: int
    losses: dict[str, np.ndarray]  # by name, [epochs, clients]; NaN where a client did not take the epoch


@styled
def within_round(study: Study) -> "Figure | None":
    """A line of panels for each loss, a panel for each of the first arms with it: clients in grey, and their mean."""
    found = dict(list(_found(study).items())[:_MOST])
    names = sorted(
        {name for logged in found.values() for name in logged.losses}, key=lambda name: (name != _TASK, name)
    )
    if not names:
        return None
    figure = new_figure(0.6 + 2.0 * len(names), width=11)
    grid = figure.subplots(len(names), len(found), sharex=True, sharey="row", squeeze=False)
    for column, (arm, logged) in zip(grid.T, found.items(), strict=True):
        column[0].set_title(f"{label(arm, 60 // len(found))}, round {logged.round}", loc="left")
        shown = [(axes, logged.losses.get(name)) for axes, name in zip(column, names, strict=True)]
        for axes, losses in shown:
            if losses is None:
                axes.set_axis_off()
                continue
            epochs = np.arange(len(losses)) + 1
            axes.plot(epochs, losses, color=MUTE, linewidth=0.8, alpha=0.6)
            axes.plot(epochs, np.nanmean(losses, axis=1), color=arm_colour(study.arms, arm), linewidth=2, marker="o")
            whole_numbers(axes.xaxis)
        lowest = [axes for axes, losses in shown if losses is not None][-1]
        lowest.tick_params(labelbottom=True)
    for line, name in zip(grid, names, strict=True):
        first = next(axes for axes in line if axes.axison)
        first.set_ylabel("cross-entropy (nats)" if name == _TASK else label(name, 24))
        first.tick_params(labelleft=True)
    figure.supxlabel("epoch within the round", fontsize="medium")
    return figure


def rows_within_round(study: Study) -> list[list]:
    """What is drawn, and the arms beyond, with a heading."""
    return [
        ["arm", "round", "loss", "client", "epoch", "value"],
        *(
            [arm, logged.round, name, client, epoch + 1, float(value)]
            for arm, logged in _found(study).items()
            for name, losses in logged.losses.items()
            for client, of_client in enumerate(losses.T)
            for epoch, value in enumerate(of_client)
            if np.isfinite(value)
        ),
    ]


def _found(study):
    runs = {arm: next(iter(study.of_arm(arm)), None) for arm in study.arms}
    logged = {arm: _logged(run) for arm, run in runs.items() if run is not None}
    return {arm: found for arm, found in logged.items() if found is not None}


def _logged(run: Run) -> WithinRound | None:
    """What the run logged of its last round; None if it did not, and without the epochs that nobody took."""
    numbers = {int(name.split("/")[1]) for name in run.clients if name.startswith(EPOCH)}
    if not numbers:
        return None
    first = f"{EPOCH}1/"
    names = [name.removeprefix(first) for name in run.clients if name.startswith(first)]
    losses = {
        name: np.array([run.clients[f"{EPOCH}{number}/{name}"][-1] for number in sorted(numbers)], float)
        for name in names
        if name == _TASK or "/" in name  # all but the score
    }
    taken = np.isfinite(losses[_TASK]).any(axis=1)
    losses = {name: values[taken] for name, values in losses.items()}
    return WithinRound(int(run.clients["round"][-1]), losses) if taken.any() else None
