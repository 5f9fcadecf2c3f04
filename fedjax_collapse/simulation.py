"""A whole run: rounds, evaluation, what is remembered of them, checkpoints, stopping and resuming."""

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.checkpoint import Checkpoints
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import ClientMap, State
from fedjax_collapse.metrics import History
from fedjax_collapse.observation import HEADLINES, Stopwatch, evaluate_models, headline_of, measure, true_samples
from fedjax_collapse.records import Key, Model, Ownership, UserError, Variables

Row = Mapping[str, Any]


class Result(NamedTuple):
    """What a run leaves behind."""

    variables: Variables  # of the server, after the last round
    metrics: list[dict[str, Any]]  # a row per evaluated round
    clients: dict[str, np.ndarray]  # "round" [rounds], and each training metric [rounds, clients]
    spectra: dict[str, np.ndarray]  # "round" [evaluations], "server" and "local" [evaluations, features]
    timing: list[dict[str, Any]]  # a row per evaluated round: seconds in compiling, training, evaluating
    rounds_done: int  # fewer than asked for if the run was stopped
    headline: str  # which accuracy ``accuracy`` is


class Run(NamedTuple):
    """What one run has for itself, among runs that go together."""

    federation: Federation
    algorithm: Algorithm
    key: Key
    folder: Path | str | None = None
    variables: Variables | None = None


class Schedule(NamedTuple):
    """How many rounds a run has, how large its cohorts are, and what happens between rounds; as for ``simulate``."""

    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    checkpoint_every: int = 10

    def check(self) -> None:
        """Raises UserError for a value that makes no sense."""
        for name in ("rounds", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} is too small, expected >= 1")
        if not 0 < self.participation <= 1:
            raise UserError(
                f"participation {self.participation:g} is outside (0, 1]: it is the fraction of clients in a round"
            )

    def rounds_after(self, done: int) -> int:
        """Rounds from there to the next evaluation."""
        return min(self.evaluate_every - done % self.evaluate_every, self.rounds - done)


