"""A study: every arm with every seed, in one folder, with a summary and a report over all of them."""

import contextlib
import gc
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import jax
from ml_collections import ConfigDict

from experiments import build, hosts
from experiments.arms import as_declared, check_study, resolve_arm
from experiments.configs import base
from experiments.console import Console
from experiments.failures import (
    LOG,
    RunsFailed,
    explain,
    forget_failure,
    is_of_the_disk,
    one_line,
    read_failure,
    write_failure,
)
from experiments.lock import one_at_a_time, only_process_in, taken
from experiments.machine import num_cores
from experiments.names import check_name
from experiments.reporting import write_report
from experiments.reporting.reading import read_json, read_starts
from experiments.reporting.study import summarize_seeds
from experiments.resuming import changed_layouts
from experiments.runs import Group, Name, Plan, make_groups, make_plan, run_folder, train_group
from fedjax_collapse import processes
from fedjax_collapse.checkpoint import check_folder
from fedjax_collapse.data import Federation
from fedjax_collapse.divergence import Diverged
from fedjax_collapse.fingerprint import flatten
from fedjax_collapse.metrics import write_json
from fedjax_collapse.nn.inspection import count_lowerings
from fedjax_collapse.records import UserError

_CONFIG = "config.json"
_OF_A_START = (".lock", _CONFIG)  # what one that was killed at once may leave, with what was not moved in place
_PACKAGES = ("fedjax_collapse", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "ml-collections")


def run_study(
    config: ConfigDict,
    workdir: Path,
    arms: tuple[str, ...] | None = None,
    seeds: tuple[int, ...] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    share: str = "",
) -> bool:
    """Runs what is not done yet, then writes summary and report; False if it was stopped before the end.

    ``arms`` and ``seeds``: those to run, default all; always in the order in which the config declares them.
    Everything that can be wrong with the config is found before the folder is touched; a run that fails afterwards
    does not end the others. ``share``: a name under which processes divide the runs, each of which one process has
    alone; the last to leave writes summary and report.

    Raises:
        UserError: the config makes no sense, or the folder belongs to another one.
        RunsFailed: some did; raised when all have been tried.
        OSError: there is no room for what they leave.
    """
    names = choose_runs(config, arms, seeds)
    arms = tuple(dict.fromkeys(arm for arm, _ in names))
    configs = {arm: resolve_arm(config, arm) for arm in as_declared(config.arms)}
    for arm in arms:
        check_folder(workdir / arm)
    federations = _federations(configs, config.seeds)
    processes.check_alike(lambda: _what_runs(config, names, federations))
    console = Console(num_runs=len(names), rounds=config.rounds, stream=hosts.stream())
    plans = {arm: _plan(arm, configs[arm], federations[arm][config.seeds[0]], console.note) for arm in arms}
    with processes.within_first(_claimed(workdir, config, bool(share))) as is_last:
        processes.of_first(lambda: _record_alone(workdir, federations, plans))
        for line in processes.of_first(lambda: list(changed_layouts(workdir, names))):
            console.note(line)
        groups = _shared_groups if share else _all_groups
        failed = _train_all(groups(names, plans, federations, workdir, share or console), console, should_stop)
        if failed is None:
            return False
        processes.of_first(lambda: finish(workdir, config, console) if is_last() else None)
    if failed:
        raise RunsFailed(failed)
    return True


def choose_runs(
    config: ConfigDict, arms: Iterable[str] | None = None, seeds: Iterable[int] | None = None
) -> list[Name]:
    """The runs of a config with these arms and seeds, default all, in the order in which it declares them.

    Raises:
        UserError: there is no such arm or seed, or the config declares none.
    """
    check_study(config)
    arms = _choose("arm", arms, tuple(as_declared(config.arms)))
    return list(itertools.product(arms, _choose("seed", seeds, tuple(config.seeds))))


def finish(workdir: Path, config: ConfigDict, console: Console) -> None:
    """Writes summary and report of the runs that are finished, and shows the table."""
    summary = summarize(workdir, tuple(as_declared(config.arms)), tuple(config.seeds))
    write_json(workdir / "summary.json", summary)
    console.print_table(summary)
    try:
        console.note(f"report: {write_report(workdir)}")
    except UserError:
        if not any("failed" in of_arm for of_arm in summary.values()):  # then there may be nothing to report on
            raise


