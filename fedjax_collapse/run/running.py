"""The loop over rounds of one or several batched runs: functions of a record of the runs between two rounds."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import processes
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.engine import RoundRecord, State
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run import divergence
from fedjax_collapse.run.divergence import Divergence, Suspicion
from fedjax_collapse.run.history import KINDS
from fedjax_collapse.run.local_models import save_local_models
from fedjax_collapse.run.measurement import HEADLINES, headline_of, observe, scored, view_models, virtual_time
from fedjax_collapse.run.own_tests import by_stage, personal_model
from fedjax_collapse.run.resumption import Folders, stored_name
from fedjax_collapse.run.runs import Hardware, Row, Run, Schedule, initialize, prepare
from fedjax_collapse.run.stopwatch import Stopwatch
from fedjax_collapse.schema.options import check_fields
from fedjax_collapse.training import server
from fedjax_collapse.training.local import NotFinite

PATIENCE = 5.0  # seconds between two checks whether to stop


class Result(NamedTuple):
    """The results of a run."""

    variables: Variables  # of the server's model as it was evaluated after the last round
    metrics: list[dict[str, Any]]  # a row per evaluated round
    clients: dict[str, np.ndarray]  # "round" [rounds], and each training metric [rounds, clients]; see ``simulate``
    spectra: dict[str, np.ndarray]  # "round" [evaluations], "server" and "local" [evaluations, features]
    measurements: dict[str, np.ndarray]  # "round" [evaluations], and the arrays of the user's measurements
    own_tests: dict[str, np.ndarray]  # "round" [evaluations], and <stage>/size, score, loss, auc [evaluations, clients]
    timing: list[dict[str, Any]]  # a row per evaluated round: seconds in compiling, training, evaluating
    rounds_done: int  # fewer than requested if the run was stopped
    headline: str  # which models ``accuracy`` is of
    state: State  # of the server, with its methods, and of all clients, on the host
    private: Mapping[str, np.ndarray]  # by path, [clients, ...]: the private parts with which clients are evaluated
    personal: Callable[[int], Variables]  # the model that a client uses after the last round; of ``personal_accuracy``

    def __repr__(self) -> str:
        last = {name: value for name, value in (self.metrics or [{}])[-1].items() if "/" not in name}
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in list(last.items())[1:8])
        return f"Result({self.rounds_done} rounds: {numbers})"


class Loop:
    """Batched runs between two rounds: before their first round, or where their folders continue.

    Raises:
        UserError: a value is invalid, or a folder belongs to another run.
    """

    def __init__(self, runs: Sequence[Run], model: Model, schedule: Schedule, hardware: Hardware):
        self.runs = [_named(run, schedule) for run in runs]
        self.spec = prepare(self.runs[0], model, schedule, hardware)
        if hardware.run_map is not None:
            engine.check_at_once("run_map", hardware.run_map, len(runs), "the runs")
        self.tests = [run.federation.own_tests() if _has_own_tests(run) else None for run in self.runs]
        initial = [initialize(run, model, schedule) for run in self.runs]
        self.algorithms, states, assignments = zip(*initial, strict=True)  # their numbers as arrays
        self.folders = Folders(self.runs, self.spec.model, schedule)
        states = self.folders.open(states)
        self.schedule, self.done = schedule.resolved(self.runs[0].algorithm), int(states[0].round)
        is_checked = self.schedule.on_nan != "continue"
        self.diverged: dict[int, Divergence] = self.folders.divergences(self.done) if is_checked else {}  # by run
        parts, examples = list(zip(self.algorithms, states, assignments, strict=True)), self.runs[0].federation.train
        self.program = engine.Program(self.spec, parts, examples, hardware.storage, self.folders.client_states)
        self.storage, self.compiling = hardware.storage, 0.0  # seconds before the first round
        self.rounds_at_once = 1 if _is_divisible(self.algorithms) else self.schedule.evaluate_every  # at most
        self.records: Sequence[RoundRecord] = ()  # of the runs, since the last but one evaluation

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended or diverged."""
        histories = enumerate(self.folders.histories)
        return all(i in self.diverged or self.schedule.is_over(history.rows) for i, history in histories)


def _named(run, schedule):
    """Returns the run, if its method perturbs the mean upload with the name that its folder has stored.

    Raises:
        UserError: it is accounted for, but has neither a name nor a folder.
    """
    check_fields(run, "simulate")
    run.algorithm.check()
    if not run.algorithm.having("perturb"):
        return run
    name = stored_name(run)
    if schedule.privacy is not None and not name:
        raise UserError(
            "simulate: name is missing; expected one for a run with privacy that has no folder, to tell its noise "
            "from that of other runs"
        )
    return run._replace(name=name)