def simulate(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    rounds: int,
    key: Key,
    variables: Variables | None = None,
    participation: float = 1.0,
    evaluate_every: int = 1,
    client_map: ClientMap | None = None,
    storage: str = "auto",
    folder: Path | str | None = None,
    checkpoint_every: int = 10,
    listener: Callable[[Row, Row], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """The result of ``rounds`` rounds of ``algorithm`` on ``federation``.

    Args:
        key: of all randomness of the run; equal keys give equal results.
        variables: initial variables of the server; default, the model's own initialisation from ``key``.
        participation: fraction of the clients drawn into each round's cohort; at least one is.
        evaluate_every: rounds between evaluations; those in between run in one compiled call.
        client_map: how clients are laid out on the hardware; default, one after another. Fewer clients at once are
            trained where the memory of a device does not suffice.
        storage: where examples and client states lie: ``device``; ``host``, from where each round's cohort is sent; or
            ``auto``, the device if they fit.
        folder: where to write metrics and checkpoints. A second call with the same folder goes on from its last
            checkpoint and ends with the same bits as an uninterrupted run.
        checkpoint_every: rounds between checkpoints, rounded up to evaluations.
        listener: called with the rows of metrics and timing after every evaluation.
        should_stop: asked after every evaluation; True writes a checkpoint and returns.

    Raises:
        UserError: a value that makes no sense, a folder of another run, or a round that does not fit into memory.
    """
    run = Run(federation, algorithm, key, folder, variables)
    schedule = Schedule(rounds, participation, evaluate_every, checkpoint_every)

    def tell(rows, timings):
        if listener:
            listener(rows[0], timings[0])

    layout = dict(client_map=engine.Chunked(1) if client_map is None else client_map, storage=storage)
    return simulate_runs([run], model, schedule, **layout, listener=tell, should_stop=should_stop)[0]


def simulate_runs(
    runs: Sequence[Run],
    model: Model,
    schedule: Schedule,
    *,
    client_map: ClientMap,
    run_map: ClientMap | None = None,
    storage: str = "auto",
    listener: Callable[[Sequence[Row], Sequence[Row]], None] = lambda rows, timings: None,
    announce: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """The results of runs that differ in seed, partition or numeric hyper-parameters, trained as one program.

    Args:
        runs: of one ``structure``; a single one is trained by itself.
        run_map: how the runs are laid out, each of them by ``client_map``; needed for more than one run.
        listener: called with the runs' rows of metrics and timing after every evaluation.
        announce: called with a line about layout and memory before the first round.

    The other arguments and errors are those of ``simulate``.
    """
    first = runs[0]
    for run in runs[1:]:
        base.check(run.algorithm)
    layout = check(first.federation, model, first.algorithm, schedule, client_map)
    if run_map is not None and not run_map.runs_clients_alone:
        layout = layout._replace(batch_parts=1)
    own_tests = [None if run.algorithm.private == "none" else run.federation.own_tests() for run in runs]
    headlines = [headline_of(run.algorithm, run.federation) for run in runs]
    algorithms, states, owners = zip(*(begin(run, model) for run in runs), strict=True)
    states, histories, checkpoints = zip(*_open(states, runs), strict=True)
    done = int(states[0].round)
    program = engine.Program(
        list(zip(algorithms, states, owners, strict=True)), first.federation.train,
        model=model, layout=layout, run_map=run_map, storage=storage,
    )  # fmt: skip
    compiling = 0.0
    if done < schedule.rounds:
        with Stopwatch() as stopwatch:
            announce(program.prepare())
            stopwatch.lap("prepare")
        compiling = stopwatch.seconds["compile"]
    while done < schedule.rounds:
        num_rounds = schedule.rounds_after(done)
        with Stopwatch() as stopwatch:
            outcomes = program.advance(num_rounds)
            stopwatch.lap("train")
            evaluations = [
                evaluate_models(algorithm, model, state, watched, run.federation, tests)
                for run, algorithm, (state, _, watched), tests in zip(
                    runs, algorithms, outcomes, own_tests, strict=True
                )
            ]
            stopwatch.lap("evaluate")
        done += num_rounds
        stopwatch.seconds["compile"] += compiling
        seconds = {name: value / len(runs) for name, value in stopwatch.seconds.items()}
        compiling = 0.0
        observed = zip(runs, headlines, histories, outcomes, evaluations, strict=True)
        rows = [_observe(done, num_rounds, seconds, *of_run) for of_run in observed]
        listener(*map(list, zip(*rows, strict=True)))
        stopping = should_stop()
        is_due = stopping or done == schedule.rounds or done % schedule.checkpoint_every < num_rounds
        if is_due and any(checkpoints):
            _save(done, histories, checkpoints, program.states())
        if stopping:
            break
    for store in filter(None, checkpoints):
        store.close()
    return [
        Result(variables, h.rows, h.clients, h.spectra, h.timing, done, HEADLINES[headline])
        for variables, h, headline in zip(program.variables(), histories, headlines, strict=True)
    ]


def structure(run: Run) -> Hashable:
    """What runs that go together have in common: all but numbers, which are seeds, partitions, hyper-parameters."""
    algorithm = jax.tree.structure(base.without_silent_regularizers(run.algorithm))
    return algorithm, id(run.federation.train.images), run.federation.ownership.rows.shape


def cohort_size(participation: float, num_clients: int) -> int:
    """The number of clients in a round: their fraction rounded down, as in the papers' codes, but at least one."""
    return max(1, math.floor(participation * num_clients + 1e-6))  # 0.29 * 100 is a little below 29


def rounds_kept(folder: Path | str) -> tuple[int, ...]:
    """The rounds of the folder's checkpoints, from which ``simulate`` could go on; 0 alone if there is none."""
    folder = Path(folder) / "checkpoints"
    if not folder.exists():
        return (0,)
    checkpoints = Checkpoints(folder)
    rounds = checkpoints.rounds
    checkpoints.close()
    return rounds or (0,)


def check(
    federation: Federation, model: Model, algorithm: Algorithm, schedule: Schedule, client_map: ClientMap
) -> engine.Layout:
    """How the rounds of a run are laid out.

    Raises:
        UserError: naming the value, for one that makes no sense, alone or with the others.
    """
    base.check(algorithm, model)
    schedule.check()
    training, sizes = algorithm.training, np.asarray(federation.ownership.sizes)
    parts = 1 if training.drop_last else engine.choose_batch_parts(client_map, model, sizes, training.batch_size)
    layout = engine.Layout(
        client_map,
        cohort_size(schedule.participation, federation.num_clients),
        max_rounds=min(schedule.evaluate_every, schedule.rounds),
        batch_parts=parts,
    )
    train, ownership = federation.train, federation.ownership
    engine.trace(base.without_silent_regularizers(algorithm), train, ownership, model=model, layout=layout)
    return layout


def begin(run: Run, model: Model) -> tuple[Algorithm, State, Ownership]:
    """What ``engine.Program`` takes of a run: the algorithm, its numbers as arrays; the state before the first round;
    and who owns what."""
    algorithm = jax.tree.map(jnp.asarray, base.without_silent_regularizers(run.algorithm))
    key_init, key_rounds = jax.random.split(run.key)
    variables = model.init(key_init) if run.variables is None else run.variables
    state = engine.init(algorithm, model, variables, run.federation.num_clients, key_rounds)
    return algorithm, state, run.federation.ownership


def _open(states: Sequence[State], runs: Sequence[Run]) -> list[tuple[State, History, Checkpoints | None]]:
    """What each run goes on from: the last checkpoint that all of them have, or a fresh start."""
    folders = [None if run.folder is None else Path(run.folder) for run in runs]
    for folder in filter(None, folders):
        folder.mkdir(parents=True, exist_ok=True)
    stores = [folder and Checkpoints(folder / "checkpoints") for folder in folders]
    common = common_round([store.rounds if store else () for store in stores])
    for store in filter(None, stores):
        store.forget_after(common)
    return [
        (
            store.load(common, state) if common else state,
            History() if folder is None else History.resume(folder, common),
            store,
        )
        for state, folder, store in zip(states, folders, stores, strict=True)
    ]


def common_round(kept: Iterable[Sequence[int]]) -> int:
    """The last round of which all runs have kept a checkpoint; 0 if there is none."""
    return max(set.intersection(*map(set, kept)), default=0)


def _observe(done, num_rounds, seconds, run, headline, history, outcome, evaluations):
    """The rows of metrics and timing of a run, which are also added to its history."""
    _, record, _ = outcome
    record = jax.tree.map(operator.itemgetter(slice(num_rounds)), jax.device_get(record))
    row, spectra = measure(done, record, run.federation, headline, *evaluations)
    samples = true_samples(record, run.federation, run.algorithm.training)
    timing = {"round": done, **seconds, "samples": samples, "samples_per_second": samples / seconds["train"]}
    clients = {"round": np.arange(done - num_rounds, done) + 1, "steps": record.steps, **record.metrics}
    history.add(row, timing, clients, spectra)
    return row, timing


def _save(done, histories, checkpoints, states):
    for history, store, state in zip(histories, checkpoints, states, strict=True):
        if store:
            history.save_arrays()
            store.save(done, state)
