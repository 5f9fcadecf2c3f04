"""Measurements of a run at an evaluated round: scores, spectra, and custom measurements.

A measurement is a function of a ``MeasurementView``, in NumPy or JAX, that returns a number, an array, or a dict of
them:

    def feature_norm(view):
        return float(np.linalg.norm(view.server.features, axis=1).mean())

    simulate(..., measurements={"feature_norm": feature_norm})  # logs and draws measured/feature_norm
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_collapse.analysis.moments import Moments, class_moments
from fedjax_collapse.analysis.spectrum import (
    collapse_ratio,
    covariance_spectrum,
    dead_features,
    effective_rank,
    significant_dims,
)
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import (
    MEASURED,
    ClientState,
    Key,
    Server,
    UserError,
    Variables,
    in_one_line,
    of_rounds,
)
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import Advance, Participation, RoundRecord, by_identity, on_one_device
from fedjax_collapse.engine.skipping import SKIPPED
from fedjax_collapse.engine.together import unstack
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run import own_tests
from fedjax_collapse.run.evaluation import Evaluation, evaluate
from fedjax_collapse.run.own_tests import RECEIVED, ClientScores
from fedjax_collapse.schema.annotations import as_array
from fedjax_collapse.training import server
from fedjax_collapse.training.algorithm import FedAvg

HEADLINES = {
    "server": "server model on the whole test set",
    "domain": "server model, unweighted mean over the domains' test sets",
    "personal": "personal models on their own test sets, unweighted mean over clients",
    "own": "models that clients receive, each on its client's own test rows, weighted by their number",
}


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
    """A model and its outputs on the test set, in the order of the examples."""

    variables: Variables
    evaluation: Evaluation
    labels: np.ndarray  # of the test set

    __repr__ = in_one_line

    @property
    def features(self) -> np.ndarray:
        """[examples, features].

        Raises:
            UserError: if every token has a label; of tokens only ``moments`` are stored.
        """
        return _stored(self.evaluation.features, "features")

    @property
    def logits(self) -> np.ndarray:
        """[examples, classes].

        Raises:
            UserError: as for ``features``.
        """
        return _stored(self.evaluation.logits, "logits")

    @property
    def num_classes(self) -> int:
        """The number of classes that the model predicts; if its outputs are no logits, those up to the last label."""
        return self.logits.shape[1] if self.logits.ndim == 2 else int(self.labels.max(initial=-1)) + 1

    @functools.cached_property
    def moments(self) -> Moments:
        """The moments of the features by class, computed once; of a single class if the task has no classes.

        If every token has a label, of the features of all tokens, of a single class.
        """
        if self.evaluation.moments is not None:
            return self.evaluation.moments
        if self.labels.ndim == 1 and self.labels.dtype.kind in "iu":
            return class_moments(self.features, self.labels, self.num_classes)
        return class_moments(self.features, np.zeros(len(self.features), int), 1)

    @functools.cached_property
    def spectrum(self) -> np.ndarray:
        """The eigenvalues of the covariance of the features, descending, [features]."""
        if self.evaluation.moments is not None:
            return self.moments.spectrum
        return covariance_spectrum(self.features)

    @functools.cached_property
    def dead_features(self) -> float:
        """The fraction of features that are the same for all examples, from 0 to 1; NaN unless all are finite."""
        if self.evaluation.moments is not None:
            return self.moments.dead_features
        return dead_features(self.features)


def _stored(outputs, name):
    if outputs is None:
        raise UserError(
            f"measurement: it reads {name}, but of single tokens only the moments of features are stored; leave "
            "it out, or read MeasuredModel.moments or spectrum"
        )
    return outputs


@dataclasses.dataclass(frozen=True)
class MeasurementView:
    """The input of a measurement; arrays of the test set are on the host.

    ``local`` holds, by client, the watched models after their training in the last round, before the server's step.
    """

    round: int  # rounds done
    server: MeasuredModel  # as it is evaluated
    local: Mapping[int, MeasuredModel]
    num_watched: int  # the number of watched clients, in the cohort or not
    federation: Federation
    model: Model
    received: Variables  # the server's model from which local training started in the last round
    algorithm: FedAvg
    own: Mapping[str, ClientScores] = dataclasses.field(default_factory=dict)  # by stage, if clients have own tests
    make_personal: Callable[[int], MeasuredModel] | None = None

    def __repr__(self) -> str:
        clients = ", ".join(map(str, self.local)) or "none"
        return f"MeasurementView(round {self.round}, local models of {clients}; {self.federation})"

    @property
    def private(self) -> Variables:
        """The mask (``core/masks.py``) of the params that never leave a client."""
        return self.model.mask(self.algorithm.private_part)

    @property
    def labels(self) -> np.ndarray:
        """Labels of the test set."""
        return self.server.labels

    @property
    def personal(self) -> np.ndarray | None:
        """[clients] mean scores of the models that clients receive on their own tests; None without own tests."""
        if not self.own:
            return None
        received = self.own[RECEIVED]
        return received.score / np.maximum(received.size, 1).astype(received.score.dtype)

    @functools.cached_property
    def personal_models(self) -> dict[int, MeasuredModel]:
        """By client, as ``local``: the models that these clients use after the round, evaluated when they are read."""
        return {client: self.make_personal(client) for client in self.local} if self.make_personal else {}

    @functools.cached_property
    def received_model(self) -> MeasuredModel:
        """The model ``received``, evaluated when this is read."""
        return _measured(self.model, self.received, self.federation)

    @property
    def updates(self) -> dict[int, dict[str, np.ndarray]]:
        """The change of the shared params during training, by watched client and by path."""
        return {client: self._change(model) for client, model in self.local.items()}

    @property
    def server_update(self) -> dict[str, np.ndarray]:
        """The change of the shared params from the model that clients received to the server's, by path."""
        return self._change(self.server)

    def over_clients(self, columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns each number of the watched clients: the value for one client, mean and range for several."""
        if self.num_watched == 1:
            return {name: _first(values) for name, values in columns.items()}
        kinds = {"mean": np.mean, "min": np.min, "max": np.max}
        return {
            f"{name}_{kind}": float(of(values)) if values else math.nan
            for name, values in columns.items()
            for kind, of in kinds.items()
        }

    def stacked(self, of_local: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
        """Returns [watched, ...]: an array of each watched client in the cohort, and NaN for the others."""
        return np.stack([*of_local, *[np.full_like(like, np.nan)] * (self.num_watched - len(of_local))])

    def check_classes(self, name: str, are_predicted: bool = False) -> None:
        """Raises UserError if the test set has no classes or, with ``are_predicted``, if the model predicts none."""
        is_missing = are_predicted and not self.model.task.is_classification
        if is_missing or self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise UserError(f"measurement {name}: it compares classes, and this task has none; leave it out")

    def _change(self, model):
        is_shared = masks.invert(self.private.params)
        both = (masks.select(is_shared, variables.params) for variables in (model.variables, self.received))
        return jax.tree.map(np.subtract, *jax.device_get(tuple(both)))


def _measured(model, variables, federation):
    evaluation = jax.device_get(evaluate(model, variables, federation.test))
    return MeasuredModel(variables, evaluation, np.asarray(federation.test.labels))


Measurement = Callable[[MeasurementView], Any]


def headline_of(algorithm: FedAvg, federation: Federation) -> str:
    """Returns which score is the headline: that of the models that would be used, on data where they would be used.

    With own test rows it is the same for all algorithms.
    """
    if federation.tests is not None:
        return "own"
    if algorithm.is_personal:
        return "personal"
    return "server" if federation.domains is None else "domain"


def view_models(
    algorithm: FedAvg, model: Model, advance: Advance, federation: Federation, order: jax.Array | None = None
) -> tuple[MeasurementView, Server, ClientState]:
    """Returns the input of measurements; the server with the evaluated model, and the clients, for own tests.

    All are on one device: otherwise all devices that hold the variables would do the same work. ``order`` is that of
    the stored clients.
    """
    done, clients = advance.state, server.scored_clients(algorithm, advance.state.clients)
    arrays = (algorithm, done.server, clients, advance.watched, done.key, done.round)
    algorithm, current, clients, watched, key, round = on_one_device(arrays)
    clients = by_identity(clients, federation.num_clients, order)

    def measured(variables):
        return _measured(model, variables, federation)

    of_server = measured(server.evaluated(algorithm, model, current, clients))
    ids = np.asarray(watched.ids)
    local = {
        int(client): measured(masks.fill(variables, watched.received))
        for client, variables in zip(ids, unstack(watched.variables, len(ids)), strict=True)
        if client < federation.num_clients
    }
    current = current._replace(variables=of_server.variables)

    def personal(client):
        data = federation.train, federation.ownership
        return measured(own_tests.personal_model(model, algorithm, current, clients, *data, key, round, client))

    run = federation, model, watched.received, algorithm
    view = MeasurementView(
        int(round), of_server, local, len(ids), *run, make_personal=personal if federation.store is None else None
    )
    return view, current, clients


def observe(
    view: MeasurementView,
    record: RoundRecord,
    sizes: np.ndarray,
    headline: str,
    measurements: Mapping[str, Measurement],
) -> tuple[dict[str, Any], Mapping, Mapping, Mapping]:
    """Returns the row of the last of the record's rounds, and its spectra, measurements and own tests: arrays by name.

    Args:
        view: the argument of the measurements.
        record: of the rounds since the last evaluation.
        sizes: [clients] number of examples that each client trains on.
        headline: the score that tables show, a key of ``HEADLINES``.
        measurements: by name.
    """
    metric, scores = view.model.task.metric, _scores(view)
    spectra, numbers = _spectra(view)
    row = {
        "round": view.round,
        metric: scores[f"{headline}_{metric}"],
        **scores,
        "loss": float(view.server.evaluation.loss),
        **numbers,
        **_training(record, sizes),
    }
    arrays = {}
    for path, value in (pair for name, of in measurements.items() for pair in _named(name, of(view))):
        if value.ndim:
            arrays[path] = value
        else:
            row[MEASURED + path] = float(value)
    own = own_tests.arrays(view.own) if view.federation.tests is not None else {}
    return row, {"round": view.round, **spectra}, arrays, own


def scored(record: RoundRecord, metric: str) -> RoundRecord:
    """Returns the record, on the host, with NaN for scores whose task loss is not finite; they are meaningless."""
    metrics = dict(record.metrics)
    for name in metrics:
        *epoch, last = name.split("/")
        loss = metrics.get("/".join([*epoch, "task_loss"]))
        if last == metric and loss is not None:
            metrics[name] = np.where(np.isfinite(loss), metrics[name], np.nan)
    return record._replace(metrics=metrics)


def mean_score(scores: np.ndarray, is_scored: np.ndarray) -> float:
    """Returns the unweighted mean of the scores where ``is_scored``; NaN if one of these is NaN, or there is none."""
    is_defined = is_scored.any() and np.isfinite(scores[is_scored]).all()
    return float(np.nanmean(scores)) if is_defined else math.nan


def virtual_time(rule: Participation, key: Key, record: RoundRecord, done: float) -> dict[str, float]:
    """Returns the virtual seconds of the last of the record's rounds, and of all so far, if clients have a speed.

    A round takes as long as its slowest client, but waits for a missing upload no longer than the deadline.

    Args:
        rule: the rules of participation.
        key: of the run.
        record: of the rounds since the last evaluation.
        done: the seconds before these rounds.
    """
    clock = rule.clock
    if clock is None:
        return {}
    seconds = np.where(record.steps > 0, clock.seconds(key, record.steps), 0)
    if clock.deadline is not None:
        seconds = np.where(record.metrics["arrived"] > 0, seconds, np.minimum(seconds, clock.deadline))
    rounds = seconds.max(axis=1).astype(float)
    return {"virtual/round_seconds": float(rounds[-1]), "virtual/seconds": done + float(rounds.sum())}


def _scores(view):
    """Returns the mean scores of the evaluated models, by name."""
    metric, evaluation, personal = view.model.task.metric, view.server.evaluation, view.personal
    scores = {f"server_{metric}": evaluation.score}
    scores |= {f"server_{name}": value for name, value in evaluation.further.items()}
    if view.federation.domains is not None:
        by_domain = evaluation.domain_scores(view.federation.domains)
        scores[f"domain_{metric}"] = mean_score(np.array(list(by_domain.values())), view.federation.domains.has_tests)
        scores |= {f"domain_{metric}/{name}": value for name, value in by_domain.items()}
    if personal is not None:
        scores[f"personal_{metric}"] = mean = mean_score(personal, view.own[RECEIVED].size > 0)
        scores[f"lowest_personal_{metric}"] = mean if math.isnan(mean) else float(np.nanmin(personal))
    if (examples := view.federation.common_validation) is not None:
        scores[f"validation_{metric}"] = jax.device_get(evaluate(view.model, view.server.variables, examples)).score
    if view.federation.tests is not None:
        scores |= own_tests.summarize(view.own, metric)
        scores[f"own_{metric}"] = scores[f"own/{RECEIVED}/{metric}/weighted"]
    return scores


def _spectra(view):
    """Returns spectra by name, and the numbers computed from them.

    ``local`` is the watched client with the lowest identity. If more may be watched, ``clients`` are all of them, NaN
    for one outside the cohort, and there are mean and range of each number.
    """
    of_server = view.server.spectrum
    of_local = [model.spectrum for model in view.local.values()]
    spectra = {"server": of_server, "local": of_local[0] if of_local else np.full_like(of_server, np.nan)}
    columns = {f"local_{view.model.task.metric}": [model.evaluation.score for model in view.local.values()]}
    columns["local_effective_rank"] = [effective_rank(spectrum) for spectrum in of_local]
    columns["local_significant_dims"] = [significant_dims(spectrum) for spectrum in of_local]
    columns["local_dead_features"] = [model.dead_features for model in view.local.values()]
    ratios = [collapse_ratio(spectrum, of_server) for spectrum in of_local]
    numbers = {"effective_rank": effective_rank(of_server), "significant_dims": significant_dims(of_server)}
    numbers["dead_features"] = view.server.dead_features
    numbers |= {"R": _first(ratios), "watched": _first(list(view.local))}
    numbers |= {name: _first(values) for name, values in columns.items()}
    if view.num_watched > 1:
        spectra["clients"] = view.stacked(of_local, of_server)
        spectra["watched"] = np.array(list(view.local) + [-1] * (view.num_watched - len(of_local)))
        numbers |= view.over_clients({"R": ratios, **columns})
    return spectra, numbers


def _first(values):
    return values[0] if values else math.nan


def _training(record, sizes):
    """Returns means of the last round's training metrics over the cohort, weighted by size.

    Skipped clients are counted over all rounds.
    """
    cohort, metrics = record.steps[-1] > 0, of_rounds(record.metrics)
    sizes = sizes if record.ids is None else record.of_entries(sizes)[-1]
    counts = {f"train/{name}": int(np.nansum(metrics.pop(name))) for name in (SKIPPED,) if name in metrics}
    return counts | {
        f"train/{name}": float(np.average(values[-1][cohort], weights=sizes[cohort])) if cohort.any() else math.nan
        for name, values in metrics.items()
    }


def _named(name, value):
    """Yields the arrays that a measurement returned, by name."""
    for key, item in value.items() if isinstance(value, Mapping) else [("", value)]:
        path = f"{name}/{key}" if key else name
        yield path, as_array(f"measurement {path}", item)
