"""Summaries of the runs of a study: their progress, and the results of those that are finished."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.results.metrics import FROM_RUNS
from experiments.results.page import write_report
from experiments.results.paper import paper_of
from experiments.results.reading import NothingEvaluated, read_run_summary, read_study
from experiments.results.study_results import summarize_seeds
from experiments.results.tables.best import best_in, mark_best, with_best
from experiments.results.tables.dead import dead_notes
from experiments.results.tables.pivots import summary_for_paper
from experiments.results.tables.table import unfinished_note
from experiments.results.up_to_date import read_made_from, record_made_from, stamps
from experiments.results.verdict import verdict
from experiments.study.failures import read_failure
from experiments.study.more_rounds import is_done
from experiments.study.progress.console import Console
from experiments.study.resolving import RunSpec
from fedjax_collapse.config.cells import CellName, RunName, cells_of, means_of
from fedjax_collapse.config.folder import REPORT, SUMMARY, run_folder
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.schema.user_code import one_line


def finish(workdir: Path, config: Mapping[str, Any], console: Console) -> list[str]:
    """Writes summary and report of the finished runs and prints the table; returns error messages.

    The report is left as it is if all from which it would be made is unchanged.
    """
    paper = paper_of(config)
    try:
        summary = summarize(workdir, cells_of(config), config["seeds"])
        write_json(workdir / SUMMARY, {str(cell): metrics for cell, metrics in summary.items()})
        made_from, now, study = read_made_from(workdir), stamps(workdir), None
        is_current = made_from.is_current(now)
        summary = mark_best(summary, made_from.best) if is_current else summary
        try:
            if not is_current or (paper and paper.metric in FROM_RUNS):
                study = read_study(workdir, console.wait)
                summary = with_best(study, summary_for_paper(study))
        except NothingEvaluated:  # for example because all runs failed
            pass
        finally:
            console.print_table(summary, paper, means_of(config))
        if is_current:
            console.note(f"{made_from.notes}\nreport: {workdir / REPORT} (up to date)")
        elif study:
            notes = verdict(study), *dead_notes(study), unfinished_note(study.unfinished), *study.notes
            console.note(notes := "\n".join(filter(None, notes)))
            console.note(f"report: {write_report(study, wait=console.wait)}")
            record_made_from(workdir, now, notes, best_in(summary))
    except (UserError, OSError) as error:
        again = f"fedjax-collapse report {shlex.quote(str(workdir))}"
        return [f"{one_line(error)}; the runs are saved, but the report is not: once this is fixed, {again} writes it"]
    return []


def overview(runs: Iterable[RunSpec], first_rounds: Mapping[RunName, int]) -> str:
    """Returns one line about how many runs are finished, failed, unfinished or new; empty if all are new."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        if is_done(run):
            kinds.setdefault("finished", []).append("")
        elif read_failure(run.folder):
            kinds.setdefault("failed before", []).append(str(run))
        elif first_round := first_rounds[run.name]:
            kinds.setdefault("unfinished", []).append(f"{run} after round {first_round}")
        else:
            kinds.setdefault("new", []).append("")
    counts = (f"{len(names)} {kind}" + f" ({', '.join(names)})" * any(names) for kind, names in kinds.items())
    return "" if list(kinds) == ["new"] else f"{len(first_rounds)} runs: {'; '.join(counts)}"


def summarize(workdir: Path, cells: Iterable[CellName], seeds: tuple[int, ...]) -> dict[CellName, dict[str, Any]]:
    """Returns for each cell the mean, standard deviation (n - 1) and number of finished seeds of the headline metrics.

    A cell with failed runs also has ``failed``: the messages, by seed.
    """
    summary = {}
    for cell in cells:
        folders = {f"seed{seed}": run_folder(workdir, (str(cell), seed)) for seed in seeds}
        summary[cell] = summarize_seeds([*filter(None, map(read_run_summary, folders.values()))])
        if failed := {seed: line for seed, run in folders.items() if (line := read_failure(run))}:
            summary[cell]["failed"] = failed
    return summary
