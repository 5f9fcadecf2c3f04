"""Each layer's representation over rounds, after local training and after averaging, if ``layers`` measured them."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from experiments.results.plotting import drawing
from experiments.results.plotting.drawing import draws, label, new_figure, whole_numbers
from experiments.results.selection import Selection
from experiments.results.study_results import Run, Study, is_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4
_STAGES = ("after training", "after averaging")
_MARK = "/received_nc1"  # an array that no other measurement saves


def over_layers(quantity: str, axis: str, logarithmic: bool) -> Callable[..., "Figure | None"]:
    """Returns the figure of one of the quantities of ``layers`` on the test set, in two panels for each arm.

    Local models are the mean over the watched clients; both are the mean over seeds.
    """

    def select(study: Study) -> Selection:
        rows = []
        for arm in study.arms:
            found: dict[tuple[int, int], list[tuple[float, float]]] = {}
            for run in study.of_arm(arm):
                for place, values in _saved(study, run, quantity):
                    found.setdefault(place, []).append(values)
            rows += [(arm, *place, *map(float, np.mean(found[place], axis=0))) for place in sorted(found)]
        return Selection(("arm", "round", "layer", *_STAGES), rows)

    @draws(select)
    def figure(study: Study, selection: Selection) -> "Figure | None":
        """A heat map of layers (rows) and rounds (columns), local models above the server's."""
        from matplotlib.colors import LogNorm, Normalize

        values = np.array([row[3:] for row in selection.rows], float)
        values = values[np.isfinite(values) & (values > 0)]
        if not len(values):
            return None
        parts = selection.by("arm")
        columns = min(_COLUMNS, len(parts))
        lines = -(-len(parts) // columns)
        drawn = new_figure(0.7 + 2.9 * lines, width=8.4)
        grid = drawn.subplots(2 * lines, columns, squeeze=False, sharey=True)
        norm = (LogNorm if logarithmic else Normalize)(values.min(), values.max())
        for axes in grid.flat:
            axes.set_visible(False)
        for (i, (arm, part)), k in itertools.product(enumerate(parts.items()), range(2)):
            axes = grid[2 * (i // columns) + k, i % columns]
            axes.set_visible(True)
            rounds, layers, cells = _cells(part, k)
            image = drawing.heat_map(axes, rounds, layers, cells, norm=norm, cmap="viridis")
            axes.set_title(f"{label(arm, 18)}, {_STAGES[k]}", loc="left", fontsize="small")
            whole_numbers(axes.xaxis, 5)
            whole_numbers(axes.yaxis, 6)
        drawn.supxlabel("round", fontsize="medium")
        drawn.supylabel("layer", fontsize="medium")
        drawn.colorbar(image, ax=grid, label=axis + (", log scale" if logarithmic else ""))
        return drawn

    return figure


def _cells(part: Selection, stage: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rounds, layers and values [layers, rounds]."""
    rounds, layers, *values = part.columns()
    columns, rows = np.unique(rounds), np.unique(layers)
    cells = np.full((len(rows), len(columns)), np.nan)
    cells[np.searchsorted(rows, layers), np.searchsorted(columns, rounds)] = values[stage]
    return columns, rows, cells


def _saved(study: Study, run: Run, quantity: str) -> list[tuple[tuple[int, int], tuple[float, float]]]:
    """Returns round and layer, from 1, with the values of the watched clients' mean and of the server."""
    arrays = study.measured_arrays(run)
    name = next((name.removesuffix(_MARK) for name in arrays if name.endswith(_MARK)), None)
    of_server, of_local = (arrays.get(f"{name}/{prefix}{quantity}", np.empty(0)) for prefix in ("", "local_"))
    if not (is_of(of_server, 2) and is_of(of_local, 3)):
        return []
    counts = np.sum(np.isfinite(of_local), axis=1)
    means = np.where(counts > 0, np.nansum(of_local, axis=1) / np.maximum(counts, 1), np.nan)
    return [
        ((int(r), layer + 1), (means[i, layer], of_server[i, layer]))
        for i, r in enumerate(arrays["round"])
        for layer in range(of_server.shape[1])
    ]
