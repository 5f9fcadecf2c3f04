"""Does rank collapse of adapters cost accuracy? Energy beyond a rank and accuracy, of every arm, setting and seed.

    python experiments/launch.py --config=experiments/configs/adapters/rank_collapse.py --workdir=STUDY
    fedjax-collapse adapter-rank STUDY [--base=fedit] [--beyond=2] [--out=FOLDER]

The energy is the share of the squared norm of the server's products beyond the first directions (``beyond_2``), the
mean over layers, by the measurement that the config calls ``adapters``. Gains in accuracy are over the run of the base
arm with the same seed on the same partition, after the last round. The folder (by default ``adapter_rank`` in the
study's) gets ``runs.csv``, with a row for each run and evaluated round, and the figure as SVG, PDF and PNG: energy over
the rounds, a panel for each setting, and the gains over the energies after the last round. Printed are a table for each
setting, mean ± standard deviation over seeds, with Student's t interval of the mean gain; and Spearman's rank
correlations of accuracy with energy: over the arms' means, and over all runs, of gains. Arms that share seeds and
methods are not independent; n is a number of points, not of experiments.

Exit status: 0, or 2 for invalid input (a one-line message).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from experiments.parser import Parser, print_result
from experiments.research.rank_and_accuracy import spearman
from experiments.waiting import wait
from fedjax_collapse.core.records import MEASURED, UserError
from fedjax_collapse.results import Results, load
from fedjax_collapse.results.comparing import CONFIDENCE, compare, pairs
from fedjax_collapse.results.metrics import ACCURACY, number, show_number
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.study import Run
from fedjax_collapse.results.summaries import mean_and_std
from fedjax_collapse.results.tables import text_table
from fedjax_collapse.results.writing import csv_text, markdown
from fedjax_collapse.schema.names import check_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOOR = 1e-6  # of energies in the figure, whose axis is logarithmic


class Curve(NamedTuple):
    """A run: its evaluated rounds, and what was measured then."""

    setting: str
    arm: str
    seed: int
    rounds: np.ndarray
    energy: np.ndarray  # share of the squared norm beyond the first directions
    rank: np.ndarray  # effective, of the server's products
    accuracy: float  # percent, after the last round
    gain: float  # points over the base arm; NaN without such a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    options = command_line().parse_args(arguments)
    return print_result(lambda: _write(options.folder, options.out, options.base, options.beyond))


def _write(folder, out, base, beyond):
    """Writes the rows and the figure; returns the text that is printed."""
    out = out or folder / "adapter_rank"
    with wait(f"reading {folder}"):
        study = load(folder)
    curves = curves_of(study, base, f"{MEASURED}adapters/beyond_{beyond}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "runs.csv").write_text(csv_text(rows_of(curves), None), encoding="utf-8")
    figure = draw(curves, base, beyond)
    for kind in drawing.FIGURES:
        drawing.save_figure(figure, out / f"adapter_rank.{kind}")
    tables = {name: table([c for c in curves if c.setting == name], base) for name in _settings(curves)}
    parts = [text for name, of_setting in tables.items() for text in (f"**{name}**", of_setting)]
    return "\n\n".join([*parts, correlations(curves, base), f"wrote {out}"])


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="STUDY")
    parser.add_argument("--base", default="fedit", metavar="ARM", help="the arm that gains in accuracy are over")
    parser.add_argument("--beyond", type=int, choices=(1, 2, 4), default=2, help="how many directions do not count")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write runs.csv and the figure")
    return parser


def curves_of(study: Results, base: str, metric: str) -> list[Curve]:
    """Returns the finished runs in which the metric was measured.

    Raises:
        UserError: there are none, or the study has no such arm.
    """
    check_name(f"arm in --base of {study.path}", base, study.arms)
    cells = dict.fromkeys(run.cell for run in study.runs)
    bases = {(run.cell, run.seed): other for cell in cells for run, other in pairs(study, cell, base)}
    curves = [
        _curve(run, bases.get((run.cell, run.seed)), metric)
        for run in study.runs
        if run.is_finished and any(metric in row for row in run.metrics)
    ]
    if not curves:
        raise UserError(f"{study.path}: no finished run has {metric}; take measurements as rank_collapse.py does")
    return curves


def _curve(run: Run, base: Run | None, metric: str) -> Curve:
    rows = [row for row in run.metrics if metric in row]
    rounds, energy, rank = (
        np.array([number(row.get(name)) for row in rows])
        for name in ("round", metric, f"{MEASURED}adapters/effective_rank")
    )
    accuracy, of_base = (math.nan if of is None else ACCURACY.factor * _accuracy(of) for of in (run, base))
    return Curve(run.setting, run.arm, run.seed, rounds, energy, rank, accuracy, accuracy - of_base)


def _accuracy(run):
    return number(run.metrics[-1].get(ACCURACY.name))


def rows_of(curves: Sequence[Curve]) -> pd.DataFrame:
    """Returns a row for each run and measured round."""
    names = ("setting", "arm", "seed", "round", "energy", "effective_rank", "accuracy", "gain")
    rows = [
        (c.setting, c.arm, c.seed, int(round), energy, rank, c.accuracy, c.gain)
        for c in curves
        for round, energy, rank in zip(c.rounds, c.energy, c.rank, strict=True)
    ]
    return pd.DataFrame(rows, columns=names)


def table(curves: Sequence[Curve], base: str) -> str:
    """Returns means and standard deviations over the seeds of a setting, as Markdown."""
    of_gains = [f"gain over {base}", f"{100 * CONFIDENCE:.0f} % interval", "up"]
    heading, rows = ["arm", "seeds", "energy, first round", "last", "effective rank", "accuracy", *of_gains], []
    for arm, own in _by_arm(curves).items():
        first, last, rank = (
            [getattr(c, name)[at] for c in own] for name, at in (("energy", 0), ("energy", -1), ("rank", -1))
        )
        shown = [_spread(first, ".4f"), _spread(last, ".4f"), _spread(rank), _spread([c.accuracy for c in own])]
        rows.append([arm, str(len(own)), *shown, *([""] * 3 if arm == base else _gains([c.gain for c in own]))])
    return markdown(text_table("", heading, rows)).rstrip()


def _gains(gains):
    """Returns the mean of an arm's gains, the interval of the mean, and how many are positive."""
    known = [gain for gain in gains if not math.isnan(gain)]
    of = compare(known)
    interval = f"{show_number(of.low, '+.1f')} to {show_number(of.high, '+.1f')}" if of.has_interval else "-"
    return [show_number(of.mean, "+.1f"), interval, f"{sum(gain > 0 for gain in known)} of {len(known)}"]