def overview(workdir: Path, first_rounds: Mapping[Name, int]) -> str:
    """One line on how far runs are: finished, failed when last tried, on their way, or new; empty if all are new."""
    kinds: dict[str, list[str]] = {}
    for (arm, seed), first_round in first_rounds.items():
        run, name = run_folder(workdir, (arm, seed)), f"{arm} seed {seed}"
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


def summarize(workdir: Path, arms: tuple[str, ...], seeds: tuple[int, ...]) -> dict:
    """For each arm the mean, standard deviation (n - 1) and number of finished seeds of the headline metrics.

    An arm of which runs failed also has ``failed``: why, by seed.
    """
    summary = {}
    for arm in arms:
        folders = {f"seed{seed}": run_folder(workdir, (arm, seed)) for seed in seeds}
        runs = [run / "summary.json" for run in folders.values()]
        finished = [_read_summary(run) for run in runs if run.exists()]
        summary[arm] = summarize_seeds(finished)
        summary[arm]["accuracy"] |= {"of": ", ".join(sorted({run["headline"] for run in finished}))}
        if failed := {seed: line for seed, run in folders.items() if (line := read_failure(run))}:
            summary[arm]["failed"] = failed
    return summary


def record_start(workdir: Path, start: Mapping) -> None:
    """Adds a start to ``provenance.json``, where those before it stay: they may have made some of the numbers.

    One that differs from the last only in its time is not repeated.

    Raises:
        UserError: the file that is there cannot be read.
    """
    try:
        starts = read_starts(workdir)
    except UserError as error:
        raise UserError(f"{error}; restore it, or remove it to go on without what earlier starts recorded") from error
    if not starts or {**starts[-1], "started": None} != {**start, "started": None}:
        starts = (*starts, start)
    write_json(workdir / "provenance.json", {"starts": starts})


def _read_summary(path):
    """Of a finished run."""
    summary = read_json(path)
    if not isinstance(summary.get("headline"), str):
        raise UserError(f"{path}: has no headline; start this run again, which writes it anew")
    return summary


def provenance(federations: Mapping[str, Mapping[int, Federation]], plans: Mapping[str, Plan]) -> dict:
    """What is needed to know where the numbers of this start come from."""
    different = {id(f): f for of_seed in federations.values() for f in of_seed.values()}
    hashes = {name: federation.hashes() for name, federation in different.items()}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "git": _git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": num_cores(),
        "devices": [str(device) for device in jax.devices()],
        "packages": {name: _version(name) for name in _PACKAGES},
        "convolutions": {
            arm: count_lowerings(plan.model, plan.algorithm.training.batch_size) for arm, plan in plans.items()
        },
        "layouts": {arm: str(plan.client_map) for arm, plan in plans.items()},
        "sha256": {
            arm: {f"seed{seed}": hashes[id(federation)] for seed, federation in of_seed.items()}
            for arm, of_seed in federations.items()
        },
    }


def _what_runs(config, names, federations):
    """What several processes must have in common."""
    hashes = [federation.hashes() for of_seed in federations.values() for federation in of_seed.values()]
    versions = [_version(name) for name in _PACKAGES]
    return {"config": config.to_json_best_effort(), "choice": names, "data": hashes, "version": versions}


def _record_alone(workdir, federations, plans):
    with one_at_a_time(workdir):
        record_start(workdir, provenance(federations, plans))


def _all_groups(names, plans, federations, workdir, console) -> list[Group]:
    """All of them, after a line on how far they are, unless they are new."""
    groups = make_groups(names, plans, federations, workdir)
    first_rounds = {name: group.first_round for group in groups for name in group.runs}
    if told := processes.of_first(lambda: overview(workdir, first_rounds)):
        console.note(told)
    return groups


