"""The loop over rounds of one or several batched runs: training, evaluation, storage of the results, checkpoints."""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import masks, processes
from fedjax_collapse.core.records import ClientState, UserError, Variables
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.engine import Advance, RoundRecord, State
from fedjax_collapse.engine.client_states import StoredStates, check_space
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run import divergence
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.divergence import Divergence
from fedjax_collapse.run.fingerprint import claim, name_in
from fedjax_collapse.run.history import History
from fedjax_collapse.run.local_models import save_local_models
from fedjax_collapse.run.measurement import HEADLINES, headline_of, observe, scored, view_models, virtual_time
from fedjax_collapse.run.own_tests import by_stage, personal_model
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.resumption import make_folder, newest_whole, rounds_released
from fedjax_collapse.run.runs import Hardware, Row, Run, Schedule, description, initialize, prepare
from fedjax_collapse.run.stopwatch import Stopwatch
from fedjax_collapse.schema.options import check_fields
from fedjax_collapse.training import server
from fedjax_collapse.training.local import NotFinite

_LOGGED = 3  # the most intervals between checkpoints whose changes of client states in files are logged
PRIVACY = "privacy.json"  # in a run's folder: epsilon, and what it does not cover
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
    make_personal: Callable[[int], Variables]

    def personal(self, client: int) -> Variables:
        """Returns the model that a client uses after the last round, the model of ``personal_accuracy``."""
        return self.make_personal(client)

    def __repr__(self) -> str:
        last = {name: value for name, value in (self.metrics or [{}])[-1].items() if "/" not in name}
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in list(last.items())[1:8])
        return f"Result({self.rounds_done} rounds: {numbers})"


def _record(clients):
    """Returns the record of rounds, from the arrays of a history."""
    metrics = {name: values for name, values in clients.items() if name not in ("round", "steps", "client")}
    return RoundRecord(metrics, clients["steps"], clients.get("client"))


def _as_lists(arrays):
    """Returns values and type of each array."""
    return {name: [array.tolist(), str(array.dtype)] for name, array in arrays.items()}


def _call(functions):
    for function in functions:
        function()


def _named(runs, schedule):
    """Returns the runs; those whose method perturbs the mean upload with the name that their folder has stored.

    Raises:
        UserError: a run is accounted for, but has neither a name nor a folder.
    """

    def name_of(run):  # in the first process, which alone has folders
        folder = run.folder and Path(run.folder).absolute()
        return (folder and name_in(folder)) or run.name or (folder.name if folder else "")

    def named(run):
        check_fields(run, "simulate")
        run.algorithm.check()
        if not run.algorithm.having("perturb"):
            return run
        name = processes.broadcast_from_first(lambda: name_of(run))
        if schedule.privacy is not None and not name:
            raise UserError(
                "simulate: name is missing; expected one for a run with privacy that has no folder, to tell its noise "
                "from that of other runs"
            )
        return run._replace(name=name)

    return [named(run) for run in runs]


def _has_own_tests(run):
    return run.algorithm.is_personal or run.federation.tests is not None


