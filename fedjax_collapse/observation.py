"""What is measured of a run at an evaluated round: accuracies, spectra, and how long everything took."""

import math
import time
from typing import Any

import jax
import numpy as np

from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.algorithms.local_training import LocalTraining
from fedjax_collapse.analysis.spectrum import collapse_ratio, covariance_spectrum, effective_rank, significant_dims
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import RoundRecord, State
from fedjax_collapse.evaluation import Evaluation, evaluate, personal_accuracies
from fedjax_collapse.records import ClientState, Model, Ownership, Variables

HEADLINES = {
    "server_accuracy": "server model on the whole test set",
    "domain_accuracy": "server model, unweighted mean over the domains' test sets",
    "personal_accuracy": "personal models on their own test sets, unweighted mean over clients",
}


def headline_of(algorithm: Algorithm, federation: Federation) -> str:
    """The metric that ``accuracy`` repeats: that of the models that would be used, where they would be."""
    if algorithm.private != "none":
        return "personal_accuracy"
    return "server_accuracy" if federation.domains is None else "domain_accuracy"


def evaluate_models(
    algorithm: Algorithm,
    model: Model,
    state: State,
    watched: Variables,
    federation: Federation,
    own_tests: Ownership | None,
) -> tuple[Evaluation, Evaluation, np.ndarray | None]:
    """Of the server's model, of the watched client's, and the accuracies of all personal models, if there are any.

    ``own_tests``: every client's own test set, for personal models.

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
    accuracies = personal_accuracies(algorithm, model, server, clients, federation.test, own_tests)
    return *evaluations, jax.device_get(accuracies)


def measure(
    done: int,
    record: RoundRecord,
    federation: Federation,
    headline: str,
    server: Evaluation,
    local: Evaluation,
    personal: np.ndarray | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of metrics of the last of the record's rounds, the ``done``-th of the run, and the spectra behind it."""
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


def true_samples(record: RoundRecord, federation: Federation, training: LocalTraining) -> int:
    """Samples that clients trained on in the record's rounds; padding does not count."""
    per_epoch = np.asarray(training.examples_per_epoch(federation.ownership.sizes))
    return int(training.epochs) * int(np.sum((record.steps > 0) * per_epoch))


class Stopwatch:
    """Seconds per lap; tracing and compiling, wherever they happen, are a lap of their own."""

    _OUTERMOST = ("_run_rounds", "_run_together", "_run_round", "_evaluate", "_evaluate_batches")

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
        if event.startswith("/jax/core/compile/") and fun_name.removeprefix("jit(").rstrip(")") in self._OUTERMOST:
            self._compiling += seconds