def _shared_groups(names, plans, federations, workdir, share) -> Iterator[Group]:
    """Each run that no other process has or has had, alone; it is this one's until the next is asked for."""
    for name in names:
        with taken(run_folder(workdir, name), share) as is_mine:
            if is_mine:
                yield from make_groups([name], plans, federations, workdir)


def _train_all(groups, console, should_stop) -> list[str] | None:
    """A line for every group that failed; None if it was stopped before the end."""
    failed = []
    with console:
        for group in groups:
            try:
                is_done = _train(group, console, should_stop)
            except RunsFailed as error:
                failed += error.lines
                console.note(f"failed: {error}")
                gc.collect()  # of what the failed run had on the devices
                continue
            if not is_done:
                console.note(f"stopped in {group}; the same command goes on from there")
                return None
    return failed


def _train(group, console, should_stop):
    """``train_group``; what goes wrong is a RunsFailed with the names of the runs, and is in a log of each."""
    folders = [Path(run.folder) for run in group.runs.values()]
    processes.of_first(lambda: [forget_failure(folder) for folder in folders])
    try:
        return train_group(group, console, should_stop)
    except Exception as error:  # of the user's code, too
        if processes.are_several() and not isinstance(error, UserError):
            raise  # the others may not know of it
        if is_of_the_disk(error):
            raise OSError(f"{group}: {one_line(error)}; make room, the same command goes on") from None
        failures = _failures(group, error)
        processes.of_first(lambda: [write_failure(folder, line, error) for folder, line in failures.items()])
    first = {line: folder for folder, line in reversed(failures.items())}  # whose log is named, for each line
    raise RunsFailed(f"{line}; log: {folder / LOG}" for line, folder in reversed(first.items()))


def _failures(group, error):
    """A line for the folder of each run that the error is of."""
    if isinstance(error, Diverged):
        runs = list(group.runs.items())
        found = [(*runs[i], divergence.line) for i, divergence in error.found.items()]
        return {Path(run.folder): f"{arm} seed {seed}: {line}" for (arm, seed), run, line in found}
    return {Path(run.folder): f"{group}: {explain(error)}" for run in group.runs.values()}


def _plan(arm, config, federation, announce):
    """The arm's plan; what is wrong with it is told with its name."""
    try:
        return make_plan(config, federation, announce)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error


def _federations(configs, seeds):
    """By arm and seed; arms with the same data and partition share theirs."""
    made = {}

    def shared(config):
        key = repr([*(config[name] for name in ("data", "partition", "clients")), config.engine.storage])
        if key not in made:
            made[key] = build.federations(config, seeds)
        return made[key]

    return {arm: shared(config) for arm, config in configs.items()}


def _choose(what, asked, declared):
    """What was asked for, in the order in which it is declared, or all that is."""
    for item in asked or ():
        check_name(what, str(item), map(str, declared))
    return tuple(item for item in declared if item in asked) if asked else declared


@contextlib.contextmanager
def _claimed(workdir, config, is_shared=False):
    """The folder is this config's, and this process's alone, or shared; one that holds something else is left as it is.

    Yields a function that says whether no other process is left in it.
    """
    content = json.loads(config.to_json_best_effort())
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            _check_free(workdir, content)
            is_last = stack.enter_context(only_process_in(workdir, is_shared))
            with one_at_a_time(workdir):
                write_json(workdir / _CONFIG, content)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{workdir}: cannot be used as --workdir: {error}; choose another one") from error
        yield is_last


def _check_free(workdir, content):
    """Raises UserError if the folder holds the study of another config, or something else."""
    path = workdir / _CONFIG
    if path.exists():
        defaults = json.loads(base.get_config().to_json_best_effort())  # of keys that were not there yet
        there, here = (flatten(defaults | c) for c in (json.loads(path.read_text()), content))
        keys = sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
        if keys:
            changes = "; ".join(f"{key} is {there.get(key)} there, {here.get(key)} here" for key in keys)
            raise UserError(f"{workdir} holds a study of another config: {changes}; choose another --workdir")
    elif any(not other.name.startswith(_OF_A_START) for other in workdir.iterdir()):
        raise UserError(f"{workdir} is not empty and holds no study; choose another --workdir")


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
