"""Does fixing rank fix accuracy? What methods change in accuracy, rank, collapse and bias, run by run.

    python experiments/launch.py --config=experiments/configs/rank_and_accuracy.py --workdir=STUDY
    fedjax-collapse rank-and-accuracy STUDY [STUDY ...] [--base=fedavg] [--score=headline] [--out=FOLDER]

Differences to the base arm are taken between runs with one seed on one partition, after the last round: of accuracy,
effective rank of the server's features, NC1 (its natural logarithm), bias of the predictions and accuracy of a linear
probe. The folder (by default ``rank_and_accuracy`` in the first study's folder) gets ``runs.csv`` with a row for each
pair of runs, ``settings.csv`` with Spearman's rank correlations over the arms of each setting, ``kinds.csv`` with all
arms of all settings divided by whether they raise rank and probe and lower the bias, and the figure as SVG, PDF and
PNG. The last two tables are also printed. It works on any study; measurements are those that the config calls ``nc``
(``neural_collapse``), ``head`` (``prediction_bias``), ``probe`` (``linear_probe``) and ``personal``
(``personal_models``), with R of local models of studies with ``watch="all"``; what is not measured is left out.
``--score`` is what is compared instead of the headline
accuracy: that after fine-tuning, or of the tenth of the clients that does worst (``docs/personalised.md``).

Exit status: 0, or 2 for invalid input (a one-line message).
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from experiments.parser import Parser, print_result
from experiments.waiting import wait
from fedjax_collapse.core.records import MEASURED, UserError
from fedjax_collapse.results import Results, load
from fedjax_collapse.results.comparing import pairs, why_none
from fedjax_collapse.results.metrics import ACCURACY, number, show_number
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.tables import text_table
from fedjax_collapse.results.writing import csv_text, markdown
from fedjax_collapse.schema.names import check_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# metric -> its name in the rows, without the prefix of measurements, and the name of its difference
METRICS = {
    "effective_rank": ("effective_rank", "effective rank"),
    "nc1": ("nc/nc1", "ln NC1"),
    "bias": ("head/prediction_bias", "bias of predictions"),
    "probe": ("probe/accuracy", "probe accuracy (points)"),
    "personal_rank": ("personal/effective_rank_mean", "rank of personal models"),
    "local_r": ("R_mean", "R of local models"),
    "personal_r": ("personal/R_mean", "R of personal models"),
}
SCORES = {  # what gains are of, and how that is called
    "headline": (ACCURACY.name, "accuracy"),
    "finetuned": ("own/finetuned/accuracy/weighted", "fine-tuned accuracy"),
    "worst_decile": ("own/received/accuracy/worst_decile", "accuracy of the worst decile"),
}
_LINEAR = {"accuracy": 20, "bias": 0.2, "probe": 5}  # the linear range of axes, since arms that fail are far away
RISE = 1.0  # dimensions; a smaller increase of the rank is not counted as one when arms are divided
LEAST = 5  # the least number of arms for a correlation
Difference = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    options = command_line().parse_args(arguments)
    return print_result(lambda: _compare(options.folders, options.out, options.base, options.score))


def _compare(folders, out, base, score):
    """Writes tables and figure; returns the text that is printed."""
    out = out or folders[0] / "rank_and_accuracy"
    with wait("reading the studies"):
        studies = [load(folder) for folder in folders]
    rows = [row for study in studies for row in differences(study, base, score)]
    if not rows:
        raise UserError(f"no arm has a run of equal seed and partition as {base!r}; expected two arms")
    if not any(np.isfinite(row[ACCURACY.name]) for row in rows):
        raise UserError(f"no run has {SCORES[score][0]}; choose another --score")
    if not any(np.isfinite(row[metric]) for row in rows for metric in METRICS):
        known = ", ".join(name for name, _ in METRICS.values())
        raise UserError(f"no run has any of {known}; take measurements as configs/rank_and_accuracy.py does")
    settings, kinds = correlations(rows), divided(rows)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "runs.csv", rows)
    _write(out / "settings.csv", settings)
    _write(out / "kinds.csv", kinds)
    figure = scatter(rows, score)
    for kind in drawing.FIGURES:
        drawing.save_figure(figure, out / f"rank_and_accuracy.{kind}")
    text = "\n\n".join(filter(None, (table(settings), kinds_table(kinds))))
    return "\n".join([text, *(line for study in studies for line in left_out(study, base)), f"wrote {out}"])


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="STUDY")
    parser.add_argument("--base", default="fedavg", metavar="ARM", help="the arm that differences are to")
    parser.add_argument("--score", choices=SCORES, default="headline", help="the accuracy that is compared")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write tables and figure")
    return parser


def differences(study: Results, base: str, score: str = "headline") -> list[Difference]:
    """Returns the difference of each run of another arm to that of the base arm.

    Runs that cannot be compared, such as those with accuracies of another kind of model, are left out.

    Raises:
        UserError: the study has no such arm.
    """
    check_name(f"arm in --base of {study.path}", base, study.arms)
    declared = {name: arm.declared for arms in study.arms_in.values() for name, arm in arms.items()}
    found = []
    for cell in _others(study, base):
        of_cell = {"setting": cell.setting or study.path.name, "arm": cell.arm}
        of_cell["method"] = declared.get(cell.arm, cell.arm)
        found += [
            {**of_cell, "seed": run.seed, **_difference(run.metrics[-1], other.metrics[-1], score)}
            for run, other in pairs(study, cell, base)
        ]
    return found


def left_out(study: Results, base: str) -> list[str]:
    """Returns a message for each arm of a setting without comparable runs."""
    cells = [cell for cell in _others(study, base) if not pairs(study, cell, base)]
    return [f"{cell} is left out: {why_none(study, cell, base)}" for cell in cells]


def _others(study, base):
    """Returns the cells that have runs, except for those of the base arm."""
    return dict.fromkeys(run.cell for run in study.runs if run.arm != base)


def _difference(row, base, score):
    """Returns the differences of two rows: accuracies in percentage points, NC1 in natural logarithms."""
    name, factor = SCORES[score][0], ACCURACY.factor
    change = {ACCURACY.name: factor * (number(row.get(name)) - number(base.get(name)))}
    for metric, (name, _) in METRICS.items():
        first, second = (number(of.get(name, of.get(MEASURED + name))) for of in (row, base))
        if metric == "nc1":
            first, second = (math.log(value) if value > 0 else math.nan for value in (first, second))
        change[metric] = (100 if metric == "probe" else 1) * (first - second)
    return change


def correlations(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Returns the number of arms and the correlations of each setting.

    These are the numbers of arms that gain rank, and of those that also gain accuracy, and, over the arms' means,
    Spearman's correlation of the gain in accuracy with the gain in each metric.
    """
    found = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        means = arm_means([row for row in rows if row["setting"] == setting])
        gain = np.array([mean["accuracy"] for mean in means])
        higher = np.array([mean["effective_rank"] for mean in means]) > 0
        found.append(
            {
                "setting": setting,
                "arms": len(means),
                "higher_rank": int(higher.sum()),
                "and_higher_accuracy": int((higher & (gain > 0)).sum()),
                "higher_accuracy": int((gain > 0).sum()),
                **{metric: spearman(np.array([mean[metric] for mean in means]), gain) for metric in METRICS},
            }
        )
    return found


