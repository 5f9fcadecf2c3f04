"""What is said of the runs of a study: how far they are, and what those that are finished come to."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ml_collections import ConfigDict

from experiments.arms import as_declared
from experiments.cells import cells_of, means_of
from experiments.console import Console
from experiments.failures import read_failure
from experiments.paper import FROM_RUNS, paper_of
from experiments.reporting import read_study, write_report
from experiments.reporting.published import summary_for_paper
from experiments.reporting.reading import read_json
from experiments.reporting.study import summarize_seeds
from experiments.runs import Name, run_folder
from fedjax_collapse.metrics import write_json
from fedjax_collapse.records import UserError


def finish(workdir: Path, config: ConfigDict, console: Console) -> None:
    """Writes summary and report of the runs that are finished, and shows the table."""
    summary = summarize(workdir, cells_of(as_declared(config)), tuple(config.seeds))
    write_json(workdir / "summary.json", summary)
    study = as_declared(config)
    paper = paper_of(study)
    if paper and paper.metric in FROM_RUNS and any(of_cell["accuracy"]["n"] for of_cell in summary.values()):
        summary = summary_for_paper(read_study(workdir))
    console.print_table(summary, paper, means_of(study))
    try:
        console.note(f"report: {write_report(workdir)}")
    except UserError:
        if not any("failed" in of_cell for of_cell in summary.values()):  # then there may be nothing to report on
            raise


def overview(workdir: Path, first_rounds: Mapping[Name, int]) -> str:
    """One line on how far runs are: finished, failed when last tried, on their way, or new; empty if all are new."""
    kinds: dict[str, list[str]] = {}
    for (cell, seed), first_round in first_rounds.items():
        run, name = run_folder(workdir, (cell, seed)), f"{cell} seed {seed}"
        if (run / "summary.json").exists():
            kinds.setdefault("finished", []).append("")
        elif read_failure(run):
            kinds.setdefault("tried again", []).append(name)
        elif first_round:
            kinds.setdefault("on their way", []).append(f"{name} after round {first_round}")
        else:
            kinds.setdefault("new", []).append("")
    told = (f"{len(names)} {kind}" + f" ({', '.join(names)})" * any(names) for kind, names in kinds.items())
    return "" if list(kinds) == ["new"] else f"{len(first_rounds)} runs: {'; '.join(told)}"


def summarize(workdir: Path, cells: Iterable[str], seeds: tuple[int, ...]) -> dict:
    """For each cell the mean, standard deviation (n - 1) and number of finished seeds of the headline metrics.

    A cell of which runs failed also has ``failed``: why, by seed.
    """
    summary = {}
    for cell in cells:
        folders = {f"seed{seed}": run_folder(workdir, (cell, seed)) for seed in seeds}
        runs = [run / "summary.json" for run in folders.values()]
        finished = [_read_summary(run) for run in runs if run.exists()]
        summary[cell] = summarize_seeds(finished)
        summary[cell]["accuracy"] |= {"of": ", ".join(sorted({run["headline"] for run in finished}))}
        if whose := sorted({run["local"] for run in finished if "local" in run}):
            summary[cell]["R"] |= {"of": ", ".join(whose)}
        if failed := {seed: line for seed, run in folders.items() if (line := read_failure(run))}:
            summary[cell]["failed"] = failed
    return summary


def _read_summary(path):
    """Of a finished run."""
    summary = read_json(path)
    if not isinstance(summary.get("headline"), str):
        raise UserError(f"{path}: has no headline; start this run again, which writes it anew")
    return summary
