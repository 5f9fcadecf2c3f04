"""What a start does with the runs in its folder: it resumes them, sets them aside, or does not start."""

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import jax

from experiments.study.groups import Plan
from experiments.study.more_rounds import check_more_rounds, is_done
from experiments.study.preparing import Federations, by_setting
from experiments.study.resolving import RunSpec, StudySpec
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.config.folder import LOCK, REPLACED, TOGETHER, is_finished, run_folder
from fedjax_collapse.core import files, processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.reading import layouts_of, read_starts
from fedjax_collapse.results.up_to_date import is_unchanged, made_from
from fedjax_collapse.run.checkpoint import check_folder
from fedjax_collapse.run.fingerprint import check_same
from fedjax_collapse.run.resumption import rounds_kept
from fedjax_collapse.run.runs import description
from fedjax_collapse.run.simulation import Run

_HINT = "restore what has changed, start again with --resume=never, which sets such runs aside, or "


@processes.in_first_process
def check_resume(choice: str, study: StudySpec) -> None:
    """Checks whether the folder can have the runs, and those that it has be resumed.

    Raises:
        UserError: ``must`` is chosen and the folder has nothing of one of the runs, or as ``check_folder`` and
            ``check_more_rounds``.
    """
    for run in study.runs:
        check_folder(run.folder.parent)
    check_more_rounds(study)
    missing = [run for run in study.runs if choice == "must" and not run.folder.is_dir()]
    if missing:
        more = f" and {len(missing) - 3} more" * (len(missing) > 3)
        raise UserError(
            f"--resume=must: {study.folder} has nothing of {', '.join(map(str, missing[:3]))}{more} to resume from; "
            "give the folder of a study that was started, or --resume=auto"
        )


@processes.in_first_process
def done_runs(study: StudySpec) -> list[int]:
    """Returns the indices of the runs for which there is nothing to do.

    These are finished, and their files are those from which the report was made, or all runs of their setting are
    finished, if there are several settings; and all runs with which they were batched are finished, which would
    otherwise resume together with them.
    """
    stamps = made_from(study.folder)
    finished = {run.name: run.folder for run in study.runs if is_done(run)}
    done = {name for name, folder in finished.items() if is_unchanged(stamps, study.folder, folder)}
    settings = by_setting(study.runs)
    for runs in settings.values() if len(settings) > 1 else ():
        done.update(run.name for run in runs if finished.keys() >= {run.name for run in runs})
    return [i for i, run in enumerate(study.runs) if run.name in done and _is_batch_finished(study.folder, run.folder)]


def _is_batch_finished(study, run):
    """Returns whether all runs with which the run was batched are finished, as far as they can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return all(is_finished(run_folder(study, name)) for name in json.loads(files.read(run / TOGETHER)))
    return True


@processes.in_first_process
def check_unchanged(
    study: Path,
    plans: Mapping[str, Plan],
    federations: Federations,
    replaced: Collection[RunName] = (),
    untraced: Collection[str] = (),
) -> None:
    """Raises UserError if a run in the folder was trained with other data, another partition, or other code.

    For cells without a plan, which are not trained now, only data and partition are checked; ``replaced`` runs are not.
    The plans of ``untraced`` cells have no timed lowerings.
    """
    for cell, of_seed in federations.items():
        for seed, federation in of_seed.items():
            folder = run_folder(study, (cell, seed))
            if (cell, seed) in replaced or rounds_kept(folder) == (0,):
                continue
            if cell in plans:
                run = Run(federation, plans[cell].algorithm, jax.random.key(seed))
                here, besides = description(run, plans[cell].model, plans[cell].schedule), ()
                if cell in untraced:
                    besides = ("model.module.lowering",)
                check_same(folder, here, hint=_HINT, besides=besides)
            else:
                check_same(folder, federation.hashes(), is_whole=False, hint=_HINT)


@processes.in_first_process
def set_aside(study: Path, runs: Iterable[RunSpec]) -> None:
    """Moves everything in the folders of these runs, except for their locks, to a new folder in ``replaced``."""
    started = [run.folder for run in runs if rounds_kept(run.folder) != (0,)]
    place, number = study / REPLACED, 1
    while any((place / str(number) / folder.relative_to(study)).exists() for folder in started):
        number += 1
    for folder in started:
        target = place / str(number) / folder.relative_to(study)
        target.mkdir(parents=True)
        for path in (path for path in folder.iterdir() if path.name != LOCK):
            os.replace(path, target / path.name)


@processes.in_first_process
def changed_layouts(study: StudySpec) -> list[str]:
    """Returns a message for each cell with a run that resumes in a layout that no earlier start had.

    Also returns one if the compiler's flags differ.
    """
    starts = read_starts(study.folder)
    earlier, now = layouts_of(starts[:-1]), layouts_of(starts[-1:])
    resumed = {run.cell.name for run in study.runs if rounds_kept(run.folder) != (0,) and not is_finished(run.folder)}
    flags = [start.get("xla_flags", "") for start in starts]
    sentences = [
        f"{cell}: resumed with {now[cell][0]}, started with {'; '.join(others)}: rounding may differ from here on"
        for cell in now
        if cell in resumed and (others := [layout for layout in earlier.get(cell, ()) if layout not in now[cell]])
    ]
    if resumed and flags[-1] not in (flags[:-1] or flags):  # one start: this one is like the first
        sentences.append(
            f"resumed with XLA_FLAGS={flags[-1]!r}, started with {flags[0]!r}: rounding may differ from here on"
        )
    return sentences
