"""Scores of every client on its own test rows, at each stage of the protocols of personalised learning."""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import Positive, check_fields
from fedjax_collapse.core.records import Client, ClientState, Key, Ownership, Server, Variables
from fedjax_collapse.data.batches import get_batch, pad_to_batches
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.nn.model import Model
from fedjax_collapse.simulation.evaluation import are_finite, scores_of
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local import LocalContext, train
from fedjax_collapse.training.local_training import LocalTraining, Phase

RECEIVED, FINETUNED = "received", "finetuned"  # the stages
VALIDATION = "validation"  # of the received models, on the validation rows
_BATCH = 128


class Finetuning(NamedTuple):
    """Training that every client does before it is tested, from the model that it received, and that is then discarded.

    Batches, momentum, weight decay and augmentation are those of local training, the loss is that of the task.

    Args:
        epochs: passes over the client's own training rows.
        part: the part of the network that is trained (``core/masks.py``).
        learning_rate: of all rounds; None is that of local training, without its schedule.
    """

    epochs: Positive = 1
    part: str = "all"
    learning_rate: Positive | None = None

    def training(self, local: LocalTraining) -> LocalTraining:
        """Returns how a client trains."""
        rate = local.learning_rate if self.learning_rate is None else self.learning_rate
        return local.replace(
            phases=(Phase(self.part, self.epochs),), learning_rate=rate, schedule=None, steps=None,
            freeze="none", drop_last=False, logged_epochs=0, momentum_reset=True,
        )  # fmt: skip

    def check(self, local: LocalTraining, model: Model) -> None:
        """Raises UserError for a value that is invalid, or a part that the network lacks."""
        check_fields(self, "finetuning")
        self.training(local).check()
        model.mask(self.part)


