"""Figures of features: on the unit sphere, as in FedDecorr's figure 1, and by t-SNE, as in FedUV's figure 4.

They show what the measurement ``features`` has saved at its last round, for the first run of each arm.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import COLOURS, MARKERS, draws, grid_of, label, new_figure
from experiments.results.plotting.partition_figure import class_names
from experiments.results.selection import Selection
from experiments.results.study_results import Arrays, Run, Study, is_of
from fedjax_collapse.analysis.geometry import on_sphere

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS = 10  # the most clients whose features t-SNE shows
VIEW = np.radians([25, 35])  # of the sphere: elevation and azimuth
_POINTS = -1  # z-order: below lines
_LINES = np.linspace(0, 2 * np.pi, 49)


class Saved(NamedTuple):
    """The arrays of the measurement ``features`` at its last round."""

    features: np.ndarray  # [examples, features] of the server's model
    labels: np.ndarray  # [examples]
    local: dict[int, np.ndarray]  # by client, the features of its model


def project(features: np.ndarray) -> np.ndarray:
    """Returns the centred features along their three principal axes, scaled to length 1, [examples, 3].

    NaN if not all are finite. An axis points to the side with the larger third moment, so that rounding does not flip
    it. The papers do not say how they reduce features to three dimensions.
    """
    if not len(features) or not np.isfinite(features).all():
        return np.full((len(features), 3), np.nan)
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    along = np.zeros((len(features), 3))
    along[:, : min(3, len(directions))] = centred @ directions[:3].T
    signs = np.where(np.sum(along**3, axis=0) < 0, -1, 1)
    return on_sphere(along * signs)


def embed(features: np.ndarray) -> np.ndarray:
    """Returns the t-SNE of the features, [examples, 2].

    Perplexity 30, or a third of the examples; initialised with the principal components, seed 0.
    """
    if len(features) < 4 or not np.isfinite(features).all():
        return np.full((len(features), 2), np.nan)
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    values = features.astype(np.float64)
    perplexity = min(30, (len(values) - 1) / 3)
    size = np.abs(values).max() or 1  # t-SNE depends on relative distances only
    with threadpool_limits(1):  # steps are so short that threads which wait for a core slow them down
        return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(values / size)


def _selects(group: str, points_of: Callable[[Saved], tuple[np.ndarray, np.ndarray] | None]) -> Callable:
    """Returns a function that selects the points [points, 2 or 3] of every arm and their groups, if all are finite."""

    def select(study: Study) -> Selection:
        saved = {arm: _saved(study, study.of_arm(arm)[0]) for arm in study.arms}
        found = {arm: points for arm, of in saved.items() if of and (points := points_of(of)) is not None}
        found = {arm: of for arm, of in found.items() if np.isfinite(of[0]).all()}
        size = next((places.shape[1] for places, _ in found.values()), 0)
        rows = [(arm, group, *place) for arm, of in found.items() for place, group in zip(*of, strict=True)]
        return Selection(("arm", group, *"xyz"[:size]), rows, decimals=2)

    return select


def _of_one_class(saved: Saved) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the t-SNE of test features of one class under several clients' models; None without several clients."""
    clients = list(saved.local)[:CLIENTS]
    if len(clients) < 2:
        return None
    shown = 1 if np.any(saved.labels == 1) else saved.labels.min()  # 1 as in FedUV's figure, or the first
    parts = [saved.local[client][saved.labels == shown] for client in clients]
    return embed(np.concatenate(parts)), np.repeat(clients, [len(part) for part in parts])


@draws(_selects("class", lambda saved: (project(saved.features), saved.labels)))
def sphere(study: Study, selection: Selection) -> "Figure":
    """The unit sphere, a panel for each arm: points in front opaque, those on the far side pale."""
    return _panels(study, selection, draw_sphere, _class_name(study))


@draws(_selects("class", lambda saved: (embed(saved.features), saved.labels)))
def tsne_classes(study: Study, selection: Selection) -> "Figure":
    """t-SNE of test features of the server's model, a panel for each arm, coloured by class."""
    return _panels(study, selection, _draw_plane, _class_name(study))


@draws(_selects("client", _of_one_class))
def tsne_clients(study: Study, selection: Selection) -> "Figure":
    """t-SNE of one class's test features under local models, a panel for each arm, coloured by client."""
    return _panels(study, selection, _draw_plane, lambda client: f"client {client}")


