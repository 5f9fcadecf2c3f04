"""Tables of results: means over seeds, differences between arms, arms by settings, rounds to a target, and times."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.config.cells import CellName, means_of, names_in
from fedjax_collapse.results import metrics
from fedjax_collapse.results.annotations import DataFrame
from fedjax_collapse.results.comparing import CONFIDENCE, best_of, comparison, dead_notes, of_one_seed, why_none
from fedjax_collapse.results.metrics import Metric, is_measured, number, show_number
from fedjax_collapse.results.paper import Moments, Paper, Published, agreement_note, paper_of, published, published_for
from fedjax_collapse.results.study import Results, Run
from fedjax_collapse.results.summaries import moments
from fedjax_collapse.results.writing import Grey, Table, text_table
from fedjax_collapse.schema.names import check_name

BEST = (
    "Bold: the best mean; underlined: arms whose difference from it over pairs of runs has an interval "
    f"({100 * CONFIDENCE:.0f} %) that contains 0."
)
_DIFFERENCE = (
    f"Difference: mean ± standard deviation over pairs of runs with the same seed, partition and round; "
    f"{100 * CONFIDENCE:.0f} % interval of the mean by Student's t; p by Wilcoxon's signed-rank test, two-sided, "
    "not corrected for the number of arms."
)
_SMALL = 0.05  # a note tells if the test can never give a smaller p than this
_MIB = 2**20
_HEADINGS = CellName("Setting", "Arm")
_TIMES = ("evaluate", "round_bytes", "stored_bytes")  # of a row of timing


def chosen(studies: Sequence[Results], names: str, what: str = "column in --columns") -> list[Metric]:
    """Returns the metrics that a text names, with commas between them; measurements also without their prefix.

    ``what`` says what a name is of, in the error.

    Raises:
        UserError: a name is unknown to all of the studies.
    """
    known = dict.fromkeys(name for study in studies for run in study.runs for name in run.numbers)
    short = {name.removeprefix(metrics.MEASURED): name for name in known}
    found = [short.get(name, name) for name in names_in(names, {*short, *known})] if names else []
    for name in found:
        check_name(what, name, known)
    return [*map(metrics.metric_of, dict.fromkeys(found))]


def columns_of(study: Results) -> list[Metric]:
    """Returns the metrics that have a column, including custom measurements: those that have a number in some cell."""
    names = list(study.final)
    own = map(metrics.metric_of, metrics.panels([name for name in names if is_measured(name)]))
    order = [*map(metrics.metric_of, filter(metrics.is_privacy, names))]
    order += metrics.ACCURACIES if study.score == metrics.ACCURACY else ()
    order += metrics.SCORES + metrics.OF_OWN_TESTS + metrics.RANKS + (metrics.DEAD_FEATURES,)
    order += metrics.OVER_CLIENTS if metrics.OVER_CLIENTS[0].name in names else (metrics.R, metrics.LOCAL_DEAD_FEATURES)
    found = [metric for metric in (*order, *own) if _is_shown(study, metric)]
    return found if study.score in found else [study.score, *found]


def _is_shown(study: Results, metric: Metric) -> bool:
    means = [study.moments(cell, metric.name)[0] for cell in study.cells]
    return any(mean > 0 for mean in means) if metric.is_rare else not all(map(math.isnan, means))


def final_table(study: Results, columns: Sequence[Metric] = ()) -> Table:
    """Returns a row for each cell: mean ± standard deviation over seeds of each metric, and the number of seeds.

    ``columns`` are the metrics, by default all that have a column.
    """
    columns = columns or columns_of(study)
    best, rows = [best_of(study, metric) for metric in columns], []
    for cell in study.cells:
        moments = [study.moments(cell, metric.name) for metric in columns]
        shown = (of.get(cell, str)(text) for of, text in zip(best, map(show_moments, columns, moments), strict=True))
        rows.append([*_labels(study, cell), *shown, str(max(n for *_, n in moments))])
    heading = [*_labels(study), *(metric.heading for metric in columns), "Seeds"]
    notes = accuracy_note(study), local_note(study), BEST if any(best) else ""
    return text_table("Results after the last round", heading, rows, notes, len(_labels(study)))


def show_moments(metric: Metric, moments: Moments, with_seeds: bool = False) -> str:
    """Formats mean ± standard deviation; ``with_seeds`` adds the number of seeds: ``1.5 ± 0.5 (2)``."""
    mean, std, n = moments
    text = metric.show(mean)
    if text == "-":
        return text
    deviation = metric._replace(format=metric.format.lstrip("+")).show(std)
    return text + f" ± {deviation}" * (deviation != "-") + f" ({n})" * with_seeds


def _labels(study: Results, cell: CellName = _HEADINGS) -> list[str]:
    """Returns the cells that name a row; by default the headings of these columns."""
    return list(cell[not study.has_settings : 2])


def accuracy_note(study: Results) -> str:
    """Explains which model's accuracies the tables have, as recorded.

    An arm is named once if the explanation is the same in all settings.
    """
    kinds = {cell: meaning for cell, meaning in study.headlines.items() if meaning}
    meanings = {arm: {of for cell, of in kinds.items() if cell.arm == arm} for arm in study.arms}
    named: dict[str, dict[str, None]] = {}
    for cell in sorted(kinds, key=lambda cell: study.arms.index(cell.arm)):
        named.setdefault(kinds[cell], {})[cell.arm if len(meanings[cell.arm]) == 1 else str(cell)] = None
    known = [f"{meaning} ({', '.join(names)})" if len(named) > 1 else meaning for meaning, names in named.items()]
    of = f"of the {'; of the '.join(known)} " if known else ""
    if study.score != metrics.ACCURACY:
        return f"{study.score.quantity.capitalize()}: {of}after the last round."
    return f"Accuracy: {of}after the last round; best and mean of the last 10 are over evaluated rounds."


def local_note(study: Results) -> str:
    """Explains which local models R and the local effective rank are of, as recorded."""
    whose = sorted({run.local for run in study.runs if run.local})
    is_over_clients = any(metrics.OVER_CLIENTS[0].name in run.numbers for run in study.runs)
    over = ": the mean over them, the lowest and the highest of them, each a mean over seeds" * is_over_clients
    return f"R and other values of local models: of {'; of '.join(whose)}{over}." if whose else ""


def unlike_note(study: Results, base: str) -> str:
    """Names the arms that are not compared with ``base`` because their accuracies are of another kind of model."""
    of_base = {cell.setting: of for cell, of in study.headlines.items() if cell.arm == base}
    unlike = [cell.arm for cell, of in study.headlines.items() if of and of_base.get(cell.setting, of) not in ("", of)]
    names = ", ".join(dict.fromkeys(unlike))
    return f"Not compared with {base}, as their accuracy is of something else: {names}." if names else ""


def unfinished_note(study: Results) -> str:
    """Names the runs that are not in the tables, with their last rounds; empty if all are finished."""
    runs = ", ".join(f"{run.cell} seed {run.seed} ({far})" for run, far in study.unfinished)
    return f"Unfinished, and not in the tables: {runs}." if runs else ""


def state_notes(study: Results) -> list[str]:
    """Names dead, unfinished and damaged runs."""
    damaged = (note for run in study.runs for note in run.notes)
    return [note for note in (*dead_notes(study), unfinished_note(study), *damaged) if note]


def difference_tables(study: Results, base: str = "", columns: Sequence[Metric] = ()) -> list[Table]:
    """Returns a table of differences for each metric, by default the headline; none if there is no other arm.

    Differences are to ``base``, by default the first arm, in the same setting.
    """
    base = base or study.base
    cells = [cell for cell in study.cells if cell.arm != base]
    return [_differences(study, cells, base, metric) for metric in columns or [study.score]] if cells else []


def _differences(study: Results, cells: list[CellName], base: str, metric: Metric) -> Table:
    unit = {"%": " (points)", "": ""}.get(metric.unit, f" ({metric.unit})")
    heading = [*_labels(study), f"Difference{unit}", f"{100 * CONFIDENCE:.0f} % interval", "p (Wilcoxon)", "Pairs"]
    signed, rows, most = metric._replace(format=f"+{metric.format}"), [], 0
    without: dict[str, list[str]] = {}
    for cell in cells:
        of = comparison(study, cell, base, metric)
        low_to_high = f"{signed.show(of.low)} to {signed.show(of.high)}" if of.has_interval else "-"
        shown = show_moments(signed, of[:3]), low_to_high, show_number(of.p, ".2g"), str(of.n)
        rows.append([*_labels(study, cell), *shown])
        most = max(most, of.n)
        if not of.n:
            without.setdefault(why_none(study, cell, base, metric), []).append(str(cell))
    notes = [_DIFFERENCE]
    smallest = 2.0 ** (1 - most)  # if all differences have one sign
    if most > 1 and smallest > _SMALL:
        notes.append(f"With {most} pairs or fewer, p cannot be below {smallest:.4g}.")
    if most < 2:
        notes.append("With fewer than two pairs there is neither an interval nor p.")
    if without:
        none = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
        notes.append(f"No difference to {base}: {none}.")
    title = f"{metric.quantity.capitalize()}: differences from {base}"
    return text_table(title, heading, rows, [" ".join(notes)], len(_labels(study)))


def pivot_metrics(study: Results, columns: Sequence[Metric] = ()) -> list[Metric]:
    """Returns the metrics of tables of arms by settings: by default all, first the paper's, or the headline.

    A study with a paper and without settings has only this one; a study with neither has none.
    """
    paper = paper_of(study.config)
    first = paper.metric if paper else study.score
    if not study.has_settings:
        return [first] if paper else []
    return list(dict.fromkeys(columns or [first, *columns_of(study)]))


def pivots(study: Results, columns: Sequence[Metric] = ()) -> list[Table]:
    """Returns arms by settings of each of ``pivot_metrics``."""
    return [pivot(study, metric, paper_of(study.config)) for metric in pivot_metrics(study, columns)]


def pivot(study: Results, metric: Metric = metrics.ACCURACY, paper: Paper | None = None) -> Table:
    """Returns mean ± standard deviation (number of seeds) of the metric for each arm and setting.

    Further columns are those of the config's ``means``, each a mean over settings, all of which must have the arm, and
    of the paper, shown as this metric is. Comparable numbers of a paper with this metric are in the same cells, others
    in rows of their own.
    """
    arms, settings = (dict.fromkeys(getattr(cell, part) for cell in study.cells) for part in ("arm", "setting"))
    paper = paper if paper and paper.metric == metric else None
    columns = {setting: (setting, metric.name) for setting in settings}
    columns |= {name: place for name, place in paper.columns.items() if place[0] in settings} if paper else {}
    means = means_of(study.config)
    best = {key: best_of(study, metrics.metric_of(key)) for key in {key for _, key in columns.values()}}
    rows, found = [], {}
    for arm in arms:
        moments, ours = {}, []
        for name, (setting, key) in columns.items():
            cell = CellName(setting, arm)
            moments[name] = _moments(study, paper, cell, key)
            ours.append(best[key].get(cell, str)(show_moments(metric, moments[name], with_seeds=True)))
        over = ([moments.get(of, (math.nan,))[0] for of in settings] for settings in means.values())
        ours += [metric.show(sum(of_mean) / len(of_mean)) for of_mean in over]
        theirs = [paper and published(paper, metric, of, arm, moments.get(of)) for of in (*columns, *means)]
        found |= {f"{arm} at {of}" if of else arm: it for of, it in zip((*columns, *means), theirs, strict=True) if it}
        if paper and paper.comparable:
            both = zip(ours, theirs, strict=True)
            ours = [type(own)(f"{own} {it.mark} paper {it}") if it else own for own, it in both]
        rows.append([arm, *ours])
        if paper and not paper.comparable and any(theirs):
            rows.append([*map(Grey, (f"{arm} (paper, not comparable)", *(it or "" for it in theirs)))])
    notes = [accuracy_note(study)] if metric.unit == "%" else []
    if paper:
        about = paper_note(paper), agreement_note(found), unlike_note(study, paper.target)
        notes.append(f"Paper: {' '.join(filter(None, about))}")
    notes += [BEST] if any(best.values()) else []
    heading = ["Arm", *(name or metric.heading for name in columns), *means]
    return text_table(f"{metric.heading} of all cells", heading, rows, notes)


def _moments(study: Results, paper: Paper | None, cell: CellName, key: str) -> Moments:
    if paper and key == metrics.TO_TARGET.name:
        return rounds_to_target(study, cell, paper.target).rounds
    return study.moments(cell, key)


def paper_note(paper: Paper) -> str:
    """Returns a sentence that explains the paper's numbers."""
    unit = paper.metric.quantity
    if paper.target:
        unit = f"rounds to the best accuracy of {paper.target} with the same seed; its own are all its rounds"
    of = "" if paper.is_percent else f" ({unit})"
    return f"{paper.source}{of}" + ("." if paper.comparable else f"; not comparable: {paper.why.rstrip('.')}.")


