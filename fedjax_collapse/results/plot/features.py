"""Figures of the arrays of measurements.

Of ``features`` on the unit sphere, as in FedDecorr's figure 1, and by t-SNE, as in FedUV's figure 4, at the last saved
round of each arm's first run; of ``layers``; of ``head_spectrum``, as in FedUV's figure 1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_collapse.analysis.geometry import on_sphere
from fedjax_collapse.core.round_arrays import Arrays
from fedjax_collapse.results.annotations import DataFrame, Figure
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import COLOURS, MARKERS, Parts, by_arm, colours_of, draws, stacked
from fedjax_collapse.results.plot.partition import class_names
from fedjax_collapse.results.study import Results, Run

CLIENTS = 10  # the most clients whose features t-SNE shows
_SPHERE = {"projection": "3d", "proj_type": "ortho", "elev": 25, "azim": 35, "computed_zorder": False}
_DECIMALS = 2  # of places
_KINDS = {"features": "3f", "labels": "2iu", "clients": "2iu", "local_features": "4f"}
_STAGES = ("after training", "after averaging")
_ROUNDS = 5  # the most rounds whose singular values are drawn


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


def saved_by(run: Run, mark: str, **kinds: str) -> Arrays:
    """Returns arrays of the measurement that has saved an array called ``mark``, and ``round``.

    ``kinds`` has for each name its number of dimensions and kinds of numbers, such as ``2f``. The result is empty
    unless all are there and so: another measurement may use the same names.
    """
    arrays = run.read("measurements")
    prefix = next((name.removesuffix(mark) for name in arrays if name.endswith(f"/{mark}")), "")
    found = {name: arrays.get(prefix + name, np.empty(0)) for name in kinds}
    are_so = (of.size and of.ndim == int(kinds[name][0]) and of.dtype.kind in kinds[name] for name, of in found.items())
    return found | {"round": arrays["round"]} if prefix and all(are_so) else {}


def _saved(run: Run) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]] | None:
    """Reads the measurement ``features`` at its last round, which is too large to be read in advance; None without it.

    Features of the server's model [examples, features], labels [examples], and by client the features of its model.
    """
    saved = saved_by(run, "local_features", **_KINDS)
    features, labels, clients, local = (saved[name][-1] for name in _KINDS) if saved else [np.empty(0)] * 4
    if not saved or len(labels) != len(features) or local.shape != (len(clients), *features.shape):
        return None
    return features, labels, {int(c): part for c, part in zip(clients, local, strict=True) if c >= 0}


def _of_one_class(features: np.ndarray, labels: np.ndarray, local: Mapping[int, np.ndarray]) -> tuple[Any, Any]:
    """Returns the t-SNE of test features of one class under several clients' models; nothing without several."""
    clients = list(local)[:CLIENTS]
    if len(clients) < 2:
        return (), ()
    shown = 1 if np.any(labels == 1) else labels.min()  # 1 as in FedUV's figure, or the first
    parts = [local[client][labels == shown] for client in clients]
    return embed(np.concatenate(parts)), np.repeat(clients, [len(part) for part in parts])


def _points(group: str, points_of: Callable) -> Callable:
    """Returns a function that selects the points [points, 2 or 3] of every arm and their groups, if all are finite."""

    def select(study: Results) -> Parts:
        for arm in study.arms:
            places, groups = points_of(*saved) if (saved := _saved(study.of_arm(arm)[0])) else ((), ())
            if len(places) and np.isfinite(places).all():
                named = dict(zip("xyz", places.T.round(_DECIMALS), strict=False))
                yield {"arm": arm, group: groups} | named

    return select


