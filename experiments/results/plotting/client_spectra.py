"""Spectra of all watched clients' models, as in appendix E of FedDecorr's ICLR version, if several are watched."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import draws
from experiments.results.plotting.figures import SMALLEST, shares
from experiments.results.selection import Selection
from experiments.results.study_results import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SERVER = "server"


def _of_clients(study: Study) -> Selection:
    """Percentages of the variance in descending order, at the last saved round of each arm's first run."""
    rows = []
    for arm in study.num_features:
        saved = next((run.spectra for run in study.of_arm(arm) if len(run.spectra.get("watched", ()))), None)
        if saved is None:
            continue
        names = [_SERVER, *map(str, saved["watched"][-1])]
        for name, share in zip(names, shares(np.stack([saved["server"][-1], *saved["clients"][-1]])), strict=True):
            if np.isfinite(share).all():
                rows += [(arm, name, i, 100 * max(value, 0)) for i, value in enumerate(share.tolist(), 1)]
    return Selection(("arm", "model", "index", "share"), rows)


@draws(_of_clients)
def client_spectra(study: Study, selection: Selection) -> "Figure":
    """A panel for each arm: a thin line for each watched client, and the server's model in black."""
    from matplotlib.lines import Line2D

    parts, colours = selection.by("arm"), colours_of(study)
    figure, panels = drawing.panels_of(parts, "principal dimension", "share of the variance (%)")
    for axes, (arm, part) in zip(panels, parts.items(), strict=True):
        for name, of_model in part.by("model").items():
            is_server = name == _SERVER
            look = dict(color=drawing.INK, zorder=3) if is_server else dict(color=colours[arm], linewidth=0.5)
            axes.plot(*of_model.columns(), **look)
        axes.set_yscale("log")
        axes.set_ylim(max(min(selection.column("share")) / 2, SMALLEST), 100)
    handles = [Line2D([], [], color=drawing.INK), Line2D([], [], color=drawing.MUTE, linewidth=0.5)]
    drawing.legend(figure, handles, ["server model", "local models"])
    return figure