class Reached(NamedTuple):
    """How the runs of an arm have reached the targets of their seeds."""

    rounds: Moments  # over the runs that have reached it
    speedup: float  # the base's rounds over the mean; NaN if no run has reached it
    num_runs: int  # the number of runs whose seed has a target


def rounds_to_target(study: Results, cell: CellName, base: str) -> Reached:
    """Returns a cell's rounds to the target: the best accuracy of ``base`` in the same setting with the same seed.

    Only evaluated rounds of finished runs count, and only accuracies of the same kind of model as those of ``base``. As
    in FedMR's table 4 (Fan et al., TMLR 2023), ``base`` itself is listed with all its rounds, and the speed-up is their
    number over the arm's.
    """
    alike = [pair for pair in of_one_seed(study, cell, base) if pair[0].headline == pair[1].headline]
    both = [(other.last_round if cell.arm == base else _round_of(run, other), other.last_round) for run, other in alike]
    rounds, lengths = np.array([pair for pair in both if pair[0]]).reshape(-1, 2).T
    return Reached(moments(rounds), lengths.sum() / rounds.sum() if len(rounds) else math.nan, len(alike))


def _round_of(run: Run, base: Run) -> int | None:
    """Returns the first round in which a run has the base run's best accuracy."""
    target = np.nanmax([row.get(metrics.ACCURACY.name, math.nan) for row in base.metrics])
    return next((row["round"] for row in run.metrics if row.get(metrics.ACCURACY.name, math.nan) >= target), None)