def _draw_points(study: Results, selection: DataFrame) -> Figure:
    """Draws a panel for each arm, of points in the plane or on the sphere; groups have the same look in all of them."""
    import matplotlib

    is_on_sphere, area = "z" in selection, (0.3 * matplotlib.rcParams["font.size"]) ** 2
    group, parts = selection.columns[1], by_arm(selection)
    groups = np.unique(selection[group]).tolist()
    looks = {of: _look(i, len(groups)) for i, of in enumerate(groups)}
    figure, panels = drawing.panels_of([*parts], height=2.8, subplot_kw=_SPHERE if is_on_sphere else {})
    for axes, part in zip(panels, parts.values(), strict=True):
        axes.set_axis_off()
        axes.set_rasterization_zorder(0)  # all points become one image
        if is_on_sphere:
            up, around = np.radians(np.mgrid[-90:91:10, 0:361:10])
            lines = np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)
            axes.plot_wireframe(*lines, rcount=7, ccount=13, color=drawing.GRID, linewidth=0.7)
            axes.set_box_aspect((1, 1, 1), zoom=1.8)
        else:
            axes.set_aspect("equal", adjustable="datalim")
        for of, points in part.groupby(group):
            axes.scatter(*points.iloc[:, 2:].to_numpy(float).T, s=area, linewidth=0, zorder=-1, **looks[of])
    if len(groups) <= len(COLOURS):
        names = class_names(next((run.partition for run in study.runs if run.partition), {}))
        names = dict(enumerate(names)) if group == "class" else {}
        handles = [{"linestyle": "", **look} for look in looks.values()]
        drawing.legend(figure, handles, [names.get(of, f"{group} {of}") for of in groups])
    return figure


def _look(index: int, count: int) -> dict[str, Any]:
    """Returns colour and marker of a group; if there are many, only colours, along a scale."""
    import matplotlib

    if count <= len(COLOURS):
        colour = COLOURS[index]  # ink, whose colour depends on the page's theme, is for text and lines
        return {"color": drawing.BAR if colour == drawing.INK else colour, "marker": MARKERS[index % len(MARKERS)]}
    return {"color": matplotlib.colormaps["turbo"](index / (count - 1)), "marker": "o"}


@draws(_points("class", lambda features, labels, _: (project(features), labels)))
def sphere(study: Results, selection: DataFrame) -> Figure:
    """Test-set features of the server model at the last round that saved them, first seed, on the unit sphere.

    Minus their mean, along their three principal axes and scaled to length 1; pale points are on the far side. Features
    that use many dimensions spread over the sphere, collapsed ones lie on a circle or at a few places.
    """
    return _draw_points(study, selection)


@draws(_points("class", lambda features, labels, _: (embed(features), labels)))
def tsne_classes(study: Results, selection: DataFrame) -> Figure:
    """Test-set features of the server model at the last round that saved them, first seed, in the plane by t-SNE.

    Perplexity 30, from the principal components; distances between far groups mean nothing.
    """
    return _draw_points(study, selection)


@draws(_points("client", _of_one_class))
def tsne_clients(study: Results, selection: DataFrame) -> Figure:
    """Features of the test examples of one class under local models, together in the plane by t-SNE.

    Of the second class, or the first that there is, under the models of up to ten watched clients of the last round
    that saved them, first seed: clients apart from each other have learned different features of the class.
    """
    return _draw_points(study, selection)


def _layers(quantity: str) -> Callable:
    """Returns a function that selects one of the quantities of ``layers`` on the test set, mean over seeds.

    Local models are the mean over the watched clients.
    """

    def select(study: Results) -> Parts:
        local, parts = f"local_{quantity}", []
        for run in study.runs:
            if saved := saved_by(run, "received_nc1", **{quantity: "2f", local: "3f"}):  # only ``layers`` has that name
                mean = np.ma.masked_invalid(saved[local]).mean(axis=1).filled(np.nan)
                rounds, layers = np.meshgrid(saved["round"], range(1, 1 + mean.shape[1]), indexing="ij")
                both = zip(_STAGES, (mean.ravel(), saved[quantity].ravel()), strict=True)
                parts.append({"arm": run.arm, "round": rounds.ravel(), "layer": layers.ravel(), **dict(both)})
        yield mean_over_seeds(parts, ["arm", "round", "layer"])

    return select


