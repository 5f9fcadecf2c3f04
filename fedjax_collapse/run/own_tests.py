"""Scores of every client on its own test rows, at each stage of the protocols of personalised learning."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import TRAINED, ClientState, Examples, Key, Ownership, Server, Variables, in_one_line
from fedjax_collapse.data.batches import over_batches, pad_to_batches
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.local_training import LocalTraining, Phase
from fedjax_collapse.run.evaluation import are_finite, scores_of
from fedjax_collapse.schema.options import Part, Positive, check_fields
from fedjax_collapse.training import local
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local import LocalContext

RECEIVED, FINETUNED = "received", "finetuned"  # the stages, with ``TRAINED``
VALIDATION = "validation"  # of the received models, on the validation rows
_BATCH = 128


class Finetuning(NamedTuple):
    """Training that every client does before it is tested, from the model that it received, and that is then discarded.

    Batch size, optimizer, weight decay, clipping, augmentation and any ``task_loss`` are those of local training. Last
    partial batches are never left out (``drop_last``); its ``freeze`` and methods' terms do not apply.

    Args:
        epochs: passes over the client's own training rows.
        part: the part of the network to train (``core/masks.py``).
        learning_rate: the learning rate of all rounds; None is that of local training, without its schedule.
    """

    epochs: Positive = 1
    part: Part = "all"
    learning_rate: Positive | None = None

    def training(self, like: LocalTraining) -> LocalTraining:
        """Returns how a client trains."""
        rate = like.learning_rate if self.learning_rate is None else self.learning_rate
        return like.replace(
            phases=(Phase(self.part, self.epochs),), learning_rate=rate, schedule=None, steps=None,
            freeze="none", drop_last=False, logged_epochs=0, momentum_reset=True,
        )  # fmt: skip

    def check(self, like: LocalTraining, model: Model) -> None:
        """Raises UserError for a value that is invalid, or a part that the network lacks."""
        check_fields(self, "finetuning")
        self.training(like).check()
        model.mask(self.part)


class ClientScores(NamedTuple):
    """Scores on each client's own rows; NaN, but for the size, without rows or if the model is not finite."""

    size: np.ndarray  # [clients] number of rows; if the task weighs them, or every token has a label, sum of weights
    score: np.ndarray  # [clients] sum of scores; for classification the number of correct predictions
    loss: np.ndarray  # [clients] mean loss in nats
    auc: np.ndarray  # [clients] area under the ROC curve, micro, of the softmax; NaN without classes

    __repr__ = in_one_line

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
    current: Server,
    clients: ClientState,
    federation: Federation,
    tests: Ownership,
    finetuning: Finetuning | None,
    key: Key,
    round: int,
) -> dict[str, ClientScores]:
    """Returns the scores of all clients on their own test rows, by stage, and on any validation rows.

    If the server also has a model, it is scored in each stage as well, ``global_<stage>``, except for ``trained`` if a
    method computes the model from which clients train: then they have not trained the server's.

    Args:
        algorithm: with which they are trained.
        model: the model.
        current: the server, with the model that is evaluated.
        clients: the states of all clients, stacked by identity.
        federation: the data.
        tests: each client's rows of the test set.
        finetuning: None is none.
        key: of the run's rounds.
        round: the number of rounds done.
    """
    is_split = federation.tests is not None
    stages, training, validated = [RECEIVED], None, None
    if is_split and algorithm.keep_trained:
        stages.append(TRAINED)
    if is_split and finetuning is not None:
        stages.append(FINETUNED)
        training = finetuning.training(algorithm.local_training)
    if federation.validation is not None and np.any(federation.validation.sizes):
        validated = federation.train, federation.validation

    def score(stages, algorithm, validated=None):
        models = algorithm, current, clients, (federation.train, federation.ownership), key, round, training
        rows = (federation.test, tests), validated
        return jax.device_get(_score_clients(model, tuple(stages), is_split, *models, *rows))

    found = score(stages, algorithm, validated)
    scores = {stage: found[stage] for stage in stages}
    if is_split and algorithm.has_global:
        of_server = [stage for stage in stages if stage != TRAINED or not algorithm.having("receive")]
        found_global = score(of_server, dataclasses.replace(algorithm, methods={}))
        scores |= {f"global_{stage}": found_global[stage] for stage in of_server}
    if validated is not None:
        scores[VALIDATION] = found[VALIDATION]
    return scores


def summarize(scores: Mapping[str, ClientScores], metric: str) -> dict[str, float]:
    """Returns the row of numbers of an evaluation: ``own/<stage>/<name>``."""
    return {
        f"own/{stage}/{name}": value for stage, own in scores.items() for name, value in own.summary(metric).items()
    }