def target_table(study: Results, base: str) -> Table:
    """Returns a row for each arm: for each setting its rounds to the target and the speed-up.

    Raises:
        UserError: no arm of the study has that name.
    """
    check_name("arm in --target", base, study.arms)
    reached = {
        arm: [rounds_to_target(study, CellName(setting, arm), base) for setting in study.settings] for arm in study.arms
    }
    rows = [[arm, *(text for of in of_arm for text in _shown_reached(of))] for arm, of_arm in reached.items()]
    note = (
        f"Rounds: the first evaluated one with the best accuracy of {base} in the same setting with the same seed; "
        f"mean ± standard deviation over the seeds that reach it. {base} is listed with all its rounds; the speed-up "
        "is their number over the arm's."
    )
    names = (f"{setting}: {name}".removeprefix(": ") for setting in study.settings for name in ("rounds", "speed-up"))
    return text_table(f"Rounds to {base}", ["Arm", *names], rows, [f"{note} {unlike_note(study, base)}".rstrip()])


def _shown_reached(reached: Reached) -> tuple[str, str]:
    mean, std, n = reached.rounds
    if not n:
        return "not reached" if reached.num_runs else "-", "-"
    text = show_number(mean, ".4g") + f" ± {show_number(std, '.2g')}" * (n > 1)
    return f"{text} ({n} of {reached.num_runs})", f"{show_number(reached.speedup, '.2f')}x"


