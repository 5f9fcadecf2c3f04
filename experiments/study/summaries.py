"""Summaries of the runs of a study: their progress, and the results of those that are finished."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.study.failures import read_failure
from experiments.study.more_rounds import is_done
from experiments.study.progress.console import Console
from experiments.study.resolving import RunSpec
from fedjax_collapse.config.cells import CellName, RunName, cells_of
from fedjax_collapse.config.folder import ERROR_LOG, REPORT, SUMMARY, run_folder
from fedjax_collapse.core.processes import in_first_process
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.results.comparing import verdict
from fedjax_collapse.results.page import write_report
from fedjax_collapse.results.reading import read_run_summary
from fedjax_collapse.results.study import NothingEvaluated, load
from fedjax_collapse.results.summaries import summarize_seeds
from fedjax_collapse.results.tables import state_notes
from fedjax_collapse.results.up_to_date import is_current, record_made_from, stamps
from fedjax_collapse.schema.user_code import one_line


def finish(workdir: Path, config: Mapping[str, Any], console: Console) -> list[str]:
    """Writes summary and report of the finished runs and prints the table; returns error messages.

    The report is left as it is if all from which it would be made is unchanged.
    """
    try:
        summary = summarize(workdir, cells_of(config), config["seeds"])
        write_json(workdir / SUMMARY, {str(cell): metrics for cell, metrics in summary.items()})
        now = stamps(workdir)
        with console.wait(f"reading {workdir}"):
            study = load(workdir)
        console.print_table(study)
        for note in (verdict(study), *state_notes(study)):
            console.note(note)
        if is_current(workdir, now):
            console.note(f"report: {workdir / REPORT} (up to date)")
            return []
        with console.wait("drawing the figures"):
            console.note(f"report: {write_report(study)}")
        record_made_from(workdir, now)
    except NothingEvaluated:  # for example because all runs failed
        pass
    except (UserError, OSError) as error:
        again = f"fedjax-collapse report {shlex.quote(str(workdir))}"
        return [f"{one_line(error)}; the runs are saved, but the report is not: once this is fixed, {again} writes it"]
    return []


@in_first_process
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


def failures_of(runs: Iterable[RunSpec]) -> list[str]:
    """Returns a message for every run without a result."""
    lines = []
    for run in (run for run in runs if not is_done(run)):
        line = read_failure(run.folder)
        lines.append(f"{line}; log: {run.folder / ERROR_LOG}" if line else f"{run}: not finished; start it again")
    return lines


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