def _has_own_tests(run):
    return run.algorithm.is_personal or run.federation.tests is not None


def _is_divisible(algorithms):
    """Whether rounds between two evaluations may be several calls, at the end of each of which all clients measure."""
    return not any(algorithm.having("measure", "evaluation") for algorithm in algorithms)


def prepare_program(loop: Loop, announce: Callable[[str], None]) -> None:
    """Places and compiles the runs, unless they are over."""
    if not loop.is_over:
        with Stopwatch() as stopwatch:
            announce(loop.program.prepare())
            for line in loop.schedule.costs(loop.runs[0].federation):
                announce(line)
            stopwatch.lap("prepare")
        loop.compiling = stopwatch.seconds["compile"]


def advance(loop: Loop, should_stop: Callable[[], bool]) -> tuple[list[Row], list[Row]] | None:
    """Trains until the next evaluation and returns the runs' rows of metrics and of timing.

    ``should_stop`` is called every few seconds; if it returns True before the evaluation, this returns None, and the
    runs are saved between two evaluations.
    """
    end, started = loop.done + loop.schedule.rounds_after(loop.done), loop.done
    with Stopwatch() as stopwatch:
        while loop.done < end:
            advances = _train(loop, min(loop.rounds_at_once, end - loop.done), stopwatch)
            if loop.done < end and should_stop():
                return None
        loop.records = [_record_of(history.unevaluated) for history in loop.folders.histories]
        observed = [_observe(loop, i, advance) for i, advance in enumerate(advances)]
        stopwatch.lap("evaluate")
    stopwatch.seconds["compile"] += loop.compiling
    loop.compiling = 0.0
    seconds = {name: value / len(loop.runs) for name, value in stopwatch.seconds.items()}
    timings = [_timing(loop, i, end - started, seconds) for i in range(len(loop.runs))]
    for history, (row, *arrays), timing in zip(loop.folders.histories, observed, timings, strict=True):
        history.add(row, timing, *arrays)
    return [row for row, *_ in observed], timings


def _train(loop, num_rounds, stopwatch):
    """Trains all runs for a number of rounds in one call, and adds the rounds to their histories."""
    before = stopwatch.seconds.get("train", 0.0)
    advances = loop.program.advance(num_rounds)
    stopwatch.lap("train")
    loop.done += num_rounds
    for history, advance in zip(loop.folders.histories, advances, strict=True):
        record = jax.tree.map(operator.itemgetter(slice(num_rounds)), advance.record)
        record = scored(record, loop.spec.model.task.metric)
        rounds = np.arange(loop.done - num_rounds, loop.done) + 1
        listed = {} if record.ids is None else {"client": record.ids}
        history.add_rounds({"round": rounds, **listed, "steps": record.steps, **record.metrics})
    if _is_divisible(loop.algorithms) and loop.schedule.evaluate_every > 1:
        per_round = (stopwatch.seconds["train"] - before) / num_rounds
        loop.rounds_at_once = min(processes.all_gather(max(1, int(PATIENCE / max(per_round, 1e-6)))))
    return advances


def _record_of(clients):
    """Returns the record of rounds, from the arrays of a history."""
    metrics = {name: values for name, values in clients.items() if name not in ("round", "steps", "client")}
    return RoundRecord(metrics, clients["steps"], clients.get("client"))


def _observe(loop, i, advance):
    """Returns what ``observe`` returns of a run, after the rounds of its record."""
    run, algorithm, tests, record = loop.runs[i], loop.algorithms[i], loop.tests[i], loop.records[i]
    model, history, schedule = loop.spec.model, loop.folders.histories[i], loop.schedule
    view, *models = view_models(algorithm, model, advance, run.federation, loop.program.order)
    key = engine.on_one_device(advance.state.key)
    if tests is not None:
        data = view.federation, tests, schedule.finetuning
        view = dataclasses.replace(view, own=by_stage(algorithm, model, *models, *data, key, view.round))
    measurements = schedule.measured_after(view.round, len(record.steps))
    headline = headline_of(run.algorithm, run.federation)
    row, *arrays = observe(view, record, _trained_sizes(run), headline, measurements)
    done = history.rows[-1].get("virtual/seconds", 0.0) if history.rows else 0.0
    row |= virtual_time(schedule.rule, key, record, done) | loop.folders.spent[i]
    if history.folder is not None and schedule.keeps_local(row):
        local = {client: model.variables for client, model in view.local.items()}
        save_local_models(history.folder, view.round, local, schedule.save_local)
    return row, *arrays


