"""Losses of every client: per round, and per epoch within a round if ``training.logged_epochs`` recorded them."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import MUTE, draws, grid_of, label, new_figure, whole_numbers
from experiments.results.selection import Selection
from experiments.results.study_results import Run, Study
from fedjax_collapse.core.records import EPOCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 6  # arms in a figure
_TASK = "task_loss"


def _client_losses(study: Study) -> Selection:
    """Training cross-entropy of the first seed of each arm, a column for each client; NaN outside the cohort.

    Without runs of a federation on disk, of which only the cohorts are recorded.
    """
    first = [run for arm in study.arms for run in study.of_arm(arm)[:1]]
    runs = [run for run in first if {"task_loss", "round"} <= run.clients.keys() and "client" not in run.clients]
    losses = [np.asarray(run.clients["task_loss"], float) for run in runs]
    most = max((values.shape[1] for values in losses), default=0)
    rows = [
        (run.arm, run.seed, r, *of_round, *[np.nan] * (most - len(of_round)))
        for run, values in zip(runs, losses, strict=True)
        for r, of_round in zip(run.clients["round"], values, strict=False)
    ]
    return Selection(("arm", "seed", "round", *(f"client {client}" for client in range(most))), rows)


@draws(_client_losses)
def client_loss(study: Study, selection: Selection) -> "Figure | None":
    """Training loss of every client in every round: one panel per arm, its first seed."""
    from matplotlib.colors import LogNorm, Normalize

    parts = {arm: part.columns()[1:] for arm, part in selection.by("arm").items()}
    parts = {arm: (rounds, np.array(losses)) for arm, (rounds, *losses) in parts.items() if np.isfinite(losses).any()}
    if not parts:
        return None
    values = np.concatenate([losses.ravel() for _, losses in parts.values()])
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    logarithmic = high > 0 and low < high / 20
    low = max(low, high / 1e4) if logarithmic else low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high)
    columns = 1 if len(parts) <= 3 else 2 if len(parts) <= 8 else 3
    lines, clients = -(-len(parts) // columns), len(selection.heading) - 3
    figure = new_figure(0.6 + (1.7 if clients <= 50 else 2.4) * lines)
    panels = grid_of(figure, len(parts), columns, sharex=True, sharey=True)
    for axes, (arm, (rounds, losses)) in zip(panels, parts.items(), strict=True):
        losses = np.clip(losses, low, None)
        image = drawing.heat_map(axes, rounds, np.arange(clients), losses, norm=norm, cmap="viridis")
        axes.set_title(label(arm, 34 // columns), loc="left")
        whole_numbers(axes.xaxis, 9 // columns)
        whole_numbers(axes.yaxis, 5)
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("client", fontsize="medium")
    figure.colorbar(image, ax=panels, label="cross-entropy (nats" + (", log scale)" if logarithmic else ")"))
    return figure


def _within_rounds(study: Study) -> Selection:
    """Losses of every epoch of the last round of each arm's first seed, without epochs that a client did not take."""
    rows = []
    for run in (study.of_arm(arm)[0] for arm in study.arms):
        for name in _logged(run):
            epochs = _epochs(run)
            values = [run.clients[f"{EPOCH}{epoch}/{name}"][-1].tolist() for epoch in epochs]
            width = run.clients[f"{EPOCH}1/{name}"].shape[1]
            identities = map(int, run.clients.get("client", [range(width)])[-1])
            for client, *losses in zip(identities, *values, strict=True):
                logged = filter(lambda pair: np.isfinite(pair[1]), zip(epochs, losses, strict=True))
                rows += [(run.arm, int(run.clients["round"][-1]), name, client, *pair) for pair in logged]
    return Selection(("arm", "round", "loss", "client", "epoch", "value"), rows)


@draws(_within_rounds)
def within_round(study: Study, selection: Selection) -> "Figure":
    """A row of panels for each loss, a column for each of the first arms: clients in grey, and their mean."""
    found = dict(list(selection.by("arm", "round").items())[:_MOST])
    panels = {place: part.by("loss") for place, part in found.items()}
    names = sorted({name for part in panels.values() for name in part}, key=lambda name: (name != _TASK, name))
    figure = new_figure(0.6 + 2.0 * len(names), width=11)
    grid = figure.subplots(len(names), len(found), sharex=True, sharey="row", squeeze=False)
    for column, ((arm, round), losses) in zip(grid.T, panels.items(), strict=True):
        column[0].set_title(f"{label(arm, 60 // len(found))}, round {round}", loc="left")
        for axes, name in zip(column, names, strict=True):
            if name not in losses:
                axes.set_axis_off()
                continue
            for part in losses[name].by("client").values():
                axes.plot(*part.columns(), color=MUTE, linewidth=0.8, alpha=0.6)
            of_epochs = {epoch: part.columns()[1] for epoch, part in losses[name].by("epoch").items()}
            epochs = sorted(of_epochs)
            means = [np.mean(of_epochs[epoch]) for epoch in epochs]
            axes.plot(epochs, means, color=colours_of(study)[arm], linewidth=2, marker="o")
            whole_numbers(axes.xaxis)
        lowest = [axes for axes, name in zip(column, names, strict=True) if name in losses][-1]
        lowest.tick_params(labelbottom=True)
    for line, name in zip(grid, names, strict=True):
        first = next(axes for axes in line if axes.axison)
        first.set_ylabel("cross-entropy (nats)" if name == _TASK else label(name, 24))
        first.tick_params(labelleft=True)
    figure.supxlabel("epoch within the round", fontsize="medium")
    return figure


def _logged(run: Run) -> list[str]:
    """Returns the losses that a run logged epoch by epoch: all but the score."""
    first = f"{EPOCH}1/"
    names = [name.removeprefix(first) for name in run.clients if name.startswith(first)]
    return [name for name in names if name == _TASK or "/" in name]


def _epochs(run: Run) -> list[int]:
    """Returns the epochs of a run's last round that at least one client took."""
    numbers = sorted({int(name.split("/")[1]) for name in run.clients if name.startswith(EPOCH)})
    return [number for number in numbers if np.isfinite(run.clients[f"{EPOCH}{number}/{_TASK}"][-1]).any()]