class RunLoop:
    """The loop over rounds: the runs' program, their histories, their checkpoints."""

    def __init__(self, runs: Sequence[Run], model: Model, schedule: Schedule, hardware: Hardware):
        runs = _named(runs, schedule)
        spec = prepare(runs[0], model, schedule, hardware)
        if hardware.run_map is not None:
            engine.check_at_once("run_map", hardware.run_map, len(runs), "the runs")
        self.runs, self.model, self.schedule = runs, spec.model, schedule.resolved(runs[0].algorithm)
        self.tests = [run.federation.own_tests() if _has_own_tests(run) else None for run in runs]
        self.headlines = [headline_of(run.algorithm, run.federation) for run in runs]
        self.sizes = [np.asarray(run.algorithm.trained_sizes(run.federation.ownership.sizes)) for run in runs]
        initial = [initialize(run, model, schedule) for run in runs]
        self.algorithms, states, assignments = zip(*initial, strict=True)
        stored, states = self._in_files(states)
        self.stores: list[Checkpoints | None] = [None] * len(runs)
        self.spent: list[dict[str, float]] = [{} for _ in runs]
        states, self.histories = self._open_in_first(states)
        self.done, self.last = int(states[0].round), 0
        self.stored = stored(self.done) if stored else None
        # all clients measure at the end of a call: then the rounds between two evaluations are a single one
        self.is_divisible = not any(algorithm.having("measure", "evaluation") for algorithm in self.algorithms)
        self.rounds_at_once = 1 if self.is_divisible else schedule.evaluate_every
        self.diverged = self._remembered_divergences()
        parts = list(zip(self.algorithms, states, assignments, strict=True))
        self.program = engine.Program(spec, parts, runs[0].federation.train, hardware.storage, self.stored)
        self.compiling = 0.0
        self.spec, self.storage = spec, hardware.storage

    def _in_files(self, states):
        """Returns what opens the client states in files, or None, and the states, then without those of clients.

        They are in files for a federation on disk whose run has a folder.

        Raises:
            UserError: the disk has no room for them.
        """
        run, state = self.runs[0], states[0]
        if run.federation.store is None or not jax.tree.leaves(state.clients):
            return None, states
        if not processes.broadcast_from_first(lambda: run.folder is not None):
            return None, states
        initial, count = jax.tree.map(lambda leaf: np.array(leaf[0]), state.clients), run.federation.num_clients
        cohort_size, schedule = self.schedule.rule.cohort_size(count), self.schedule
        logged = _LOGGED * max(schedule.checkpoint_every, schedule.evaluate_every)
        folder = Path(run.folder or "")  # only the first process uses it

        def check_folder():
            make_folder(folder)
            check_space(folder, initial, count, cohort_size, schedule.rounds, logged)

        def open_at(done):
            return StoredStates(folder / "states", initial, count, done, self.histories[0].client_states)

        processes.broadcast_from_first(check_folder)

        return open_at, [state._replace(clients=ClientState({}, {}))]

    def _privacy(self, run, done):
        """Returns the epsilon of a run, by the name of its metric, and what its folder says of its privacy, if any.

        ``done``: the number of rounds that the folder has results of, which count, too.
        """
        schedule, rounds = self.schedule, max(self.schedule.rounds, done)
        return guarantee.statement(schedule.privacy, run.algorithm, schedule.rule, rounds, run.federation.num_clients)

    def _open_in_first(self, states):
        """Returns what ``_open`` returns.

        Only the first of several processes has folders; it sends the states to the others.
        """
        processes.check_alike(lambda: {"run": [description(run, self.model, self.schedule) for run in self.runs]})
        histories, opened = [History() for _ in self.runs], list(states)

        def open_folders():
            opened[:], histories[:] = self._open(states)
            return [(history.rows[-1:], _as_lists(history.unevaluated)) for history in histories], self.spent

        needed, self.spent = processes.broadcast_from_first(open_folders)
        for history, (rows, unevaluated) in () if processes.is_first() else zip(histories, needed, strict=True):
            history.rows.extend(rows)
            if unevaluated:
                history.add_rounds({name: np.array(*of_array) for name, of_array in unevaluated.items()})
        return processes.broadcast_arrays(opened), histories

    def _open(self, states):
        """Returns what each run resumes from: the last undamaged checkpoint that all of them have, or a fresh start."""
        folders = [None if run.folder is None else Path(run.folder) for run in self.runs]
        for folder in filter(None, folders):
            make_folder(folder)
        self.stores = [folder and Checkpoints(folder / "checkpoints") for folder in folders]
        claims = {
            folder: (description(run, self.model, self.schedule), bool(store.rounds))
            for run, folder, store in zip(self.runs, folders, self.stores, strict=True)
            if folder
        }
        released = [rounds_released(folder) if folder else 0 for folder in folders]
        self.spent, statements = map(list, zip(*map(self._privacy, self.runs, released), strict=True))
        claim(claims)
        for folder, says in zip(folders, statements, strict=True):
            if folder and says:
                write_json(folder / PRIVACY, says)
        done, states, histories = newest_whole(folders, self.stores, states, self.schedule.measure_every)
        for store in filter(None, self.stores):
            store.forget_after(done)
        for history in histories:
            history.cut()
        return states, histories

    def _remembered_divergences(self):
        """Returns, by run, the divergences that earlier starts have found, unless ``on_nan`` is ``continue``."""
        if self.schedule.on_nan == "continue":
            return {}
        folders = [history.folder for history in self.histories]
        own = [folder and divergence.remembered(folder, self.done) for folder in folders]
        known = processes.broadcast_from_first(lambda: [found and (found.round, found.line) for found in own])
        found = [mine or (told and Divergence(*told, {})) for mine, told in zip(own, known, strict=True)]
        return {i: diverged for i, diverged in enumerate(found) if diverged}

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended or diverged."""
        return all(i in self.diverged or self.schedule.is_over(h.rows) for i, h in enumerate(self.histories))

    def prepare(self, announce: Callable[[str], None]) -> None:
        """Places and compiles the runs, unless they are over."""
        if not self.is_over:
            with Stopwatch() as stopwatch:
                announce(self.program.prepare())
                for line in self.schedule.costs(self.runs[0].federation):
                    announce(line)
                stopwatch.lap("prepare")
            self.compiling = stopwatch.seconds["compile"]

    def advance(self, should_stop: Callable[[], bool]) -> tuple[list[Row], list[Row]] | None:
        """Trains until the next evaluation and returns the runs' rows of metrics and of timing.

        ``should_stop`` is called every few seconds; if it returns True before the evaluation, this returns None, and
        the runs are saved between two evaluations.
        """
        end, started = self.done + self.schedule.rounds_after(self.done), self.done
        with Stopwatch() as stopwatch:
            while self.done < end:
                advances = self._train(min(self.rounds_at_once, end - self.done), stopwatch)
                if self.done < end and should_stop():
                    return None
            records = [_record(history.unevaluated) for history in self.histories]
            observed = [self._observe(i, *of_run) for i, of_run in enumerate(zip(advances, records, strict=True))]
            stopwatch.lap("evaluate")
        self.records, self.last = records, len(records[0].steps)
        stopwatch.seconds["compile"] += self.compiling
        self.compiling = 0.0
        seconds = {name: value / len(self.runs) for name, value in stopwatch.seconds.items()}
        rows = [self._remember(i, end - started, seconds, observation) for i, observation in enumerate(observed)]
        return tuple(map(list, zip(*rows, strict=True)))

    def _train(self, num_rounds, stopwatch):
        """Trains all runs for a number of rounds in one call, and adds the rounds to their histories."""
        before = stopwatch.seconds.get("train", 0.0)
        advances = self.program.advance(num_rounds)
        stopwatch.lap("train")
        self.done += num_rounds
        for history, advance in zip(self.histories, advances, strict=True):
            record = jax.tree.map(operator.itemgetter(slice(num_rounds)), engine.to_host(advance.record))
            record = scored(record, self.model.task.metric)
            rounds = np.arange(self.done - num_rounds, self.done) + 1
            listed = {} if record.ids is None else {"client": record.ids}
            history.add_rounds({"round": rounds, **listed, "steps": record.steps, **record.metrics})
        if self.is_divisible and self.schedule.evaluate_every > 1:
            per_round = (stopwatch.seconds["train"] - before) / num_rounds
            self.rounds_at_once = min(processes.all_gather(max(1, int(PATIENCE / max(per_round, 1e-6)))))
        return advances

    def find_diverged(self, announce: Callable[[str], None]) -> None:
        """Finds the cause if runs have diverged in the last rounds, unless ``on_nan`` is ``continue``."""
        for i, record in enumerate(self.records):
            if self.schedule.on_nan != "continue" and i not in self.diverged:
                loss = self.histories[i].rows[-1]["loss"]
                if found := divergence.find_nonfinite(record, self.done, loss, self.model.task.metric):
                    locate = functools.partial(self._locate_nonfinite, i, found, announce)
                    line = processes.broadcast_from_first(locate)
                    self.diverged.setdefault(i, Divergence(found.round, line, {}))

    def _locate_nonfinite(self, i, found, announce):
        """Stores client and step of the divergence, and returns its message; only devices of this process are used."""
        if self.stored is not None:  # the files have the states of the last round only
            self._keep_divergence(i, found, None)
            return self.diverged[i].line
        announce(f"round {found.round} is not finite; it is run again to find out why")
        run, examples = self._before(i, found.round), self.runs[i].federation.train
        failure = divergence.locate_nonfinite(self.spec, run, examples, self.storage, found)
        self._keep_divergence(i, found, failure)
        return self.diverged[i].line

    def stop_at(self, failure: NotFinite) -> None:
        """Records a failure in the debug layout as the end of its run."""
        found = divergence.Suspicion(failure.where[0] + 1, failure.where[1:2], (failure.what,))
        self._keep_divergence(0, found, failure)

    def _keep_divergence(self, i, found, failure):
        training, folder = self.algorithms[i].training, self.histories[i].folder
        can_go_on = self.spec.layout.client_map.is_compiled
        self.diverged[i] = divergence.explain(found, failure, training, folder, can_go_on)

    def _before(self, i, round):
        """Returns algorithm, state and data of a run at its last checkpoint before a round."""
        algorithm, state, data = initialize(self.runs[i], self.model, self.schedule)
        kept = [k for k in self.stores[i].rounds if k < round] if self.stores[i] else ()
        return algorithm, self.stores[i].load(kept[-1], state)[0] if kept else state, data

    def _observe(self, i: int, advance: Advance, record: RoundRecord):
        """Returns the observation of a run after the record's rounds."""
        algorithm, tests = self.algorithms[i], self.tests[i]
        view, *models = view_models(algorithm, self.model, advance, self.runs[i].federation, self.program.order)
        key = engine.on_one_device(advance.state.key)
        if tests is not None:
            data = view.federation, tests, self.schedule.finetuning
            view = dataclasses.replace(view, own=by_stage(algorithm, self.model, *models, *data, key, view.round))
        measurements = self.schedule.measured_after(view.round, len(record.steps))
        observation = observe(view, record, self.sizes[i], self.headlines[i], measurements)
        rows = self.histories[i].rows
        done = rows[-1].get("virtual/seconds", 0.0) if rows else 0.0
        observation.row.update(virtual_time(self.schedule.rule, key, record, done) | self.spent[i])
        folder = self.histories[i].folder
        if folder is not None and self.schedule.keeps_local(observation.row):
            models = {client: model.variables for client, model in view.local.items()}
            save_local_models(folder, view.round, models, self.schedule.save_local)
        return observation

    def _remember(self, i, num_rounds, seconds, observation):
        """Returns a run's rows of metrics and timing, and adds them to its history.

        ``num_rounds`` took ``seconds``; these may be fewer rounds than since the last evaluation, if the run was
        resumed.
        """
        steps, sizes = self.records[i].steps[-num_rounds:], self.records[i].of_entries(self.sizes[i])
        sizes = sizes[-num_rounds:] if sizes.ndim > 1 else sizes
        training = self.runs[i].algorithm.training
        samples = int(np.sum(training.examples_in(np.asarray(steps), sizes)))  # without padding
        timing = {"round": self.done, **seconds, "samples": samples, "samples_per_second": samples / seconds["train"]}
        timing["shared_by"] = len(self.runs)  # whose program's time is divided among them in equal parts
        timing |= {"round_bytes": self.program.round_bytes, "stored_bytes": self.program.stored_bytes}
        self.histories[i].add(observation.row, timing, *observation[1:])
        return observation.row, timing

    def save(self, is_stopping: bool) -> None:
        """Saves every run that has a folder, if a checkpoint is due."""
        is_due = self.done % self.schedule.checkpoint_every < self.last
        is_due = is_due or is_stopping or self.is_over
        if is_due and any(run.folder for run in self.runs):
            states = self.program.states()
            clients = [state.clients for state in states]
            must_wait = processes.is_multiprocess() or not engine.memory.fits_on_host(clients)
            processes.broadcast_from_first(lambda: self._save(states, must_wait))

    def _save(self, states, must_wait):
        """Saves the runs; ``must_wait`` if other processes wait, or memory has no room for a copy of the states."""
        for history, store, state in zip(self.histories, self.stores, states, strict=True):
            if store:
                before = [history.to_save()]
                if self.stored is not None:
                    oldest = min(store.rounds, default=0)
                    history.client_states = self.stored.digest
                    before += [self.stored.flush, functools.partial(self.stored.forget_before, oldest)]
                store.save(self.done, state, history.written(), functools.partial(_call, before), must_wait)

    @contextlib.contextmanager
    def written_at_last(self) -> Iterator[None]:
        """Waits for all saves at the end of its body; an error of the body takes precedence over theirs."""
        failed = []
        try:
            yield
        finally:
            for store in filter(None, self.stores):
                try:
                    store.wait()
                except Exception as error:
                    failed.append(error)
        for error in failed[:1]:
            raise error

    def _personal(self, i, state, client):
        """Returns the model that a client of a run uses after the last round."""
        if self.runs[i].federation.store is not None:
            raise UserError("personal models: not of a federation on disk; choose storage=host")
        data = self.runs[i].federation.train, self.runs[i].federation.ownership
        clients = server.scored_clients(self.algorithms[i], state.clients)
        arguments = self.algorithms[i], state.server, clients, *data, state.key, state.round
        return personal_model(self.model, *engine.on_one_device(arguments), client)

    def results(self) -> list[Result]:
        """Returns the results of each run; also writes them to its folder, if it has ended."""
        results = []
        for i, state in enumerate(self.program.states()):
            history, folder = self.histories[i], self.histories[i].folder
            variables = server.evaluated(self.algorithms[i], self.model, state.server, state.clients)
            if folder is not None and self.schedule.is_over(history.rows):
                history.finish()
                write_npz(Path(folder) / "final.npz", jax.device_get(masks.by_path(variables._asdict())))
            saved = history.rows, history.clients, history.spectra, history.measurements, history.own_tests
            headline = HEADLINES[self.headlines[i]]
            private = jax.device_get(state.clients.private)
            personal = functools.partial(
                self._personal, i, state._replace(server=state.server._replace(variables=variables))
            )
            results.append(Result(variables, *saved, history.timing, self.done, headline, state, private, personal))
        return results