def arrays(scores: Mapping[str, ClientScores]) -> dict[str, np.ndarray]:
    """Returns the arrays [clients] of an evaluation: ``<stage>/<name>``."""
    return {f"{stage}/{name}": values for stage, own in scores.items() for name, values in own._asdict().items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _score_clients(
    model, stages, has_all, algorithm, current, clients, federation, key, round, training, tested, validated
):
    """Returns ``ClientScores`` by stage; loss and AUC only if ``has_all``, and else NaN.

    ``federation`` is its training examples and their ownership; ``tested``, and ``validated`` if it is not None, are
    examples and each client's own rows of them.
    """

    def of_client(given):
        client, (rows, size), validation = given
        context = LocalContext(algorithm, model, federation[0], current, round, client)
        score, predict = functools.partial(_score, model, has_all), local.predictor(context)
        received = local.personal(context)
        scores = {RECEIVED: score(predict, received, tested[0], rows, size)}
        if TRAINED in stages:
            trained, predict_then = local.personal_of_trained(context), local.predictor(context, of_trained=True)
            has_trained = client.state.memory[TRAINED][1]
            scores[TRAINED] = score(predict_then, trained, tested[0], rows, jnp.where(has_trained, size, 0))
        if FINETUNED in stages:
            of_round = Stream.FINETUNING.key(jax.random.fold_in(key, round))
            own = client.replace(key=jax.random.fold_in(of_round, client.id))
            start = current._replace(variables=received, shared={})
            tuning = context._replace(algorithm=FedAvg(training), server=start, client=own, has_metrics=False)
            scores[FINETUNED] = score(predict, local.train(tuning).variables, tested[0], rows, size)
        if validation is not None:
            scores[VALIDATION] = score(predict, received, validated[0], *validation)
        return scores

    round, validation = jnp.asarray(round), None if validated is None else validated[1]
    return jax.lax.map(of_client, (_everyone(algorithm, clients, federation[1], key, round), tested[1], validation))


@functools.partial(jax.jit, static_argnums=0)
def personal_model(
    model: Model,
    algorithm: FedAvg,
    current: Server,
    clients: ClientState,
    examples: Examples,
    ownership: Ownership,
    key: Key,
    round: int,
    client: int,
) -> Variables:
    """Returns the model that the client uses after it has received the server's; arguments as for ``by_stage``."""
    one = jax.tree.map(lambda leaf: leaf[client], _everyone(algorithm, clients, ownership, key, round))
    return local.personal(LocalContext(algorithm, model, examples, current, jnp.asarray(round), one))


def _everyone(algorithm, states, ownership, key, round):
    """Returns all clients, stacked by identity, as they would begin the round."""
    key, sizes = Stream.CLIENTS.key(jax.random.fold_in(key, round)), ownership.sizes
    return cohorts.stack(algorithm, jnp.arange(len(sizes)), sizes, key, None).with_data(ownership.rows, states)


def _score(model, has_all, predict, variables, examples, rows, size):
    """Returns the ``ClientScores`` of one client on the first ``size`` of ``rows``."""
    batch_size = min(_BATCH, len(rows))
    count = len(pad_to_batches(rows, batch_size))
    num_logits = model.output_shapes(variables).logits.shape[1:]

    has_table = has_all and model.task.is_classification and examples.pad is None
    is_weighted = examples.pad is not None or bool(model.task.parts)

    def add(first, batch, sums):
        score, loss, lost, table, counts = sums
        outputs, _ = model.apply(variables, batch, train=False)
        outputs = outputs._replace(logits=predict(outputs, batch))
        scores = scores_of(model, outputs, batch)
        if is_weighted:
            weights = model.task.weights(batch)
            scores = jnp.where(weights != 0, weights * scores, 0)
            counts = tuple(total + jnp.sum(of) for total, of in zip(counts, (weights, batch.mask), strict=True))
        score += jnp.sum(scores)
        lost += jnp.sum(batch.mask & ~are_finite(outputs))
        if has_all:
            loss += model.task.loss(outputs, batch) * jnp.sum(batch.mask)
        if has_table:
            table = jax.lax.dynamic_update_slice_in_dim(table, outputs.logits, first, 0)
        return score, loss, lost, table, counts

    real = jnp.zeros(())
    table = jnp.zeros((count, *num_logits), jnp.result_type(float)) if has_table else ()
    counts = (jnp.zeros((), size.dtype),) * 2 if is_weighted else ()
    start = real, real, jnp.zeros((), int), table, counts
    score, loss, lost, table, counts = over_batches(batch_size, examples, rows, size, add, start)
    of_rows = size
    size, num_rows = counts or (size, size)
    is_scored = (lost == 0) & all_finite(variables) & (size > 0)
    loss, of_ranking = loss / num_rows if has_all else jnp.nan, jnp.nan
    if has_table:
        labels = examples.labels[pad_to_batches(rows, batch_size)]
        of_ranking = auc(table, labels, jnp.arange(count) < of_rows)
    return ClientScores(size, *(jnp.where(is_scored, value, jnp.nan) for value in (score, loss, of_ranking)))


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