def correlations(curves: Sequence[Curve], base: str) -> str:
    """Returns Spearman's correlations of accuracy with the energy after the last round, as Markdown, and their n.

    Over the arms' mean accuracies and energies, and over the gains of all runs but those of the base arm.
    """
    heading, rows = ["setting", "rho over arms", "n", "rho over runs, of gains", "n"], []
    for setting in _settings(curves):
        of_setting = [curve for curve in curves if curve.setting == setting]
        arms = [
            (_mean(c.energy[-1] for c in own), _mean(c.accuracy for c in own)) for own in _by_arm(of_setting).values()
        ]
        runs = [(c.energy[-1], c.gain) for c in of_setting if c.arm != base and math.isfinite(c.gain)]
        found = [(show_number(spearman(*np.reshape(of, (-1, 2)).T), "+.2f"), str(len(of))) for of in (arms, runs)]
        rows.append([setting, *found[0], *found[1]])
    return markdown(text_table("", heading, rows)).rstrip()


@drawing.styled
def draw(curves: Sequence[Curve], base: str, beyond: int) -> "Figure":
    """Energy over the rounds, a panel for each setting, above gains over the energies after the last round."""
    from matplotlib.ticker import NullFormatter

    settings, arms = _settings(curves), list(dict.fromkeys(curve.arm for curve in curves))
    figure = drawing.new_figure(5.0, width=2.7 * len(settings) + 0.6)
    panels = drawing.grid_of(figure, 2 * len(settings), len(settings), sharey="row")
    for above, below, setting in zip(panels, panels[len(settings) :], settings, strict=False):
        for index, arm in enumerate(arms):
            own = [curve for curve in curves if (curve.setting, curve.arm) == (setting, arm)]
            look = dict(color=drawing.arm_colour(arms, arm), marker=drawing.MARKERS[index % len(drawing.MARKERS)])
            if own:
                means = np.mean([np.maximum(curve.energy, _FLOOR) for curve in own], axis=0)
                above.plot(own[0].rounds, means, label=drawing.label(arm), markersize=3, linewidth=1.2, **look)
            points = [(max(curve.energy[-1], _FLOOR), curve.gain) for curve in own if arm != base]
            below.scatter(*np.reshape(points, (-1, 2)).T, s=12, alpha=0.7, linewidths=0, **look)
        above.set(title=drawing.label(setting), xlabel="round", yscale="log")
        drawing.whole_numbers(above.xaxis)
        if any(math.isfinite(c.gain) for c in curves if c.setting == setting and c.arm != base):
            below.axhline(0, **drawing.THRESHOLD, zorder=1)
            below.set(xlabel=f"energy beyond rank {beyond}, last round", xscale="log")
            below.xaxis.set_minor_formatter(NullFormatter())
        else:
            below.remove()
    panels[0].set_ylabel(f"energy beyond rank {beyond}")
    panels[len(settings)].set_ylabel(f"gain over {drawing.label(base)} (points)")
    found = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawing.legend(figure, list(found.values()), list(found))
    return figure


def _settings(curves):
    return list(dict.fromkeys(curve.setting for curve in curves))


def _by_arm(curves):
    """Returns the runs of each arm."""
    arms = dict.fromkeys(curve.arm for curve in curves)
    return {arm: [curve for curve in curves if curve.arm == arm] for arm in arms}


def _mean(values):
    return mean_and_std(list(values))[0]


def _spread(values, form=".1f"):
    """Returns mean and standard deviation over seeds."""
    mean, std = mean_and_std(values)
    return show_number(mean, form) + f" ± {show_number(std, form)}" * (len(values) > 1)