def _saved(study: Study, run: Run) -> Saved | None:
    """Reads the arrays, which are too large to be read in advance; None if there are none."""
    arrays = study.measured_arrays(run)
    prefix = next((name.removesuffix("local_features") for name in arrays if name.endswith("local_features")), None)
    if prefix is None or not {prefix + "features", prefix + "labels", prefix + "clients"} <= arrays.keys():
        return None
    saved = [arrays[prefix + name] for name in ("features", "labels", "clients", "local_features")]
    if not all(map(is_of, saved, (3, 2, 2, 4), ("f", "iu", "iu", "f"))):
        return None  # of another measurement with the same names
    features, labels, clients, local = (values[-1] for values in saved)
    if len(labels) != len(features) or local.shape != (len(clients), *features.shape):
        return None
    of_client = {int(client): part for client, part in zip(clients, local, strict=True) if client >= 0}
    return Saved(features, labels, of_client)


def _class_name(study: Study) -> Callable[[int], str]:
    partition: Arrays = next((run.partition for run in study.runs if run.partition), {})
    names = class_names(partition)
    return lambda index: names[index] if 0 <= index < len(names) else f"class {index}"


def _panels(study: Study, selection: Selection, draw: Callable, name_of: Callable[[int], str]) -> "Figure":
    """Draws a panel for each arm; groups have the same look in all of them."""
    from matplotlib.lines import Line2D

    points = selection.by("arm")
    columns = min(4, len(points))
    lines = -(-len(points) // columns)
    figure = new_figure(0.4 + 2.1 * lines, width=2.1 * columns)
    groups = np.unique(selection.columns()[1])
    looks = dict(zip(groups.tolist(), map(_look, range(len(groups)), [len(groups)] * len(groups)), strict=True))
    for axes, (arm, part) in zip(grid_of(figure, len(points), columns), points.items(), strict=True):
        strip(axes)
        draw(axes, {group: np.stack(of.columns(), -1) for group, of in part.by(selection.heading[1]).items()}, looks)
        axes.set_title(label(arm, 24), color=colours_of(study)[arm])
    if len(groups) <= len(COLOURS):
        handles = [Line2D([], [], linestyle="", **look) for look in looks.values()]
        drawing.legend(figure, handles, [name_of(group) for group in looks])
    return figure


def _look(index, count):
    """Returns colour and marker of a group; if there are many, only colours, along a scale."""
    import matplotlib

    if count <= len(COLOURS):
        colour = COLOURS[index]  # ink, whose colour depends on the page's theme, is for text and lines
        return {"color": drawing.BAR if colour == drawing.INK else colour, "marker": MARKERS[index % len(MARKERS)]}
    return {"color": matplotlib.colormaps["turbo"](index / (count - 1)), "marker": "o"}


def _draw_plane(axes: "Axes", points: Mapping[int, np.ndarray], looks) -> None:
    for group in sorted(points):
        axes.scatter(*points[group].T, s=_area(), linewidth=0, zorder=_POINTS, **looks[group])
    axes.margins(0.05)
    axes.set_aspect("equal", adjustable="datalim")


def strip(axes: "Axes") -> None:
    """Removes all but what is drawn; the points of ``draw_sphere`` become one image."""
    axes.patch.set_visible(False)
    axes.set_rasterization_zorder(0)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def draw_sphere(axes: "Axes", points: Mapping[int, np.ndarray], looks) -> None:
    """Draws the sphere in orthographic projection, with circles of latitude and longitude in front."""
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor=drawing.MUTE, linewidth=0.8))
    up, right = np.radians([-60, -30, 0, 30, 60]), np.radians(range(0, 180, 30))
    circles = [point(latitude, _LINES) for latitude in up] + [point(_LINES, longitude) for longitude in right]
    for circle in circles:
        x, y, depth = _seen(circle)
        axes.plot(np.where(depth > 0, x, np.nan), y, color=drawing.GRID, linewidth=0.7, zorder=1)
    for group in sorted(points):
        x, y, depth = _seen(points[group])
        for is_shown, alpha in ((depth <= 0, 0.2), (depth > 0, 0.9)):
            axes.scatter(x[is_shown], y[is_shown], s=_area(), alpha=alpha, linewidth=0, zorder=_POINTS, **looks[group])
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), aspect="equal")


def _area():
    """Returns the area of a point in square points: a circle of a third of the height of a letter."""
    import matplotlib

    return (0.3 * matplotlib.rcParams["font.size"]) ** 2


def point(latitude: float | np.ndarray, longitude: float | np.ndarray) -> np.ndarray:
    """Returns the points [..., 3] of the unit sphere, from radians."""
    latitude, longitude = np.broadcast_arrays(latitude, longitude)
    up = np.sin(latitude)
    return np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), up], axis=-1)


def _seen(places):
    """Projects points to right, up and towards the viewer."""
    above, around = VIEW
    x, y, z = np.moveaxis(places, -1, 0)
    right, forward = -np.sin(around) * x + np.cos(around) * y, np.cos(around) * x + np.sin(around) * y
    return right, np.cos(above) * z - np.sin(above) * forward, np.cos(above) * forward + np.sin(above) * z