def mean_over_seeds(parts: Sequence[Mapping[str, Any]], labels: list[str]) -> DataFrame:
    """Returns the means of rows with equal labels, in their order."""
    return stacked(parts).groupby(labels, sort=False).mean().reset_index() if parts else stacked(())


def _draw_layers(selection: DataFrame, what: str, logarithmic: bool) -> "Figure | None":
    parts = [
        (title, part.pivot(index="layer", columns="round", values=stage))
        for arm, part in by_arm(selection).items()
        for title, stage in zip((arm, _STAGES[1]), _STAGES, strict=True)
    ]
    return drawing.heat_maps(parts, "layer", what, logarithmic, min(4, len(parts)))


@draws(_layers("effective_rank"))
def layer_ranks(study: Results, selection: DataFrame) -> "Figure | None":
    """Effective rank of the representation after each block on the test set (measurement layers).

    Layer 1 is the first block, the last layer the features that the classifier receives; left, the local models after
    training (mean over the watched clients), right, the server's model that is averaged from them in the same round;
    mean over seeds.
    """
    return _draw_layers(selection, "effective rank", logarithmic=True)


@draws(_layers("probe"))
def layer_probes(study: Results, selection: DataFrame) -> "Figure | None":
    """Test accuracy of a linear classifier fitted to the representation after each block (measurement layers).

    Left, the local models after training (mean over the watched clients), right, the server's; mean over seeds.
    """
    return _draw_layers(selection, "accuracy (0 to 1)", logarithmic=False)


@draws(_layers("nc1"))
def layer_nc1(study: Results, selection: DataFrame) -> "Figure | None":
    """NC1 of the representation after each block on the test set (measurement layers): 0 if each class is one point.

    Left, the local models after training (mean over the watched clients), right, the server's; mean over seeds.
    """
    return _draw_layers(selection, "NC1", logarithmic=True)


def _singular_values(study: Results) -> Parts:
    """Yields singular values of the classifier's weight in the server's model, mean over seeds, at a few rounds.

    The rounds are common to all runs. Values that are not finite, and of another number than in the arm's first run,
    are left out.
    """
    runs, width = [], {}
    for run in study.runs:
        if saved := saved_by(run, "singular_values", singular_values="2f"):
            values = saved["singular_values"]
            found = {r: of for r, of in zip(saved["round"].tolist(), values, strict=True) if np.isfinite(of).all()}
            if found and width.setdefault(run.arm, values.shape[1]) == values.shape[1]:
                runs.append((run.arm, found))
    rounds = sorted(set.intersection(*(set(of) for _, of in runs))) if runs else []
    places = np.unique(np.linspace(0, len(rounds) - 1, _ROUNDS).round().astype(int)) if rounds else ()
    parts = [
        {"arm": arm, "round": rounds[i], "index": range(1, 1 + width[arm]), "singular value": of[rounds[i]]}
        for arm, of in runs
        for i in places
    ]
    yield mean_over_seeds(parts, ["arm", "round", "index"])


@draws(_singular_values)
def head_spectra(study: Results, selection: DataFrame) -> Figure:
    """Singular values of the weight of the server model's classifier (measurement head_spectrum), mean over seeds.

    At a few rounds: where the last values are small, the classifier uses fewer dimensions.
    """
    rounds, colours, parts = selection["round"].unique(), colours_of(study), by_arm(selection)
    strengths = dict(zip(rounds, np.linspace(0.25, 1, len(rounds)) if len(rounds) > 1 else [1], strict=True))
    figure, panels = drawing.panels_of([*parts], "index of the singular value", "singular value", sharey=True)
    for axes, (arm, part) in zip(panels, parts.items(), strict=True):
        for r, of_round in by_arm(part, "round").items():
            axes.plot(of_round["index"], of_round["singular value"], color=colours[arm], alpha=strengths[r], marker=".")
        axes.set_ylim(bottom=0)
    looks = [{"color": drawing.INK, "alpha": alpha} for alpha in strengths.values()]
    drawing.legend(figure, looks, [f"round {r}" for r in strengths])
    return figure
