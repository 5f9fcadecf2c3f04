"""One client's round: train, then compute the upload, the reports and the new memory."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import OPTIMIZER, TRAINED, Batch, ClientState, Outputs, PyTree, Trained, Variables
from fedjax_collapse.methods.base import check_returned
from fedjax_collapse.optim.aggregation import Upload
from fedjax_collapse.training import client_memory
from fedjax_collapse.training.local.context import LocalContext, as_trained, class_counts
from fedjax_collapse.training.local.loop import train
from fedjax_collapse.training.local.views import client_view, finish_view, predict_view


class LocalResult(NamedTuple):
    """The result of one client's round."""

    upload: Upload
    state: ClientState
    trained: Trained


def run(context: LocalContext) -> LocalResult:
    """Runs one client's round. ``context.server`` is as received, without the client's private parts."""
    result = run_whole(context)
    memory = client_memory.stored(result.state.memory, context.client.state.memory)
    return result._replace(state=result.state._replace(memory=memory))


def run_whole(context: LocalContext) -> LocalResult:
    """Returns the result of ``run``, with the methods' whole memory, of which a part is stored."""
    algorithm, sent = context.algorithm, context.server.variables
    context = _received(context)
    trained = train(context)
    private = context.model.mask(algorithm.private_part)
    public = masks.where(private, sent, trained.variables)
    context, sent = _sent(context, trained, public)
    memory, reports = dict(context.client.state.memory), dict.fromkeys(algorithm.methods, ())
    for name, method in algorithm.having("finish").items():
        new, reports[name] = method.finish(finish_view(context, name, trained, public, sent))
        memory[name] = check_returned(name, "finish", new, memory[name])
    mean = public._replace(params=sent) if algorithm.sends_updates else public
    upload = Upload(masks.without(algorithm.not_uploaded(context.model), mean), reports)
    if not context.training.momentum_reset:
        memory[OPTIMIZER] = trained.optimizer
    if algorithm.keep_trained:
        own = masks.without(algorithm.common_to_clients(context.model, always=True), trained.variables)
        memory[TRAINED] = own, jnp.ones((), bool)
    return LocalResult(upload, ClientState(memory, masks.select(private, trained.variables)), trained)


def measure(context: LocalContext, when: str = "round") -> dict[str, PyTree]:
    """Returns one client's reports on the server's model, for the methods that measure it at this time."""
    public = context.server.variables
    context = _with_private(context)
    trained = as_trained(context.server.variables, context)
    measuring = context.algorithm.having("measure", when).items()
    return {name: method.measure(finish_view(context, name, trained, public)) for name, method in measuring}


def personal(context: LocalContext) -> Variables:
    """Returns the model that a client uses when it has received the server's."""
    context = _received(context)
    return _personal(context, context.server.variables if context.start is None else context.start)


def personal_of_trained(context: LocalContext) -> Variables:
    """Returns the model that a client used at the end of its last round, ``FedAvg.keep_trained``."""
    context = _at_end(context)
    return _personal(context, context.server.variables)


def predictor(context: LocalContext, of_trained: bool = False) -> Callable[[Outputs, Batch], jax.Array]:
    """Returns the function from outputs of a client's model on a batch to the logits with which it predicts.

    Args:
        context: the client's round.
        of_trained: whether the model is from ``personal_of_trained`` instead of ``personal``.
    """
    for name, method in context.algorithm.having("predict").items():
        context = _at_end(context) if of_trained else _with_private(context)
        return lambda outputs, batch: method.predict(outputs, predict_view(context, name, batch))
    return lambda outputs, batch: outputs.logits


def _at_end(context):
    """Returns the context with the client's model at the end of its last round in place of the server's."""
    context = _with_private(context)
    trained, _ = context.client.state.memory[TRAINED]
    variables = masks.fill(trained, context.server.variables)
    return context._replace(server=context.server._replace(variables=variables))


def _personal(context, variables):
    for name, method in context.algorithm.having("personal").items():
        return check_returned(name, "personal", method.personal(client_view(context, name)), variables)
    return variables


def _received(context):
    """Returns the context of a client's round: with private parts, class counts, and the model that it starts from."""
    context = _with_private(context)
    for name, method in context.algorithm.having("receive").items():
        state, server = context.client.state, context.server.variables
        start, memory = method.receive(client_view(context, name))
        start = check_returned(name, "receive", start, server)
        memory = {**state.memory, name: check_returned(name, "receive", memory, state.memory[name])}
        return context._replace(start=start, client=context.client.replace(state=state._replace(memory=memory)))
    return context


def _with_private(context):
    """Returns the context with the client's private parts in the model, its whole memory, and its class counts."""
    algorithm, server, client = context.algorithm, context.server, context.client
    memory = client_memory.whole(algorithm, context.model, server.variables, client.state.memory)
    client = client.replace(state=client.state._replace(memory=memory))
    variables = masks.replace(server.variables, client.state.private)
    counts = class_counts(context, variables)
    return context._replace(server=server._replace(variables=variables), client=client, class_counts=counts)


def _sent(context, trained, public):
    """Returns the context with the memory after the upload, and the update after all ``upload`` hooks."""
    client, sent = context.client, context.sent(context.update(public))
    memory = dict(client.state.memory)
    for name, method in context.algorithm.having("upload").items():
        changed, new = method.upload(sent, finish_view(context, name, trained, public, sent))
        sent = context.sent(check_returned(name, "upload", changed, sent))
        memory[name] = check_returned(name, "upload", new, memory[name])
    return context._replace(client=client.replace(state=client.state._replace(memory=memory))), sent
