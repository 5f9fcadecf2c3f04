"""Runs a study: every cell (a setting with an arm) with every seed, in one folder, with a summary and a report."""

import contextlib
import gc
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.machine import versions
from experiments.study import failures, preparing
from experiments.study.groups import Group, Plan, make_groups, train_group
from experiments.study.more_rounds import is_done, reopen
from experiments.study.parsing import Options
from experiments.study.processes import hosts
from experiments.study.processes.claim import claimed
from experiments.study.processes.lock import locked, one_at_a_time, only_process_in
from experiments.study.progress.console import Console
from experiments.study.progress.eta import hours
from experiments.study.progress.sinks import Sinks
from experiments.study.provenance import PACKAGES, provenance, record_start
from experiments.study.resolving import StudySpec
from experiments.study.resuming import changed_layouts, check_resume, check_unchanged, done_runs, set_aside
from experiments.study.summaries import finish, overview
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.config.folder import ERROR_LOG
from fedjax_collapse.core import processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.run.divergence import Diverged
from fedjax_collapse.schema.user_code import explain, one_line

_ALONE = Options({})  # without a command line
_ESTIMATED = 2  # rounds by which hours are estimated


class Start(NamedTuple):
    """One start of a study: everything that its settings have in common."""

    study: StudySpec
    plans: dict[str, Plan]  # by cell
    examples: preparing.Examples
    console: Console
    sinks: Sinks
    should_stop: Callable[[], bool]
    options: Options
    done: set[RunName]  # the runs for which nothing is done


def run_study(study: StudySpec, should_stop: Callable[[], bool] = lambda: False, options: Options = _ALONE) -> bool:
    """Trains the runs that are not done yet, then writes summary and report; returns False if it was stopped.

    Errors in the configs of all cells are found before the folder is changed; a run that fails later does not end the
    others. The examples of one setting are in memory at a time.

    Args:
        study: the study.
        should_stop: called between rounds.
        options: of the command line. A worker trains, one by one, runs that no other process has; summary and report
            are its parent's, or without a parent the last worker's. ``estimate`` trains only the first two rounds of
            each cell, in its first run, or as many as there are until an evaluation.

    Raises:
        UserError: the config is invalid, or the folder belongs to another one, or has runs of other data or code.
        RunsFailed: some runs failed, or the report cannot be written; raised after all have been tried.
        OSError: the disk is full.
    """
    check_resume(options.resume, study)
    examples = preparing.Examples(study.cells, study.seeds)
    to_come = {run.name: run.cell.values["rounds"] for run in study.runs}
    console = Console(to_come, hosts.stream(), options.workers * options.worker or 1)
    done = {study.runs[i].name for i in ([] if options.resume == "never" else done_runs(study))}
    try:
        plans, hashes = _prepared(study, examples, options.resume, console.wait, should_stop, done)
    except _Stopped:
        return False
    with processes.within_first(claimed(study.folder, study.config, options.worker)):
        reopen(study)
        if len(done) < len(study.runs):
            _record_alone(study.folder, hashes, plans)
        for line in changed_layouts(study):
            console.note(line)
        sinks = Sinks(options.log, study.folder, {cell.name: cell.values for cell in study.cells}, console.note)
        start = Start(study, plans, examples, console, sinks, should_stop, options, done)
        failed = []
        console.leave_out(done)
        for setting, runs in preparing.by_setting(study.runs).items():
            if done.issuperset(run.name for run in runs):
                console.note(f"{f'setting {setting}: ' if setting else ''}all {len(runs)} runs are finished")
                continue
            groups = _free_groups if options.worker else _all_groups
            lines = _train_all(groups(start, setting, runs), start)  # nothing here references the setting's examples
            if lines is None:
                return False
            failed += lines
        if options.estimate:
            console.print_rows(hours(study.runs, console.pace))
        else:
            failed += _finish(study, console, options.worker)
    if failed:
        raise failures.RunsFailed(failed)
    return True


class _Stopped(Exception):
    """The start was stopped before its first run."""


def _prepared(study, examples, resume, wait, should_stop, done):
    """Returns the plans of the cells, and the hashes of all cells of their settings, one setting after the other.

    Cells whose runs are all done are not traced; they have no plan, but their data and code are checked.

    Raises:
        UserError: a config is invalid, or the folder has runs of other data or code that are not to be replaced.
    """
    plans, hashes = {}, {}

    def prepare(setting, runs, advance):  # a function, so that nothing references the setting's examples afterwards
        federations = examples.of(setting)
        hashes.update(preparing.hashes_of(federations))
        here = {"config": json.dumps(study.config), "choice": [run.name for run in runs], "data": hashes}
        processes.check_alike(lambda: here | {"version": versions(PACKAGES)})
        trained, untraced = _cells(runs, done), {}
        preparing.check_private_networks(trained.values(), federations, study.seeds[0])
        for cell in _cells(runs).values():
            if _must_stop(should_stop):
                raise _Stopped
            federation = federations[cell.name][study.seeds[0]]
            is_trained = cell.name in trained
            plan = preparing.plan_of(cell, federation, wait if is_trained else None)
            (plans if is_trained else untraced)[cell.name] = plan
            advance()
        replaced = [run.name for run in study.runs] if resume == "never" else []
        check_unchanged(study.folder, plans | untraced, federations, replaced, untraced)

    number = len(_cells(study.runs))
    preparing.check_privacy(_cells(study.runs, done).values())
    with wait(f"preparing {len(study.runs)} runs: reading data, checking {number} arms", number) as advance:
        for setting, runs in preparing.by_setting(study.runs).items():
            prepare(setting, runs, advance)
    return plans, hashes