def arm_means(rows: Iterable[Difference]) -> list[dict[str, Any]]:
    """Returns the means of each arm's finite differences over its seeds in a setting."""
    by_arm = pd.DataFrame(rows).groupby(["setting", "arm", "method"], sort=False)
    return by_arm[["accuracy", *METRICS]].mean().reset_index().to_dict("records")


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the rank correlation, with ties averaged; NaN for fewer than ``LEAST`` finite pairs or a constant."""
    finite = np.isfinite(first) & np.isfinite(second)
    first, second = first[finite], second[finite]
    if len(first) < LEAST or not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(spearmanr(first, second).statistic)


def table(settings: Sequence[Mapping[str, Any]]) -> str:
    """Returns the result of ``correlations`` as Markdown."""
    heads = ["setting", "arms", "rank up", "rank and accuracy up", "accuracy up"]
    known = [metric for metric in METRICS if any(math.isfinite(row[metric]) for row in settings)]
    heads += [f"rho with {METRICS[metric][1]}" for metric in known]
    rows = []
    for row in settings:
        counts = (row[n] for n in ("setting", "arms", "higher_rank", "and_higher_accuracy", "higher_accuracy"))
        rows.append([*map(str, counts), *(show_number(row[metric], "+.2f") for metric in known)])
    return markdown(text_table("", heads, rows)).rstrip()


def divided(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Divides the arms of all settings by whether rank rises (``RISE``), bias falls and probe rises.

    This is decided in means over seeds. For each group: the number of arms, how many gain accuracy in the mean and in
    all seeds, and the mean gain. Arms without one of these measurements are left out.
    """
    lower = {(row["setting"], row["arm"]) for row in rows if not row["accuracy"] > 0}
    kinds = {kind: [] for kind in itertools.product((True, False), repeat=3)}
    for mean in arm_means(rows):
        if all(math.isfinite(mean[metric]) for metric in ("effective_rank", "bias", "probe")):
            kinds[mean["effective_rank"] >= RISE, mean["bias"] < 0, mean["probe"] > 0].append(mean)
    return [
        {
            **dict(zip(("rank_rises", "bias_falls", "probe_rises"), kind, strict=True)),
            "arms": len(means),
            "higher_accuracy": sum(mean["accuracy"] > 0 for mean in means),
            "in_all_seeds": sum((mean["setting"], mean["arm"]) not in lower for mean in means),
            "accuracy": float(np.mean([mean["accuracy"] for mean in means])) if means else math.nan,
        }
        for kind, means in kinds.items()
    ]


