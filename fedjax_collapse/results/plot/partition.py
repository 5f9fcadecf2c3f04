"""The partition of a study: a figure of the classes of every client, and a table of its heterogeneity."""

import numpy as np

from fedjax_collapse.core.round_arrays import Arrays
from fedjax_collapse.data.partition.heterogeneity import heterogeneity
from fedjax_collapse.results.annotations import Axes, DataFrame, Figure
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.drawing import WIDE, Parts, draws, label, new_figure, styled, whole_numbers
from fedjax_collapse.results.study import Results, Run
from fedjax_collapse.results.tables import Table, text_table

FEW = 20  # the most clients with room for numbers


def _class_counts_of_first(study: Results) -> Parts:
    """Yields the examples of each class at each client, for the first run that recorded its partition."""
    for run in recorded(study)[:1]:
        counts, names = run.partition["class_counts"], list(map(str, run.partition.get("class_names", ())))
        names = names if len(names) == counts.shape[1] else map(str, range(counts.shape[1]))
        of_class = dict(zip(names, counts.T, strict=True))
        yield {"arm": run.arm, "seed": run.seed, "client": range(len(counts))} | of_class


@draws(_class_counts_of_first)
def partition(study: Results, selection: DataFrame) -> Figure:
    """Left: number of training examples that each client holds of each class, in the first run.

    The fewer dark cells in a row, the more heterogeneous the clients. Right: the client's size; the number of classes
    it holds; the entropy of its class distribution (0 for a single class, dotted: log of the number of classes, for
    equal shares). The table has a row for every different partition, entropies in nats. Mutual information of an
    example's client and class is the mean, weighted by size, of the KL divergence of a client's class distribution from
    that of all examples: 0 if all clients have the same distribution, the entropy of all examples' classes (the second
    number) if each client has one class.
    """
    run = recorded(study)[0]
    return draw_partition(run.partition, f"{label(run.arm, 20)}, seed {run.seed}")


@styled
def draw_partition(arrays: Arrays, name: str) -> Figure:
    """A heat map of ``class_counts`` [clients, classes], with each client's size, number of classes and entropy."""
    class_counts = arrays["class_counts"]
    clients, classes = class_counts.shape
    skew = heterogeneity(class_counts)
    figure = new_figure(float(np.clip(1.9 + 0.26 * clients, 2.9, 5.6)), WIDE)
    cells, *panels = figure.subplots(1, 4, sharey=True, width_ratios=(4, 1, 1, 1))
    _draw_cells(cells, class_counts, name)
    _write_names(cells, arrays)
    columns = (
        ("size\n(examples)", skew.sizes, "{:.0f}", None, ""),
        ("classes held", skew.classes, "{:.0f}", classes, f"max. {classes}"),
        ("entropy of the\nclasses (nats)", skew.entropy, "{:.2f}", np.log(classes), f"max. log {classes}"),
    )
    for axes, (heading, values, written, most, mark) in zip(panels, columns, strict=True):
        _draw_bars(axes, values, written, most)
        axes.set_xlabel(heading)
        axes.set_title(mark, loc="right", fontsize="small")
    return figure


def _draw_bars(axes: Axes, values: np.ndarray, written: str, most: float | None) -> None:
    """Draws a horizontal bar for each of the values, with its number if there is room; thousands as one outline.

    A dotted line marks the largest possible value, ``most``.
    """
    if most is not None:
        axes.axvline(most, **drawing.THRESHOLD)
    if len(values) <= FEW:
        bars = axes.barh(range(len(values)), values, color=drawing.BAR)
        axes.bar_label(bars, fmt=written, padding=3, fontsize="small")
    else:
        edges, look = np.arange(len(values) + 1) - 0.5, {"fill": True, "color": drawing.BAR}
        axes.stairs(values, edges, orientation="horizontal", rasterized=len(values) > 500, **look)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(1.04 * (most or 0), max(values) * (1.6 if len(values) <= FEW else 1.04)) or 1)
    axes.locator_params(axis="x", nbins=3, integer=np.issubdtype(values.dtype, np.integer))


