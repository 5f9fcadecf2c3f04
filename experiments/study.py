"""A study: every arm with every seed, in one folder, with a summary and a report over all of them."""

import contextlib
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import jax
from ml_collections import ConfigDict

from experiments import build, hosts
from experiments.arms import as_declared, check_study, resolve_arm
from experiments.console import Console
from experiments.lock import only_process_in
from experiments.machine import num_cores
from experiments.names import check_name
from experiments.reporting import write_report
from experiments.reporting.reading import read_starts
from experiments.reporting.study import summarize_seeds
from experiments.runs import Plan, make_groups, make_plan, train_group
from fedjax_collapse import processes
from fedjax_collapse.checkpoint import check_folder
from fedjax_collapse.data import Federation
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
) -> bool:
    """Runs what is not done yet, then writes summary and report; False if it was stopped before the end.

    ``arms`` and ``seeds``: those to run, default all; always in the order in which the config declares them.
    Everything that can be wrong with the config is found before the folder is touched.

    Raises:
        UserError: the config makes no sense, or the folder belongs to another one.
    """
    check_study(config)
    declared = tuple(as_declared(config.arms))
    arms, seeds = _choose("arm", arms, declared), _choose("seed", seeds, tuple(config.seeds))
    for arm in arms:
        check_folder(workdir / arm)
    configs = {arm: resolve_arm(config, arm) for arm in declared}
    federations = _federations(configs, config.seeds)
    processes.check_alike(lambda: _what_runs(config, arms, seeds, federations))
    plans = {arm: _plan(arm, configs[arm], federations[arm][config.seeds[0]]) for arm in arms}
    with processes.within_first(_claimed(workdir, config)):
        processes.of_first(lambda: record_start(workdir, provenance(federations, plans)))
        with Console(num_runs=len(arms) * len(seeds), rounds=config.rounds, stream=hosts.stream()) as console:
            for group in make_groups(itertools.product(arms, seeds), plans, federations, workdir):
                if not _train(group, console, should_stop):
                    console.note(f"stopped in {group}; the same command goes on from there")
                    return False
        processes.of_first(lambda: _report(workdir, summarize(workdir, declared, tuple(config.seeds)), console))
    return True


def summarize(workdir: Path, arms: tuple[str, ...], seeds: tuple[int, ...]) -> dict:
    """For each arm the mean, standard deviation (n - 1) and number of finished seeds of the headline metrics."""
    summary = {}
    for arm in arms:
        runs = [workdir / arm / f"seed{seed}" / "summary.json" for seed in seeds]
        finished = [json.loads(run.read_text()) for run in runs if run.exists()]
        summary[arm] = summarize_seeds(finished)
        summary[arm]["accuracy"] |= {"of": ", ".join(sorted({run["headline"] for run in finished}))}
    return summary


def _report(workdir, summary, console):
    write_json(workdir / "summary.json", summary)
    console.print_table(summary)
    console.note(f"report: {write_report(workdir)}")


def record_start(workdir: Path, start: Mapping) -> None:
    """Adds a start to ``provenance.json``, where those before it stay: they may have made some of the numbers.

    One that differs from the last only in its time is not repeated.

    Raises:
        UserError: the file that is there cannot be read.
    """
    starts = read_starts(workdir)
    if not starts or {**starts[-1], "started": None} != {**start, "started": None}:
        starts = (*starts, start)
    write_json(workdir / "provenance.json", {"starts": starts})


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


def _what_runs(config, arms, seeds, federations):
    """What several processes must have in common."""
    hashes = [federation.hashes() for of_seed in federations.values() for federation in of_seed.values()]
    versions = [_version(name) for name in _PACKAGES]
    return {"config": config.to_json_best_effort(), "choice": (arms, seeds), "data": hashes, "version": versions}


def _train(group, console, should_stop):
    """``train_group``; what goes wrong is told with the names of the runs."""
    try:
        return train_group(group, console, should_stop)
    except UserError as error:
        raise UserError(f"{group}: {error}") from error


def _plan(arm, config, federation):
    """The arm's plan; what is wrong with it is told with its name."""
    try:
        return make_plan(config, federation)
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
def _claimed(workdir, config):
    """The folder is this config's, and this process's alone; one that holds something else is left as it is."""
    content = json.loads(config.to_json_best_effort())
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            _check_free(workdir, content)
            stack.enter_context(only_process_in(workdir))
            write_json(workdir / _CONFIG, content)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{workdir}: cannot be used as --workdir: {error}; choose another one") from error
        yield


def _check_free(workdir, content):
    """Raises UserError if the folder holds the study of another config, or something else."""
    path = workdir / _CONFIG
    if path.exists():
        there, here = (flatten(c) for c in (json.loads(path.read_text()), content))
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
