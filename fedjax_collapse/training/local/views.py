"""The views of a client that methods receive before and after its local training."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.randomness import method_key
from fedjax_collapse.core.records import Batch, PyTree, Trained, Variables
from fedjax_collapse.data.batches import over_batches, sum_batches
from fedjax_collapse.methods.base import ClientView, FinishView, Method, PredictView
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local.context import LocalContext
from fedjax_collapse.training.local.loop import train


def client_view(context: LocalContext, name: str) -> ClientView:
    """Returns the view of a method before local training, and when its client is evaluated."""
    return ClientView(**_fields(context, name))


def predict_view(context: LocalContext, name: str, batch: Batch) -> PredictView:
    """Returns the view of a method when its client predicts on a batch."""
    return PredictView(**_fields(context, name), batch=batch)


def finish_view(
    context: LocalContext, name: str, trained: Trained, public: Variables, sent: PyTree | None = None
) -> FinishView:
    """Returns the view of a method after local training.

    Args:
        context: the client's round.
        name: the method.
        trained: the result of local training.
        public: the model that may leave the client.
        sent: the update after the ``upload`` hooks so far; None before them.
    """
    update = context.update(public)
    return FinishView(
        **_fields(context._replace(carries=trained.carries), name),
        trained=trained.variables,
        public=public,
        update=update,
        sent=context.sent(update) if sent is None else sent,
        steps=trained.steps,
        learning_rate=trained.learning_rate,
    )


def _fields(context, name):
    return dict(
        **context.view_fields(name),
        key=method_key(context.client.key, name),
        over_batches=functools.partial(_over_batches, context),
        sum_over_batches=functools.partial(_sum_over_batches, context),
        train=functools.partial(_train, context, name),
    )


def _sum_over_batches(context: LocalContext, summarize: Callable[[Batch], PyTree]) -> PyTree:
    rows = context.training.batch_size, context.examples, context.client.rows, context.client.size
    return sum_batches(*rows, lambda batch: summarize(context.batch(batch)))


def _over_batches(
    context: LocalContext,
    body: Callable[[PyTree, Batch], PyTree],
    carry: PyTree,
    first: jax.Array | int = 0,
    size: jax.Array | None = None,
) -> PyTree:
    size = context.client.size - first if size is None else size
    rows = jnp.roll(context.client.rows, -first)
    return over_batches(
        context.training.batch_size,
        context.examples,
        rows,
        size,
        lambda _, batch, carry: body(carry, context.batch(batch)),
        carry,
    )


def _train(
    context: LocalContext,
    name: str,
    start: Variables,
    methods: Mapping[str, Method] | None = None,
    carried: bool = False,
    **changes: Any,
) -> Variables | tuple[Variables, PyTree]:
    added = methods or {}
    methods_here = context.algorithm.methods.items()
    kept = {name: method for name, method in methods_here if method.is_loss() or method.has("batch")}
    training = context.training.replace(**{"momentum_reset": True, "logged_epochs": 0, **changes})
    shared = {**context.server.shared, **dict.fromkeys(added, ())}
    state = context.client.state
    state = state._replace(memory={**state.memory, **dict.fromkeys(added, ())})
    alone = context._replace(
        algorithm=FedAvg(training, {**kept, **added}, private=context.algorithm.private_part),
        server=context.server._replace(shared=shared),
        client=context.client.replace(state=state),
        start=start,
        carries={},
        has_metrics=not is_traced(context.client.size),  # uncompiled, they name a term that is not finite
    )
    trained = train(alone)
    return (trained.variables, trained.carries[name]) if carried else trained.variables
