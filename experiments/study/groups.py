"""The runs of a study: plans made from the config, groups of runs that are batched, and their training."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.study.progress.console import Console
from experiments.study.progress.sinks import Take
from experiments.study.resolving import RunSpec
from experiments.waiting import Wait, unseen
from fedjax_collapse import engine
from fedjax_collapse.config import build
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.config.folder import PARTITION, SUMMARY, TOGETHER
from fedjax_collapse.core import files, processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.data import Federation
from fedjax_collapse.engine import Chunked, ClientMap, Sharded, together
from fedjax_collapse.engine.timing import WORTHWHILE, with_timed_lowerings
from fedjax_collapse.engine.timing_cache import cached_numbers
from fedjax_collapse.nn.model import Model
from fedjax_collapse.results.summaries import summary_of
from fedjax_collapse.run.divergence import Diverged
from fedjax_collapse.run.resumption import common_round, rounds_kept
from fedjax_collapse.run.runs import Callbacks, Hardware, Run, Schedule, initialize, prepare
from fedjax_collapse.run.simulation import simulate_runs, structure
from fedjax_collapse.schema.describe import describe
from fedjax_collapse.schema.user_code import explaining
from fedjax_collapse.training.algorithm import FedAvg

_CLIENTS_AT_ONCE = (1, 2, 5, 10, 25, 50, 100)
_TIMED_ROUNDS = 2  # after the one that compiles; the faster one counts


class Plan(NamedTuple):
    """The parts of a cell that do not depend on the seed."""

    model: Model
    algorithm: FedAvg
    schedule: Schedule
    client_map: ClientMap
    engine: Mapping[str, Any]  # the section of the config


class Group(NamedTuple):
    """Runs that are trained as one program, from the same round on; a single run has no ``run_map``."""

    runs: dict[RunName, Run]
    plan: Plan
    first_round: int
    client_map: ClientMap
    run_map: ClientMap | None

    def __str__(self) -> str:
        return ", ".join(map(str, self.runs))


def make_plan(config: Mapping[str, Any], federation: Federation, wait: Wait = unseen) -> Plan:
    """Returns the checked plan of a cell; ``wait`` (``waiting.py``) shows what takes long.

    Raises:
        UserError: the config is invalid.
    """
    plan = untraced_plan(config, federation)
    _check_together(plan)
    run = Run(federation, plan.algorithm, jax.random.key(0))
    with explaining("a round cannot be compiled"):
        plan.algorithm.check(plan.model)
        plan = plan._replace(model=_with_fastest_lowerings(plan, config["network"].get("lowering", "auto"), wait))
        prepare(run, plan.model, plan.schedule, Hardware(plan.client_map))
    if config["engine"]["layout"] == "timed":
        with wait("timing numbers of clients at once, once on this machine"):
            plan = plan._replace(client_map=fastest(run, plan.model, plan.schedule, plan.client_map))
    return plan


def untraced_plan(config: Mapping[str, Any], federation: Federation) -> Plan:
    """Returns the plan of a cell that is not trained: neither checked nor timed.

    Raises:
        UserError: the config is invalid.
    """
    model, algorithm = build.model(config, federation), build.algorithm(config)
    schedule = build.schedule(config).resolved(algorithm)
    return Plan(model, algorithm, schedule, build.client_map(config, model), config["engine"])


def _with_fastest_lowerings(plan, lowering, wait):
    """Returns the plan's model; with ``auto`` its lowerings are timed.

    They are not timed on a TPU, where the compiler's estimate chose them.
    """
    client_map = plan.client_map
    if lowering != "timed" and (lowering != "auto" or client_map.target.is_tpu):
        return plan.model
    at_once = client_map.clients_at_once // client_map.num_devices
    least_work = 0 if lowering == "timed" else WORTHWHILE
    batch_size, device = plan.algorithm.training.batch_size, engine.own_devices()[0]
    return with_timed_lowerings(plan.model, batch_size, at_once, device, least_work, wait)


def make_groups(
    runs: Iterable[RunSpec], plans: Mapping[str, Plan], federations: Mapping[str, Mapping[int, Federation]]
) -> list[Group]:
    """Returns all runs by name, in groups; plans and federations are by cell."""
    alike: dict = {}
    for spec in runs:
        plan = plans[spec.cell.name]
        federation, key = federations[spec.cell.name][spec.seed], jax.random.key(spec.seed)
        run = Run(federation, plan.algorithm, key, spec.folder, name=str(spec.name))
        schedule, options = repr(describe(plan.schedule)), repr(sorted(plan.engine.items()))
        common = plan.model, schedule, plan.client_map, options, structure(run)
        alike.setdefault(common, (plan, {}))[1][spec.name] = run
    return [group for plan, runs in alike.values() for group in _divide(plan, runs)]


def train_group(group: Group, console: Console, should_stop: Callable[[], bool], take: Take) -> bool:
    """Trains the group's runs and writes a summary to the folder of each; returns False if they were stopped.

    ``take`` receives their rows (``sinks.py``).
    """
    _write_partitions(group)
    plan = group.plan
    console.start_runs(list(group.runs), group.first_round, plan.schedule.rounds)

    def listener(rows, timings):
        console.update(rows, timings)
        take(rows, timings)
        for name, row in zip(group.runs, rows, strict=True):
            if plan.schedule.on_nan == "continue" and not math.isfinite(row["train/task_loss"]):
                is_private = plan.algorithm.having("perturb")  # on_nan=stop would be rejected
                hint = "" if is_private else "; --config.on_nan=stop names client, step and term"
                console.note(f"{name}, round {row['round']}: the loss is not finite{hint}")

    hardware = Hardware(group.client_map, group.run_map, plan.engine["storage"])
    callbacks = Callbacks(listener, console.announce, should_stop)
    diverged = None
    try:
        results = simulate_runs(list(group.runs.values()), plan.model, plan.schedule, hardware, callbacks)
    except Diverged as error:
        results, diverged = error.results, error
    if not diverged and not all(plan.schedule.is_over(result.metrics) for result in results):
        return False
    _write_summaries(group, results, diverged.found if diverged else ())
    console.finish_runs()
    if diverged:
        raise diverged
    return True


@processes.in_first_process
def _write_partitions(group):
    for run in group.runs.values():
        Path(run.folder).mkdir(parents=True, exist_ok=True)
        write_npz(Path(run.folder) / PARTITION, run.federation.partition_arrays())
        write_json(run.folder / TOGETHER, [list(name) for name in group.runs])


@processes.in_first_process
def _write_summaries(group, results, diverged):
    """Writes the headline numbers of the runs that have not diverged; ``diverged`` has the indices of the others.

    With a target also the round that reached it, null if none did.
    """
    schedule = group.plan.schedule
    for i, (run, result) in enumerate(zip(group.runs.values(), results, strict=True)):
        if i not in diverged:
            summary = summary_of(result, schedule.watch)
            if schedule.stop_at_accuracy:
                is_reached = schedule.is_reached(result.metrics)
                summary["rounds_to_target"] = result.rounds_done if is_reached else None
            write_json(run.folder / SUMMARY, summary)


def _check_together(plan):
    """Raises UserError if batched runs are requested but not possible."""
    if plan.engine["runs"] == "together" and plan.engine["storage"] in ("host", "disk"):
        raise UserError(
            "runs are batched only with storage on the device: choose engine.runs=separate or engine.storage=device"
        )
    if plan.engine["runs"] == "together" and plan.schedule.stop_at_accuracy:
        raise UserError("with stop_at_accuracy runs end at different rounds: choose engine.runs=separate")


def _divide(plan, runs) -> list[Group]:
    """Divides runs of one structure into groups.

    Runs are batched if requested or faster, as far as they can resume from one round.
    """
    choice = plan.engine["runs"]
    is_together = choice == "together" or (choice == "auto" and _is_better_together(plan, list(runs.values())))
    kept = {name: rounds_kept(run.folder) for name, run in runs.items()}
    first_rounds = {name: rounds[-1] for name, rounds in kept.items()}
    common = common_round(kept.values())
    if is_together and (common or _were_together(runs)):  # also for a run that was saved later than the others
        first_rounds = dict.fromkeys(runs, common)
    divided: dict = {}
    for name, run in runs.items():
        divided.setdefault(first_rounds[name] if is_together else name, {})[name] = run
    return [_group(plan, part, first_rounds[next(iter(part))]) for part in divided.values()]


def _is_better_together(plan, runs):
    """Returns whether runs are faster as one program, which fits on the devices and ends with all of them."""
    sizes = [np.asarray(run.federation.ownership.sizes) for run in runs]
    is_on_disk = runs[0].federation.store is not None
    if is_on_disk or plan.engine["storage"] == "host" or plan.schedule.stop_at_accuracy:
        return False
    if not together.is_faster(plan.client_map, sizes, plan.algorithm.training.batch_size):
        return False
    if plan.engine["storage"] == "device":
        return True
    first = runs[0].federation
    clients = engine.client_shapes(plan.algorithm.enabled(), plan.model, first.num_clients)
    return together.fits(plan.client_map, (first.train, first.ownership), clients, len(runs))


@processes.in_first_process
def _were_together(runs):
    """Returns whether the runs were trained as one program.

    This matters if a kill came after the first save of only one of them.
    """
    names = [list(name) for name in runs]
    try:
        return all(json.loads(files.read(run.folder / TOGETHER)) == names for run in runs.values())
    except (OSError, ValueError):  # not started yet, or not written by this program
        return False


def _group(plan, runs, first_round):
    if len(runs) == 1:
        return Group(runs, plan, first_round, plan.client_map, None)
    run_map, client_map = together.lay_out_runs(plan.client_map, len(runs))
    return Group(runs, plan, first_round, client_map, run_map)


def fastest(run: Run, model: Model, schedule: Schedule, client_map: ClientMap) -> ClientMap:
    """Returns the client map on the devices of ``client_map`` whose number of clients at once makes rounds fastest.

    The timed rounds are discarded. Their seconds are stored in the cache folder, where they are found again for an
    equal device, network, algorithm, cohort and sizes of clients.
    """
    cohort_size = schedule.rule.cohort_size(run.federation.num_clients)

    def measure():
        seconds = {}
        for once in (n for n in _CLIENTS_AT_ONCE if n == 1 or n * client_map.num_devices <= cohort_size):
            candidate = _with_clients_at_once(client_map, once)
            seconds[str(once)] = _seconds(run, model, schedule._replace(rounds=1), candidate)
            if seconds[str(once)] > 2 * min(seconds.values()):  # more clients at once would be slower still
                break
        return seconds

    program = model, jax.tree.map(lambda leaf: 0, run.algorithm), float(run.algorithm.training.epochs)
    sizes = np.sort(np.asarray(run.federation.ownership.sizes)).tolist()
    key = *program, client_map.num_devices, cohort_size, sizes
    seconds = cached_numbers("layouts", client_map.devices[0], key, measure)
    return _with_clients_at_once(client_map, int(min(seconds, key=seconds.get)))


def _with_clients_at_once(client_map, once):
    if isinstance(client_map, Sharded):
        return dataclasses.replace(client_map, inner=Chunked(once))
    return Chunked(once, client_map.on)


def _seconds(run, model, schedule, client_map):
    """Returns the seconds of one round."""
    rounds = prepare(run, model, schedule, Hardware(client_map))
    program = engine.Program(rounds, [initialize(run, model, schedule)], run.federation.train)
    program.prepare()
    program.advance(1)
    taken = []
    for _ in range(_TIMED_ROUNDS):
        start = time.perf_counter()
        program.advance(1)
        taken.append(time.perf_counter() - start)
    return processes.all_gather(min(taken))[0]