def timing_table(study: Results) -> Table | None:
    """Returns a row for each arm, medians over its rounds; None if none was timed.

    Seconds per round are training without compilation. A run's first rows after its starts, when devices are
    not warm, are left out as soon as there are others. Per client: divided by the clients that trained in those rounds,
    whether one after the other or at once.
    """
    heading = ["Arm", "Runs", "Rounds timed", "Seconds per round", "per client", "Evaluation (s)"]
    heading += ["Round on a device (MiB)", "Stored there (MiB)"]
    rows = [_times(study, arm) for arm in study.arms if any(run.timing for run in study.of_arm(arm))]
    return text_table("Time", heading, rows) if rows else None


def _times(study: Results, arm: str) -> list[str]:
    import pandas as pd

    runs, together = [run for run in study.of_arm(arm) if run.timing], study.shared_by(arm)
    rows = [row | {"rounds": n, "clients": _trained(run, row, n)} for run in runs for row, n in run.steady()]
    timed = pd.DataFrame(rows).reindex(columns=["rounds", "clients", "train", *_TIMES])
    per_round, per_client = (timed["train"] / timed[name].where(timed[name] > 0) for name in ("rounds", "clients"))
    shown = [show_number(values.median(), ".3g") for values in (per_round, per_client, timed["evaluate"])]
    shown += [show_number(timed[name].median() / _MIB, ".1f") for name in _TIMES[1:]]
    names = f"{len(runs)}" + f" ({together} as one program)" * (together > 1)
    return [arm, names, str(timed["rounds"].sum()), *shown]


