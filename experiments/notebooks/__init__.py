"""What the notebooks share: a line of progress, results as a study for the report's figures, a table, the sphere."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from IPython.display import Markdown, display

from experiments.results.formats import markdown
from experiments.results.metrics import ACCURACY, EFFECTIVE_RANK, show_number
from experiments.results.plotting.drawing import label, new_figure, styled
from experiments.results.study_results import Run, Study
from experiments.results.tables.table import final_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedjax_collapse import Result

Row = Mapping[str, Any]


def progress(name: str, rounds: int) -> Callable[[Row, Row], None]:
    """A listener for ``simulate``, which shows a run of so many rounds as one line of the cell's output."""
    line = display(_plain(f"{name}: compiling"), raw=True, display_id=True)

    def listener(row: Row, timing: Row) -> None:
        numbers = (
            *(metric.say([row.get(metric.name)]) for metric in (ACCURACY, EFFECTIVE_RANK)),
            f"{show_number(timing.get('samples_per_second'), ',.0f')} samples/s",
        )
        line.update(_plain(f"{name}: round {row['round']}/{rounds}, {', '.join(numbers)}"), raw=True)

    return listener


def study_of(results: Mapping[str, "Result"]) -> Study:
    """The study of which each result is an arm with one seed: what figures and tables of the report are drawn from."""
    runs = (
        Run(arm, 0, tuple(result.metrics), tuple(result.timing), result.clients, result.spectra, {})
        for arm, result in results.items()
        if result.metrics
    )
    return Study(Path(), {}, (), {}, tuple(runs))


def table(study: Study) -> Markdown:
    """The report's table of the study."""
    return Markdown(markdown(final_table(study.summary)))


def principal_directions(features: np.ndarray, count: int = 3) -> tuple[np.ndarray, float]:
    """Unit vectors [examples, count], and the share of all variance that they are taken from.

    The coordinates of each centred feature along the ``count`` directions of largest variance, scaled to length 1.
    """
    features = np.asarray(features, np.float64)
    centred = features - features.mean(axis=0)
    _, deviations, directions = np.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:count].T
    lengths = np.maximum(np.linalg.norm(points, axis=1, keepdims=True), np.finfo(float).tiny)
    total = np.sum(deviations**2)
    return points / lengths, float(np.sum(deviations[:count] ** 2) / total) if total > 0 else 0.0


@styled
def sphere(features: Mapping[str, np.ndarray], labels: np.ndarray) -> "Figure":
    """The ``principal_directions`` of each of these features on a sphere, coloured by class."""
    figure = new_figure(4.2, width=4.2 * len(features))
    panels = figure.subplots(1, len(features), subplot_kw={"projection": "3d"}, squeeze=False)
    for axes, (name, of_model) in zip(panels.flat, features.items(), strict=True):
        points, share = principal_directions(of_model)
        drawn = axes.scatter(*points.T, c=labels, cmap="tab10", s=8, depthshade=False)
        axes.set_title(f"{label(name)}: {share:.0%} of the variance")
        axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1), box_aspect=(1, 1, 1))
        axes.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), zticks=(-1, 0, 1))
    figure.legend(*drawn.legend_elements(num=None), loc="outside right center", title="class")
    return figure


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}