def _trained_sizes(run):
    return np.asarray(run.algorithm.trained_sizes(run.federation.ownership.sizes))


def _timing(loop, i, num_rounds, seconds):
    """Returns a run's row of timing.

    ``num_rounds`` took ``seconds``; these may be fewer rounds than since the last evaluation, if the run was resumed.
    """
    steps, sizes = loop.records[i].steps[-num_rounds:], loop.records[i].of_entries(_trained_sizes(loop.runs[i]))
    sizes = sizes[-num_rounds:] if sizes.ndim > 1 else sizes
    samples = int(np.sum(loop.runs[i].algorithm.training.examples_in(steps, sizes)))  # without padding
    timing = {"round": loop.done, **seconds, "samples": samples, "samples_per_second": samples / seconds["train"]}
    timing["shared_by"] = len(loop.runs)  # whose program's time is divided among them in equal parts
    return timing | {"round_bytes": loop.program.round_bytes, "stored_bytes": loop.program.stored_bytes}


def find_diverged(loop: Loop, announce: Callable[[str], None]) -> None:
    """Finds the cause if runs have diverged in the last rounds, unless ``on_nan`` is ``continue``."""
    for i, record in enumerate(loop.records):
        if loop.schedule.on_nan != "continue" and i not in loop.diverged:
            loss = loop.folders.histories[i].rows[-1]["loss"]
            if found := divergence.find_nonfinite(record, loop.done, loss, loop.spec.model.task.metric):
                loop.diverged[i] = _locate_nonfinite(loop, i, found, announce)


@processes.in_first_process
def _locate_nonfinite(loop, i, found, announce):
    """Returns the divergence, which its folder stores, with client and step; only devices of this process are used."""
    if loop.folders.client_states is not None:  # the files have the states of the last round only
        return _explain(loop, i, found, None)
    announce(f"round {found.round} is not finite; it is run again to find out why")
    algorithm, state, data = initialize(loop.runs[i], loop.spec.model, loop.schedule)
    run = algorithm, loop.folders.state_before(i, found.round, state), data
    examples = loop.runs[i].federation.train
    return _explain(loop, i, found, divergence.locate_nonfinite(loop.spec, run, examples, loop.storage, found))


def stop_at(loop: Loop, failure: NotFinite) -> None:
    """Records a failure in the debug layout as the end of its run."""
    found = Suspicion(failure.where[0] + 1, failure.where[1:2], (failure.what,))
    loop.diverged[0] = _explain(loop, 0, found, failure)


def _explain(loop, i, found, failure):
    training, folder = loop.algorithms[i].training, loop.folders.histories[i].folder
    return divergence.explain(found, failure, training, folder, loop.spec.layout.client_map.is_compiled)


def save(loop: Loop, is_stopping: bool) -> None:
    """Saves every run that has a folder, if a checkpoint is due."""
    is_due = is_stopping or loop.is_over or loop.done % loop.schedule.checkpoint_every < len(loop.records[0].steps)
    if is_due:
        loop.folders.save(loop.done, loop.program.states)


def results(loop: Loop) -> list[Result]:
    """Returns the results of each run; also writes them to its folder, if it has ended."""
    return [_result(loop, i, state) for i, state in enumerate(loop.program.states())]


def _result(loop, i, state):
    run, algorithm, history = loop.runs[i], loop.algorithms[i], loop.folders.histories[i]
    variables = server.evaluated(algorithm, loop.spec.model, state.server, state.clients)
    if loop.schedule.is_over(history.rows):
        loop.folders.finish(i, variables)
    arrays = map(history.arrays, KINDS)
    headline = HEADLINES[headline_of(run.algorithm, run.federation)]
    private = jax.device_get(state.clients.private)
    evaluated = state._replace(server=state.server._replace(variables=variables))
    personal = functools.partial(_personal, run.federation, loop.spec.model, algorithm, evaluated)
    return Result(variables, history.rows, *arrays, history.timing, loop.done, headline, state, private, personal)


def _personal(federation, model, algorithm, state, client):
    """Returns the model that a client uses after the last round."""
    if federation.store is not None:
        raise UserError("personal models of a federation on disk are not supported; choose storage=host")
    clients = server.scored_clients(algorithm, state.clients)
    arguments = algorithm, state.server, clients, federation.train, federation.ownership, state.key, state.round
    return personal_model(model, *engine.on_one_device(arguments), client)
