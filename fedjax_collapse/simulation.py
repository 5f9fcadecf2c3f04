"""A whole run: rounds, evaluation, what is remembered of them, checkpoints, stopping and resuming."""

import functools
import math
import operator
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.analysis.spectrum import collapse_ratio, covariance_spectrum, effective_rank, significant_dims
from fedjax_collapse.checkpoint import Checkpoints
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import ClientMap, State
from fedjax_collapse.evaluation import evaluate, personal_accuracies
from fedjax_collapse.metrics import History
from fedjax_collapse.records import ClientState, Key, Model, UserError, Variables

Listener = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


class Result(NamedTuple):
    """What a run leaves behind."""

    variables: Variables  # of the server, after the last round
    metrics: list[dict[str, Any]]  # a row per evaluated round
    clients: dict[str, np.ndarray]  # "round" [rounds], and each training metric [rounds, clients]
    spectra: dict[str, np.ndarray]  # "round" [evaluations], "server" and "local" [evaluations, features]
    timing: list[dict[str, Any]]  # a row per evaluated round: seconds in compiling, training, evaluating
    rounds_done: int  # fewer than asked for if the run was stopped
    headline: str  # which accuracy ``accuracy`` is


HEADLINES = {
    "server_accuracy": "server model on the whole test set",
    "domain_accuracy": "server model, unweighted mean over the domains' test sets",
    "personal_accuracy": "personal models on their own test sets, unweighted mean over clients",
}


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
    folder: Path | str | None = None,
    checkpoint_every: int = 10,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """The result of ``rounds`` rounds of ``algorithm`` on ``federation``.

    Args:
        key: of all randomness of the run; equal keys give equal results.
        variables: initial variables of the server; default, the model's own initialisation from ``key``.
        participation: fraction of the clients drawn into each round's cohort; at least one is.
        evaluate_every: rounds between evaluations; those in between run in one compiled call.
        client_map: how clients are laid out on the hardware; default, one after another.
        folder: where to write metrics and checkpoints. A second call with the same folder goes on from its last
            checkpoint and ends with the same bits as an uninterrupted run.
        checkpoint_every: rounds between checkpoints, rounded up to evaluations.
        listener: called with the rows of metrics and timing after every evaluation.
        should_stop: asked after every evaluation; True writes a checkpoint and returns.

    Raises:
        UserError: a value that makes no sense, or a folder of another run.
    """
    client_map = engine.Chunked(1) if client_map is None else client_map
    schedule = dict(rounds=rounds, participation=participation, evaluate_every=evaluate_every)
    layout = check(federation, model, algorithm, **schedule, checkpoint_every=checkpoint_every, client_map=client_map)
    algorithm = base.without_silent_regularizers(algorithm)
    own_tests = None if algorithm.private == "none" else federation.own_tests()
    headline = headline_of(algorithm, federation)
    key_init, key_rounds = jax.random.split(key)
    variables = model.init(key_init) if variables is None else variables
    algorithm = client_map.place(jax.tree.map(jnp.asarray, algorithm))
    state = engine.init(algorithm, model, variables, federation.num_clients, key_rounds)
    state, history, checkpoints = _open(folder, state)
    state, data = engine.place(client_map, state), client_map.place((federation.train, federation.ownership))
    run = functools.partial(engine.run_rounds, model=model, layout=layout)
    done = int(state.round)
    if not done:
        state = engine.start(algorithm, state, *data, model=model, layout=layout)
    while done < rounds:
        num_rounds = min(evaluate_every - done % evaluate_every, rounds - done)
        with _Stopwatch() as stopwatch:
            state, record, watched = jax.block_until_ready(run(algorithm, state, *data, num_rounds))
            stopwatch.lap("train")
            server, local, personal = _evaluate(algorithm, model, state, watched, federation, own_tests)
            stopwatch.lap("evaluate")
        done += num_rounds
        record = jax.tree.map(operator.itemgetter(slice(num_rounds)), jax.device_get(record))
        row, spectra = _measure(done, record, federation, headline, server, local, personal)
        timing = _timing(done, record, federation, algorithm.training, stopwatch.seconds)
        clients = {"round": np.arange(done - num_rounds, done) + 1, "steps": record.steps, **record.metrics}
        history.add(row, timing, clients, spectra)
        if listener:
            listener(row, timing)
        stopping = should_stop()
        if checkpoints and (stopping or done == rounds or done % checkpoint_every < num_rounds):
            history.save_arrays()
            checkpoints.save(done, engine.without_padding(state, federation.num_clients))
        if stopping:
            break
    if checkpoints:
        checkpoints.close()
    arrays = (history.rows, history.clients, history.spectra, history.timing)
    return Result(state.server.variables, *arrays, done, HEADLINES[headline])


def headline_of(algorithm: Algorithm, federation: Federation) -> str:
    """The metric that ``accuracy`` repeats: that of the models that would be used, where they would be."""
    if algorithm.private != "none":
        return "personal_accuracy"
    return "server_accuracy" if federation.domains is None else "domain_accuracy"


def cohort_size(participation: float, num_clients: int) -> int:
    """The number of clients in a round: their fraction rounded down, as in the papers' codes, but at least one."""
    return max(1, math.floor(participation * num_clients + 1e-6))  # 0.29 * 100 is a little below 29