def _trained(run: Run, row: Mapping[str, Any], count: int) -> int:
    """Returns the number of times that a client trained in the rounds of a row; 0 if not recorded."""
    if "steps" not in run.clients:
        return 0
    rounds = run.clients["round"]
    covered = (rounds > row["round"] - count) & (rounds <= row["round"])
    return int(np.sum(run.clients["steps"][covered] > 0))


def seeds_frame(study: Results, columns: Sequence[Metric] = ()) -> DataFrame:
    """Returns the metrics of every finished run in their units: a row a seed, with swept values as columns."""
    import pandas as pd

    columns, names = columns or columns_of(study), _labels(study)
    rows = [
        dict(zip(names, _labels(study, run.cell), strict=True))
        | {axis: run.values.get(axis, "") for axis in study.axes}
        | {"Seed": run.seed}
        | {metric.heading: metric.factor * run.numbers.get(metric.name, math.nan) for metric in columns}
        for run in study.finished().runs
    ]
    return pd.DataFrame(rows)


def means_frame(study: Results, base: str = "", columns: Sequence[Metric] = ()) -> DataFrame:
    """Returns mean, standard deviation and number of seeds of every metric in separate columns, a row for each cell.

    Differences have the base arm, the interval and p, too. The paper's numbers follow, with how they compare with ours.
    The last columns name the model that is scored, and the runs that are left out.
    """
    import pandas as pd

    base, paper = base or study.base, paper_of(study.config)
    columns, compared = columns or columns_of(study), columns or [study.score]
    unfinished, rows = study.unfinished, []
    for cell in study.cells:
        row: dict[str, Any] = dict(zip(_labels(study), _labels(study, cell), strict=True))
        for metric in columns:
            mean, std, n = study.moments(cell, metric.name)
            row |= _parts(metric.heading, mean=metric.factor * mean, std=metric.factor * std, n=n)
        for metric in compared if cell.arm != base else ():
            of = comparison(study, cell, base, metric)
            scaled = {part: metric.factor * getattr(of, part) for part in ("mean", "std", "low", "high")}
            why = "" if of.n else why_none(study, cell, base, metric)
            row |= _parts(f"{metric.heading} difference", **{"from": base}, **scaled, n=of.n, p=of.p, note=why)
        for metric in columns if paper else ():
            their: Published | None = published_for(paper, cell, metric, study.moments(cell, metric.name))
            if their:
                row |= _parts(f"{metric.heading} paper", mean=their.mean, std=number(their.spread), note=their.word)
        row |= {"Accuracy (%): of": study.headlines.get(cell, "")}
        row |= {"R: of": ", ".join(sorted({run.local for run in study.of_cell(cell) if run.local}))}
        row["Unfinished"] = ", ".join(f"seed {run.seed} ({far})" for run, far in unfinished if run.cell == cell)
        rows.append(row)
    return pd.DataFrame(rows)


def _parts(heading: str, **parts: Any) -> dict[str, Any]:
    return {f"{heading}: {name}": value for name, value in parts.items()}