def _cells(runs, done=()):
    """Returns the cells of the runs that are not done, by name."""
    return {run.cell.name: run.cell for run in runs if run.name not in done}


@processes.in_first_process
def _record_alone(folder, hashes, plans):
    with one_at_a_time(folder):
        record_start(folder, provenance(hashes, plans))


@processes.in_first_process
def _finish(study, console, is_worker):
    """Writes summary and report, of workers the last one without a parent; returns error messages."""
    if not is_worker:
        return finish(study.folder, study.config, console)
    with locked(study.folder) as is_mine:  # otherwise it is the parent's
        is_last = is_mine and all(map(_is_free, study.runs))
        return finish(study.folder, study.config, console) if is_last else []


def _is_free(run):
    with locked(run.folder) as is_free:
        return is_free


def _all_groups(start, setting, runs) -> Iterator[Group]:
    """Yields the groups of all runs, which are locked until the next one, and reports progress unless all are new.

    Raises:
        UserError: another process, a worker that has no parent, trains one of them.
    """
    if start.options.resume == "never":
        set_aside(start.study.folder, runs)
    left = [run for run in runs if run.name not in start.done]
    with start.console.wait(f"reading data and checkpoints of {len(left)} runs"):
        groups = make_groups(left, start.plans, start.examples.of(setting))
    first_rounds = {run.name: 0 for run in runs} | {n: group.first_round for group in groups for n in group.runs}
    start.console.expect({n: g.plan.schedule.rounds - g.first_round for g in groups for n in g.runs})
    start.console.note(overview(runs, first_rounds))
    if start.options.estimate:
        firsts = {run.cell.name: run.name for run in reversed(left)}
        groups = [group for group in groups if not group.runs.keys().isdisjoint(firsts.values())]
    for group in groups:
        with contextlib.ExitStack() as stack:
            for run in group.runs.values():
                stack.enter_context(processes.within_first(only_process_in(Path(run.folder))))
            yield group


def _free_groups(start, setting, runs) -> Iterator[Group]:
    """Yields a group for each run that no other process has, has trained or has tried, locked until the next one."""
    for run in (run for run in runs if run.name not in start.done):
        with locked(run.folder) as is_mine:
            if is_mine and not is_done(run) and failures.read_failure(run.folder) is None:
                yield from make_groups([run], start.plans, start.examples.of(setting))
            else:
                start.console.leave_out([run.name])


def _train_all(groups, start) -> list[str] | None:
    """Returns a message for every group that failed; None if it was stopped before the end."""
    console, failed = start.console, []
    with console:
        for group in groups:
            if _must_stop(start.should_stop):
                console.note(f"stopped before {group}; run the same command to resume")
                return None
            preparing.release_programs()
            try:
                is_done = _train(group, start)
            except failures.RunsFailed as error:
                failed += error.lines
                console.note(f"failed: {error}")
                gc.collect()  # frees the failed run's memory on the devices
                continue
            if not is_done and not (start.options.estimate and not _must_stop(start.should_stop)):
                console.note(f"stopped in {group}; run the same command to resume")
                return None
    return failed


def _must_stop(should_stop):
    """Returns whether any of the processes is asked to stop."""
    return any(processes.all_gather(bool(should_stop())))


def _train(group, start):
    """Calls ``train_group``; raises RunsFailed, with the names of the runs, for errors, and writes a log for each."""
    folders = {name: Path(run.folder) for name, run in group.runs.items()}
    console, should_stop = start.console, start.should_stop  # without the examples, which others would keep alive
    last = group.first_round + _ESTIMATED if start.options.estimate else math.inf
    failures.forget_failure(*folders.values())
    if start.options.worker:
        failures.expect_kill(*folders.values(), str(group))
    try:
        with start.sinks.of(folders) as take:
            is_whole = train_group(group, console, lambda: should_stop() or console.round >= last, take)
    except (Exception, SystemExit) as error:  # also from the user's code
        if processes.is_multiprocess() and not isinstance(error, UserError):
            raise RuntimeError(explain(error)) from error  # the other processes may not notice it
        if failures.is_of_the_disk(error):
            failures.forget_failure(*folders.values())
            raise OSError(f"{group}: {one_line(error)}; free some space, then run the same command to resume") from None
        lines = _failures(group, error)
        for folder, line in lines.items():
            failures.write_failure(folder, line, error)
    else:
        failures.forget_failure(*folders.values())
        return is_whole
    first = {line: folder for folder, line in reversed(lines.items())}  # by line, the run whose log is named
    raise failures.RunsFailed(f"{line}; log: {folder / ERROR_LOG}" for line, folder in reversed(first.items()))


def _failures(group, error):
    """Returns a message for the folder of each run that failed."""
    if isinstance(error, Diverged):
        runs = list(group.runs.items())
        found = [(*runs[i], divergence.line) for i, divergence in error.found.items()]
        return {Path(run.folder): f"{name}: {line}" for name, run, line in found}
    return {Path(run.folder): f"{group}: {explain(error)}" for run in group.runs.values()}
