"""A study that is continued with more rounds than it had, to the same bits as one that had them from its start."""

from collections.abc import Iterator

from experiments.study.processes.claim import config_in
from experiments.study.processes.lock import one_at_a_time
from experiments.study.resolving import RunSpec, StudySpec
from fedjax_collapse.config import build
from fedjax_collapse.config.cells import settings_of
from fedjax_collapse.config.folder import METRICS, SUMMARY, is_finished, run_folder
from fedjax_collapse.config.resolving import Cell
from fedjax_collapse.core.processes import in_first_process
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import last_row
from fedjax_collapse.results.metrics import number
from fedjax_collapse.run.fingerprint import flatten
from fedjax_collapse.schema.describe import describe


def is_done(run: RunSpec) -> bool:
    """Returns whether the run in its folder is finished, with as many rounds as it has now."""
    if not is_finished(run.folder):
        return False
    row, target = last_row(run.folder / METRICS), run.cell.values["stop_at_accuracy"]
    return not 0 < row.get("round", 0) < run.cell.values["rounds"] or 0 < target <= number(row.get("accuracy"))


def check_more_rounds(study: StudySpec) -> None:
    """Raises UserError for a cell if the folder's rounds differ from the first rounds of a run with the new number."""
    known = config_in(study.folder)
    for cell in study.cells if known else ():
        now = cell.values["rounds"]
        before = settings_of(known).get(cell.setting, {}).get("rounds", known.get("rounds", now))
        done = {run.last_round for run in _runs_of(study, cell)}
        if before < now and any(done) and (reason := _obstacle(cell.values, before, is_over=before in done)):
            raise UserError(
                f"{cell}: {reason}, so the run in {study.folder} cannot continue to {now} rounds; choose another "
                f"--workdir, where it starts again, or rounds={before}"
            )


@in_first_process
def reopen(study: StudySpec) -> None:
    """Removes the summaries of all runs that are finished with fewer rounds than they have now."""
    with one_at_a_time(study.folder):
        for run in (run for cell in study.cells for run in _runs_of(study, cell)):
            if is_finished(run.folder) and not is_done(run):
                (run.folder / SUMMARY).unlink()


def _runs_of(study: StudySpec, cell: Cell) -> Iterator[RunSpec]:
    """Yields the runs of all seeds, chosen or not."""
    for seed in study.seeds:
        yield RunSpec(cell, seed, run_folder(study.folder, (cell.name, seed)))


def _obstacle(values, before, is_over):
    """Returns why runs with ``before`` rounds, which may be over, differ from the first rounds of longer ones."""
    if values["privacy"]:
        return f"its epsilon is accounted for {before} rounds, and stands in every row"
    shorter, longer = (flatten(describe(build.algorithm(of))) for of in (values | {"rounds": before}, values))
    if changed := [name for name in longer if shorter.get(name) != longer[name]]:
        return f"{'.'.join(changed[0].split('.')[:2])} depends on the number of rounds, which was {before}"
    every, measured = values["evaluate_every"], any(values["measurements"].values())
    if is_over and before % every:
        return f"round {before} was evaluated as its last, out of the turn of evaluate_every={every}"
    if is_over and measured and before % values["measure_every"] >= every:
        return f"round {before} was measured as its last, out of the turn of measure_every={values['measure_every']}"
    return ""