def rounds_done(folder: Path | str) -> int:
    """The round of the folder's last checkpoint, from which ``simulate`` would go on; 0 if there is none."""
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    latest = checkpoints.latest
    checkpoints.close()
    return latest or 0


def check(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    rounds: int,
    participation: float,
    evaluate_every: int,
    checkpoint_every: int,
    client_map: ClientMap,
) -> engine.Layout:
    """How the rounds of a run are laid out.

    Raises:
        UserError: naming the value, for one that makes no sense, alone or with the others.
    """
    base.check(algorithm, model)
    for name, value in (("rounds", rounds), ("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        if value < 1:
            raise UserError(f"{name} {value} is too small, expected >= 1")
    if not 0 < participation <= 1:
        raise UserError(f"participation {participation:g} is outside (0, 1]: it is the fraction of clients in a round")
    layout = engine.Layout(
        client_map,
        cohort_size(participation, federation.num_clients),
        max_rounds=min(evaluate_every, rounds),
        halve_short_batches=_halves_short_batches(client_map, model, federation, algorithm),
    )
    train, ownership = federation.train, federation.ownership
    engine.trace(base.without_silent_regularizers(algorithm), train, ownership, model=model, layout=layout)
    return layout


def _halves_short_batches(client_map, model, federation, algorithm):
    training, sizes = algorithm.training, np.asarray(federation.ownership.sizes)
    if training.drop_last:
        return False
    return engine.halves_short_batches(client_map, model, sizes, training.batch_size)


def _open(folder, state: State) -> tuple[State, History, Checkpoints | None]:
    """The state and history to go on from: those of the folder's last checkpoint, or a fresh start."""
    if folder is None:
        return state, History(), None
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoints")
    latest = checkpoints.latest
    if latest is not None:
        state = checkpoints.load(latest, state)
    return state, History.resume(folder, latest or 0), checkpoints


def _evaluate(algorithm, model, state, watched, federation, own_tests):
    """Of the server's model, of the watched client's, and the accuracies of all personal models, if there are any.

    On one device: the variables may lie on several, which would all do the same work.
    """
    private = jax.tree.map(lambda leaf: leaf[: federation.num_clients], state.clients.private)
    clients = ClientState(memory={}, extra=(), private=private)
    arrays = (algorithm, state.server, clients, watched)
    algorithm, server, clients, watched = jax.device_put(arrays, jax.devices()[0])
    models = (base.evaluated(algorithm, server, clients), watched)
    evaluations = [jax.device_get(evaluate(model, variables, federation.test)) for variables in models]
    if own_tests is None:
        return *evaluations, None
    return *evaluations, jax.device_get(
        personal_accuracies(algorithm, model, server, clients, federation.test, own_tests)
    )


def _measure(done, record, federation, headline, server, local, personal):
    """The row of metrics of the last round, and the spectra behind it."""
    accuracies = {"server_accuracy": server.accuracy}
    if federation.domains is not None:
        by_domain = server.domain_accuracies(federation.domains)
        accuracies["domain_accuracy"] = float(np.nanmean(list(by_domain.values())))
        accuracies |= {f"domain_accuracy/{name}": value for name, value in by_domain.items()}
    if personal is not None:
        accuracies["personal_accuracy"] = float(np.nanmean(personal))
        accuracies["lowest_personal_accuracy"] = float(np.nanmin(personal))
    spectra = {"server": covariance_spectrum(server.features), "local": covariance_spectrum(local.features)}
    cohort = record.steps[-1] > 0
    weights = np.asarray(federation.ownership.sizes)[cohort]
    row = {
        "round": done,
        "accuracy": accuracies[headline],
        **accuracies,
        "loss": float(server.loss),
        "effective_rank": effective_rank(spectra["server"]),
        "significant_dims": significant_dims(spectra["server"]),
        "R": collapse_ratio(spectra["local"], spectra["server"]),
        "watched": int(record.watched[-1]),
        "local_accuracy": local.accuracy,
        "local_effective_rank": effective_rank(spectra["local"]),
        "local_significant_dims": significant_dims(spectra["local"]),
    }
    for name, values in record.metrics.items():
        row[f"train/{name}"] = float(np.average(values[-1][cohort], weights=weights)) if cohort.any() else math.nan
    return row, {"round": done, **spectra}


def _timing(done, record, federation, training, seconds):
    """Seconds since the last row, and true samples per second of training: padding and compiling do not count."""
    per_epoch = np.asarray(training.examples_per_epoch(federation.ownership.sizes))
    samples = int(training.epochs) * int(np.sum((record.steps > 0) * per_epoch))
    return {"round": done, **seconds, "samples": samples, "samples_per_second": samples / seconds["train"]}


class _Stopwatch:
    """Seconds per lap; tracing and compiling, wherever they happen, are a lap of their own."""

    def __enter__(self):
        self.seconds = {"compile": 0.0}
        self._last = time.perf_counter()
        self._compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = max(now - self._last - self._compiling, 0.0)
        self.seconds["compile"] += self._compiling
        self._last, self._compiling = now, 0.0

    def _listen(self, event: str, seconds: float, fun_name: str = "", **_) -> None:
        is_outermost = fun_name in ("_run_rounds", "evaluate", "jit(_run_rounds)", "jit(evaluate)")
        if event.startswith("/jax/core/compile/") and is_outermost:
            self._compiling += seconds