def partition_table(study: Results) -> Table | None:
    """Returns a row for each different partition of the study's runs; None if none was recorded."""
    runs_on: dict[tuple, list[Run]] = {}
    for run in recorded(study):
        counts = run.partition["class_counts"]
        runs_on.setdefault((counts.shape, counts.tobytes()), []).append(run)
    heading = ["Arms", "Seeds", "Sizes", "Median size", "Classes per client", "Mean entropy", "Mutual information"]
    rows = [_statistics(runs, study) for runs in runs_on.values()]
    return text_table("Partitions", heading, rows) if rows else None


def _statistics(runs: list[Run], study: Results) -> list[str]:
    """Returns the row of a table for runs on one partition."""
    arms, seeds = dict.fromkeys(run.arm for run in runs), sorted({run.seed for run in runs})
    skew = heterogeneity(counts := runs[0].partition["class_counts"])
    return [
        "all" if len(arms) == len(study.arms) else ", ".join(arms),
        ", ".join(map(str, seeds)),
        _range(skew.sizes),
        f"{np.median(skew.sizes):g}",
        f"{_range(skew.classes)} of {counts.shape[1]}",
        f"{skew.entropy.mean():.3f}",
        f"{skew.mutual_information:.3f} of {skew.class_entropy:.3f}",
    ]


def _draw_cells(axes: Axes, counts: np.ndarray, name: str) -> None:
    """Draws the heat map, with numbers in its cells if they fit, and its colour bar above."""
    clients, classes = counts.shape
    top = max(1, counts.max())
    image = drawing.heat_map(axes, np.arange(classes), np.arange(clients), counts, cmap="Blues", vmin=0, vmax=top)
    if clients <= FEW and classes <= 12 and top < 1e5:
        size = "small" if top < 1000 else "x-small"
        for client, class_ in np.argwhere(counts > 0):
            count = counts[client, class_]
            colour = "white" if count > 0.55 * top else "#222222"
            axes.text(class_, client, f"{count:.0f}", ha="center", va="center", fontsize=size, color=colour)
    axes.set(xlabel="class", ylabel="client")
    whole_numbers(axes.xaxis, 12)
    whole_numbers(axes.yaxis, 12)
    heading = f"training examples ({name}: {counts.sum():.0f} in all)"
    axes.figure.colorbar(image, ax=axes, location="top", label=heading, aspect=40, pad=0.04)


def _write_names(axes: Axes, arrays: Arrays) -> None:
    """Labels the axes with the names of classes, and of each client's domains, if there is room."""
    clients, classes = arrays["class_counts"].shape
    names = class_names(arrays)
    if len(names) == classes <= FEW:
        turned = 0 if max(map(len, names)) <= 2 else 45
        axes.set_xticks(range(len(names)), names, rotation=turned, ha="right" if turned else "center", fontsize="small")
        axes.set_xlabel("")
    counts = arrays.get("domain_counts", np.empty((0, 0)))
    if len(counts) == clients <= FEW:
        of_client = [[str(arrays["domain_names"][i]) for i in np.flatnonzero(row)] for row in counts]
        texts = [label(f"{', '.join(names)}  {client}", 24) for client, names in enumerate(of_client)]
        axes.set_yticks(range(len(counts)), texts, fontsize="small")


def class_names(arrays: Arrays) -> list[str]:
    """Returns the names of classes for a figure; empty if none were saved, or only their numbers."""
    names = [str(name) for name in arrays.get("class_names", ())]
    return [] if names == [str(i) for i in range(len(names))] else [label(name, 14) for name in names]


def recorded(study: Results) -> list[Run]:
    """Returns the runs that recorded their partition."""
    return [run for run in study.runs if run.partition.get("class_counts", np.empty(0)).size]


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"
