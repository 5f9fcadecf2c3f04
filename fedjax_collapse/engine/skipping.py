"""Rounds with clients that diverge: keep all clients, or repeat the round as if the diverging ones had dropped out.

A client diverges if its training, upload or report is not finite, or its report on the server's new model; unless no
client's report on the new model is finite, which is the model's fault. Weights, reports and metrics are those of the
remaining clients, for every method. A round in which no client diverges is run once. The same holds for reports before
the first round and after the last.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Client, PyTree, losses_of
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine.placement import to_host
from fedjax_collapse.training.local import LocalResult

SKIPPED = "skipped_clients"  # the metric: 1 for a client that diverged

# clients to leave out -> identities, 1 for each that diverges, the rest
Attempt = Callable[[Any], tuple[Any, Any, PyTree]]


def marked(client: Client, result: LocalResult, score: str) -> dict[str, jax.Array]:
    """Returns the metrics of a client's training, with ``SKIPPED``. ``score``: the name of the one that is not a loss.

    Metrics of padding, and of a client without a step, are ignored.
    """
    trained = result.trained
    has_losses = all_finite(losses_of(trained.metrics, score)) | (trained.steps == 0)
    is_fine = all_finite((result.upload, result.state)) & has_losses
    failed = ~is_fine & (client.id < client.num_clients)
    return {**trained.metrics, SKIPPED: failed.astype(jnp.result_type(float))}


def diverged(reports: PyTree, client: Client) -> jax.Array:
    """Returns 1 for a client whose reports are counted and not finite, else 0."""
    return (client.is_counted & ~all_finite(reports)).astype(jnp.result_type(float))


def with_measured(metrics: dict[str, jax.Array], new: PyTree, clients: Client, diverged: jax.Array) -> dict:
    """Returns the cohort's metrics after it measured the server's new model; ``diverged``: for these reports."""
    is_blamed = all_finite(new) & jnp.any(clients.is_counted & (diverged == 0))
    return {**metrics, SKIPPED: jnp.maximum(metrics[SKIPPED], jnp.where(is_blamed, diverged, 0))}


def once(attempt: Attempt, num_clients: int) -> tuple[None, Any, PyTree]:
    """Like ``repeat``, where every client is kept."""
    ids, _, outcome = attempt(None)
    return None, ids, outcome


def repeat(attempt: Attempt, num_clients: int) -> tuple[jax.Array, jax.Array, PyTree]:
    """Repeats the attempt until no other client diverges, inside compiled code.

    Returns:
        The clients left out [clients]; the identities and the rest of the last attempt.
    """

    def retry(carry):
        left_out, *_ = carry
        ids, failed, outcome = attempt(left_out)
        now_out = left_out.at[jnp.where(failed > 0, ids, num_clients)].set(True, mode="drop")
        return now_out, jnp.any(now_out != left_out), ids, outcome

    nobody = jnp.zeros(num_clients, bool)
    ids, _, outcome = zeros_of(jax.eval_shape(attempt, nobody))
    start = nobody, jnp.array(True), ids, outcome
    left_out, _, ids, outcome = jax.lax.while_loop(lambda carry: carry[1], retry, start)
    return left_out, ids, outcome


def repeat_on_host(attempt: Attempt, num_clients: int) -> tuple[np.ndarray, Any, PyTree]:
    """Like ``repeat``, for an attempt that is not compiled as a whole."""
    left_out = np.zeros(num_clients, bool)
    while True:
        ids, failed, outcome = attempt(left_out)
        failing = np.asarray(ids)[to_host(failed) > 0]
        if left_out[failing].all():
            return left_out, ids, outcome
        left_out[failing] = True


def where(condition: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Returns ``new`` if the condition holds, else ``old``."""
    return jax.tree.map(lambda after, before: jnp.where(condition, after, before), new, old)


def all_finite(tree: PyTree) -> jax.Array:
    """Whether all floats are finite."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return functools.reduce(jnp.logical_and, leaves, jnp.array(True))