def kinds_table(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Returns the result of ``divided`` as Markdown; empty without arms."""
    if not any(kind["arms"] for kind in kinds):
        return ""
    heading = ["rank rises", "bias falls", "probe rises", "arms", "accuracy up", "in all seeds", "mean gain (points)"]
    rows = []
    for kind in kinds:
        signs = ("yes" if kind[name] else "no" for name in ("rank_rises", "bias_falls", "probe_rises"))
        counts = (str(kind[name]) for name in ("arms", "higher_accuracy", "in_all_seeds"))
        rows.append([*signs, *counts, show_number(kind["accuracy"], "+.1f")])
    return markdown(text_table("", heading, rows)).rstrip()


@drawing.styled
def scatter(rows: Sequence[Difference], score: str = "headline") -> "Figure":
    """The gain in accuracy against that of each metric, a panel each, with a point for each arm and setting.

    Colours are for settings; points are hollow if there are more settings than colours.
    """
    means = arm_means(rows)
    settings = list(dict.fromkeys(mean["setting"] for mean in means))
    metrics = [m for m in METRICS if np.isfinite([mean[m] for mean in means]).any()]
    figure = drawing.new_figure(3.2, width=2.9 * len(metrics) + 0.4)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for i, setting in enumerate(settings):
            own = [mean for mean in means if mean["setting"] == setting]
            lap, colour = i // len(drawing.COLOURS), drawing.arm_colour(settings, setting)
            look = dict(color=colour, linewidths=0) if not lap else dict(facecolors="none", edgecolors=colour)
            look["marker"] = drawing.MARKERS[(i + lap) % len(drawing.MARKERS)]
            axes.scatter([m[metric] for m in own], [m["accuracy"] for m in own], s=16, alpha=0.75, **look)
        axes.axhline(0, **drawing.THRESHOLD, zorder=1)
        axes.axvline(0, **drawing.THRESHOLD, zorder=1)
        axes.set_xlabel(f"gain in {METRICS[metric][1]}")
        if metric in _LINEAR:
            _linear_up_to(axes.set_xscale, axes.xaxis, _LINEAR[metric], [mean[metric] for mean in means])
    panels[0].set_ylabel(f"gain in {SCORES[score][1]} (points)")
    _linear_up_to(panels[0].set_yscale, panels[0].yaxis, _LINEAR["accuracy"], [mean["accuracy"] for mean in means])
    handles = panels[0].collections[: len(settings)]
    drawing.legend(figure, handles, [drawing.label(setting) for setting in settings])
    return figure


def _linear_up_to(scale, axis, most, values):
    """Makes an axis logarithmic beyond ``most`` on both sides if values are there, with numbers as tick labels."""
    from matplotlib.ticker import FixedLocator, StrMethodFormatter

    if not np.nanmax(np.abs(values)) > most:
        return
    scale("symlog", linthresh=most, linscale=1.5)
    ticks = [most * k for k in (-4, -1, -0.5, 0, 0.5, 1, 4)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _write(path, rows):
    path.write_text(csv_text(pd.DataFrame(rows), None), encoding="utf-8")
