"""One client's round: train, then say what to send, what to report and what to remember."""

from typing import NamedTuple

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import OPTIMIZER, ClientState, PyTree, Trained
from fedjax_collapse.methods.base import returned
from fedjax_collapse.training.aggregation import Upload
from fedjax_collapse.training.local.context import LocalContext, as_trained, class_counts
from fedjax_collapse.training.local.loop import train


class LocalResult(NamedTuple):
    """What one client leaves after its round."""

    upload: Upload
    state: ClientState
    trained: Trained


def run(context: LocalContext) -> LocalResult:
    """One client's round, from what the server sent: ``context.server`` still without the client's private parts."""
    algorithm, client, sent = context.algorithm, context.client, context.server.variables
    context = _received(context)
    trained = train(context)
    private = context.model.mask(algorithm.private_part)
    public = masks.where(private, sent, trained.variables)
    context, sent = _sent(context, trained, public)
    memory, reports = {}, {}
    for name, method in algorithm.methods.items():
        new, reports[name] = method.finish(context.finish_view(name, trained, public, sent))
        memory[name] = returned(name, "finish", new, client.state.memory[name])
    upload = Upload(public._replace(params=sent) if algorithm.sends_updates else public, reports)
    if not context.training.momentum_reset:
        memory[OPTIMIZER] = trained.optimizer
    return LocalResult(upload, ClientState(memory, masks.select(private, trained.variables)), trained)


def first_report(context: LocalContext) -> dict[str, PyTree]:
    """One client's reports on the initial model, of the methods that start with one."""
    context = _received(context)
    trained = as_trained(context.server.variables, context)
    return {
        name: method.finish(context.finish_view(name, trained, trained.variables))[1]
        for name, method in context.algorithm.starting.items()
    }


def measure(context: LocalContext, by_all: bool = False) -> dict[str, PyTree]:
    """One client's reports on the server's new model, of the methods whose cohort, or whose clients, measure it."""
    public = context.server.variables
    context = _received(context)
    trained = as_trained(context.server.variables, context)
    measuring = context.algorithm.measuring(by_all)
    return {name: m.measure(context.finish_view(name, trained, public)) for name, m in measuring.items()}


def _received(context):
    """The context with the client's own private parts in the model, and with its counts of classes."""
    server, client = context.server, context.client
    variables = masks.replace(server.variables, context.algorithm.own_parts(server.shared, client.state))
    counts = class_counts(context.model, context.examples, client, variables)
    return context._replace(server=server._replace(variables=variables), class_counts=counts)


def _sent(context, trained, public):
    """The context with the memory after the upload, and the update as methods have changed it."""
    client, sent = context.client, context.sent(context.update(public))
    memory = dict(client.state.memory)
    for name, method in context.algorithm.having("upload").items():
        changed, new = method.upload(sent, context.finish_view(name, trained, public, sent))
        sent = context.sent(returned(name, "upload", changed, sent))
        memory[name] = returned(name, "upload", new, memory[name])
    state = client.state._replace(memory=memory)
    return context._replace(client=client.replace(state=state)), sent
