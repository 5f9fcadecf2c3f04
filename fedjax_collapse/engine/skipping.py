"""Rounds without the clients that diverge: they are run again as if these had dropped out.

One diverges whose training, upload or report is not finite, also its report on the server's new model, unless all of
these are not: then the model is to blame. So all weights, reports and numbers are those of the cohort that is left,
whatever the methods make of them. A round in which nobody diverges is run once. First reports go the same way.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Client, PyTree, losses_of
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine.client_maps import to_host
from fedjax_collapse.training.local import LocalResult

SKIPPED = "skipped_clients"  # the metric: 1 for a client that diverged

Attempt = Callable[[Any], tuple[Any, Any, PyTree]]  # who is left out -> identities, 1 for who of them fails, the rest


def all_finite(tree: PyTree) -> jax.Array:
    """Whether all floats are."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return functools.reduce(jnp.logical_and, leaves, jnp.array(True))


def marked(client: Client, result: LocalResult, score: str) -> dict[str, jax.Array]:
    """The client's metrics, and whether anything but its ``score`` is not finite of what it has trained and sends.

    Of padding and of a client without a step the metrics mean nothing.
    """
    trained = result.trained
    has_losses = all_finite(losses_of(trained.metrics, score)) | (trained.steps == 0)
    is_fine = all_finite((result.upload, result.state)) & has_losses
    failed = ~is_fine & (client.id < client.num_clients)
    return {**trained.metrics, SKIPPED: failed.astype(jnp.result_type(float))}


def is_wrong(reports: PyTree, client: Client) -> jax.Array:
    """1 for a client whose reports are counted and not finite, else 0."""
    return (client.is_counted & ~all_finite(reports)).astype(jnp.result_type(float))


def without_failed(attempt: Attempt, num_clients: int, is_skipping: bool) -> tuple[jax.Array | None, Any, PyTree]:
    """Who fails [clients], and the identities and the rest without them; inside compiled code.

    Unless ``is_skipping``, there is one attempt, which leaves out None, and None is returned.
    """
    if not is_skipping:
        ids, _, outcome = attempt(None)
        return None, ids, outcome

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


def without_failed_on_host(
    attempt: Attempt, num_clients: int, is_skipping: bool
) -> tuple[np.ndarray | None, Any, PyTree]:
    """``without_failed`` of an ``attempt`` that is not compiled as a whole."""
    if not is_skipping:
        ids, _, outcome = attempt(None)
        return None, ids, outcome
    left_out = np.zeros(num_clients, bool)
    while True:
        ids, failed, outcome = attempt(left_out)
        failing = ids[to_host(failed) > 0]
        if left_out[failing].all():
            return left_out, ids, outcome
        left_out[failing] = True