class ClientScores(NamedTuple):
    """Scores on each client's own rows; NaN, but for the size, without rows or if the model is not finite."""

    size: np.ndarray  # [clients] number of rows
    score: np.ndarray  # [clients] sum of scores; for classification the number of correct predictions
    loss: np.ndarray  # [clients] mean loss in nats
    auc: np.ndarray  # [clients] area under the ROC curve, micro, of the softmax; NaN without classes

    def summary(self, metric: str) -> dict[str, float]:
        """Returns the aggregates over all clients that have rows, by name; NaN if one of these has no score.

        ``<metric>/weighted``: by rows, as PFLlib prints it; ``mean`` and ``std`` over clients (``ddof`` 0); ``min``;
        ``decile``, of K sorted clients the one after the K // 10 lowest; ``worst_decile``, the mean of the ceil(K / 10)
        lowest. ``loss`` and ``auc`` are weighted by rows.
        """
        has_rows = self.size > 0
        size, score = self.size[has_rows], self.score[has_rows]
        of_client = np.sort(score / size)
        count = len(size)
        found = {
            "weighted": score.sum() / size.sum(),
            "mean": of_client.mean(),
            "std": of_client.std(),
            "min": of_client[0],
            "decile": of_client[count // 10],
            "worst_decile": of_client[: -(-count // 10)].mean(),
        }
        if not np.isfinite(of_client).all():
            found = dict.fromkeys(found, math.nan)
        summary = {f"{metric}/{name}": float(value) for name, value in found.items()}
        summary["loss"] = float(np.average(self.loss[has_rows], weights=size))
        if not np.isnan(self.auc).all():
            summary["auc"] = float(np.average(self.auc[has_rows], weights=size))
        return summary


def by_stage(
    algorithm: FedAvg,
    model: Model,
    evaluated: Variables,
    private: Mapping[str, jax.Array],
    federation: Federation,
    tests: Ownership,
    finetuning: Finetuning | None,
    key: Key,
) -> dict[str, ClientScores]:
    """Returns the scores of all clients on their own test rows, by stage, and on any validation rows.

    Args:
        algorithm: with which they are trained.
        model: the model.
        evaluated: the server's model.
        private: by path, the private parts of all clients, stacked, which replace those of the server's model.
        federation: the data.
        tests: each client's rows of the test set.
        finetuning: None is none.
        key: of the fine-tuning after this number of rounds.
    """

    def score(examples, own, training=None):
        arguments = evaluated, private, federation.train, federation.ownership, key, training
        return ClientScores(*jax.device_get(_score_clients(model, *arguments, examples, own)))

    scores = {RECEIVED: score(federation.test, tests)}
    if finetuning is not None:
        scores[FINETUNED] = score(federation.test, tests, finetuning.training(algorithm.training))
    if federation.validation is not None and np.any(federation.validation.sizes):
        scores[VALIDATION] = score(federation.train, federation.validation)
    return scores


def summarize(scores: Mapping[str, ClientScores], metric: str) -> dict[str, float]:
    """Returns the row of numbers of an evaluation: ``own/<stage>/<name>``."""
    return {
        f"own/{stage}/{name}": value for stage, own in scores.items() for name, value in own.summary(metric).items()
    }


def arrays(scores: Mapping[str, ClientScores]) -> dict[str, np.ndarray]:
    """Returns the arrays [clients] of an evaluation: ``<stage>/<name>``."""
    return {f"{stage}/{name}": values for stage, own in scores.items() for name, values in own._asdict().items()}


@functools.partial(jax.jit, static_argnames="model")
def _score_clients(model, evaluated, private, train_examples, ownership, key, training, examples, own):
    """Returns size, score, loss and AUC [clients] of each client's model on its own rows of the examples."""
    num_clients = len(ownership.sizes)

    def of_client(client):
        identity, own_private, rows, size, test_rows, test_size = client
        variables = masks.replace(evaluated, own_private)
        if training is not None:
            drawn = _client(identity, rows, size, jax.random.fold_in(key, identity), num_clients)
            variables = _finetuned(model, training, variables, train_examples, drawn)
        return _score(model, variables, examples, test_rows, test_size)

    identities = jnp.arange(num_clients)
    return jax.lax.map(of_client, (identities, private, *ownership, *own))


def _finetuned(model, training, variables, examples, client):
    context = LocalContext(FedAvg(training), model, examples, Server(variables, {}, ()), jnp.zeros((), int), client)
    return train(context).variables


def _client(identity, rows, size, key, num_clients):
    return Client(
        id=identity, size=size, weight=jnp.ones(()), key=key, num_clients=jnp.asarray(num_clients),
        mean_size=jnp.ones(()), rows=rows, state=ClientState({}, {}),
    )  # fmt: skip


def _score(model, variables, examples, rows, size):
    """Returns size, score, loss and AUC of one model on the first ``size`` of ``rows``."""
    rows = pad_to_batches(rows, _BATCH)
    masked = (jnp.arange(len(rows)) < size).reshape(-1, _BATCH)

    def of_batch(part):
        batch = get_batch(examples, *part)
        outputs, _ = model.apply(variables, batch, train=False)
        loss = jnp.where(jnp.any(batch.mask), model.task.loss(outputs, batch), 0) * jnp.sum(batch.mask)
        is_lost = jnp.sum(batch.mask & ~are_finite(outputs))
        return jnp.sum(scores_of(model, outputs, batch)), loss, is_lost, outputs.logits, batch.labels

    score, loss, lost, logits, labels = jax.lax.map(of_batch, (rows.reshape(-1, _BATCH), masked))
    is_scored = (jnp.sum(lost) == 0) & all_finite(variables) & (size > 0)
    of_ranking = jnp.asarray(jnp.nan)
    if model.task.is_classification:
        of_ranking = auc(logits.reshape(len(rows), -1), labels.reshape(-1), masked.reshape(-1))
    return size, *(jnp.where(is_scored, x, jnp.nan) for x in (jnp.sum(score) * 1.0, jnp.sum(loss) / size, of_ranking))


def auc(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the area under the ROC curve of all pairs of a row and a class, ranked by the softmax; ties count half.

    The same as ``sklearn.metrics.roc_auc_score(one_hot, softmax, average="micro")``. PFLlib ranks the raw logits of
    some of its methods and the softmax of others, which cannot be compared.

    Args:
        logits: [rows, classes].
        labels: [rows] integers.
        mask: [rows], False on padding.
    """
    probabilities = jax.nn.softmax(logits)
    is_true = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)
    negatives = jnp.sort(jnp.where(mask[:, None] & ~is_true, probabilities, jnp.inf).reshape(-1))
    positives = jnp.sum(jnp.where(is_true, probabilities, 0), axis=1)
    below, up_to = (jnp.searchsorted(negatives, positives, side) for side in ("left", "right"))
    count = jnp.sum(mask)
    return jnp.sum(jnp.where(mask, (below + up_to) / 2, 0)) / count / (count * (logits.shape[1] - 1))
