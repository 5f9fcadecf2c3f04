"""One client's round: train, then compute the upload, the reports and the new memory."""

from typing import NamedTuple

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import OPTIMIZER, ClientState, PyTree, Trained
from fedjax_collapse.methods.base import check_returned
from fedjax_collapse.training.aggregation import Upload
from fedjax_collapse.training.local.context import LocalContext, as_trained, class_counts
from fedjax_collapse.training.local.loop import train


class LocalResult(NamedTuple):
    """The result of one client's round."""

    upload: Upload
    state: ClientState
    trained: Trained


def run(context: LocalContext) -> LocalResult:
    """Runs one client's round. ``context.server`` is what the server sent, still without the client's private parts."""
    algorithm, client, sent = context.algorithm, context.client, context.server.variables
    context = _received(context)
    trained = train(context)
    private = context.model.mask(algorithm.private_part)
    public = masks.where(private, sent, trained.variables)
    context, sent = _sent(context, trained, public)
    memory, reports = {}, {}
    for name, method in algorithm.methods.items():
        new, reports[name] = method.finish(context.finish_view(name, trained, public, sent))
        memory[name] = check_returned(name, "finish", new, client.state.memory[name])
    upload = Upload(public._replace(params=sent) if algorithm.sends_updates else public, reports)
    if not context.training.momentum_reset:
        memory[OPTIMIZER] = trained.optimizer
    return LocalResult(upload, ClientState(memory, masks.select(private, trained.variables)), trained)


def first_report(context: LocalContext) -> dict[str, PyTree]:
    """Returns one client's reports on the initial model, for the methods that start with a report."""
    context = _received(context)
    trained = as_trained(context.server.variables, context)
    return {
        name: method.finish(context.finish_view(name, trained, trained.variables))[1]
        for name, method in context.algorithm.starting.items()
    }


def measure(context: LocalContext, by_all: bool = False) -> dict[str, PyTree]:
    """Returns one client's reports on the server's new model, for the methods that measure it.

    Args:
        context: the client's round.
        by_all: whether for the methods whose model is measured by all clients, instead of by the cohort.
    """
    public = context.server.variables
    context = _received(context)
    trained = as_trained(context.server.variables, context)
    measuring = context.algorithm.measuring(by_all)
    return {name: m.measure(context.finish_view(name, trained, public)) for name, m in measuring.items()}


def _received(context):
    """Returns the context with the client's private parts in the model, and with its class counts."""
    server, client = context.server, context.client
    variables = masks.replace(server.variables, context.algorithm.own_parts(server.shared, client.state))
    counts = class_counts(context.model, context.examples, client, variables)
    return context._replace(server=server._replace(variables=variables), class_counts=counts)


def _sent(context, trained, public):
    """Returns the context with the memory after the upload, and the update as the methods have changed it."""
    client, sent = context.client, context.sent(context.update(public))
    memory = dict(client.state.memory)
    for name, method in context.algorithm.having("upload").items():
        changed, new = method.upload(sent, context.finish_view(name, trained, public, sent))
        sent = context.sent(check_returned(name, "upload", changed, sent))
        memory[name] = check_returned(name, "upload", new, memory[name])
    state = client.state._replace(memory=memory)
    return context._replace(client=client.replace(state=state)), sent
