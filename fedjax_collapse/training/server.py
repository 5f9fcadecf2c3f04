"""The server: its state before the first round, its step from the cohort's uploads, and the model that is evaluated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import Stream, method_key
from fedjax_collapse.core.records import (
    OPTIMIZER,
    TRAINED,
    ClientState,
    Drawn,
    Key,
    PyTree,
    Server,
    UserError,
    Variables,
)
from fedjax_collapse.methods.base import CohortView, DispatchView, NoiseView, check_returned
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.aggregation import Upload, per_client, server_step, weighted_sum
from fedjax_collapse.training import client_memory
from fedjax_collapse.training.algorithm import FedAvg


def init(algorithm: FedAvg, model: Model, variables: Variables, num_clients: int) -> tuple[Server, ClientState]:
    """Returns the server's state, and the state of ONE of so many clients, before the first round."""
    shapes = model.initial_shapes()._replace(levels=())
    shared = {name: method.init_shared(variables, shapes) for name, method in algorithm.methods.items()}
    memory = client_memory.initial(algorithm, model, variables)
    for name, method in algorithm.having("init_memory_among").items():
        memory[name] = method.init_memory_among(variables, shapes, num_clients)
    optimizer = ()
    if algorithm.server_optimizer is not None:
        optimizer = algorithm.server_optimizer().init(_optimized(algorithm, variables))
    private = masks.select(model.mask(algorithm.private_part), variables)
    shared |= {name: method.share_private(private) for name, method in algorithm.having("share_private").items()}
    if not algorithm.training.momentum_reset:
        frozen = model.mask(algorithm.local_training.frozen_part()).params
        memory[OPTIMIZER] = algorithm.training.make_optimizer().init(masks.without(frozen, variables.params))
    if algorithm.keep_trained:
        memory[TRAINED] = masks.without(algorithm.common_to_clients(model, always=True), variables), jnp.zeros((), bool)
    return Server(variables, shared, optimizer), ClientState(memory, private)


def combine_first_reports(algorithm: FedAvg, model: Model, server: Server, reports: dict[str, PyTree]) -> Server:
    """Returns the server before the first round, given the summed reports of all clients on the initial model."""
    combined = {name: algorithm.methods[name].combine(server.shared[name], r) for name, r in reports.items()}
    variables = server.variables
    for name, method in algorithm.having("first_model").items():
        made = method.first_model(variables, reports[name], model)
        made = check_returned(name, "first_model", made, variables)
        variables = masks.where(model.mask(algorithm.private_part), variables, made)
    return server._replace(variables=variables, shared={**server.shared, **combined})


def combine_uploads(
    algorithm: FedAvg, server: Server, round: jax.Array | int, clients: Drawn, stacked: PyTree
) -> PyTree:
    """Returns the params of the mean upload, or of what a method makes of the cohort's uploads in its place.

    Args:
        algorithm: the algorithm.
        server: the server, as it was sent.
        round: the number of the round, from 0.
        clients: the cohort, stacked.
        stacked: the params that it uploads, stacked.
    """
    counted = clients.is_counted

    def known(leaf):
        return jnp.where(per_client(counted, leaf), leaf, 0)

    def view(name):
        return CohortView(
            shared=server.shared[name],
            id=clients.id,
            counted=counted,
            weight=jnp.where(counted, clients.weight, 0),
            num_clients=clients.num_clients[0],
            round=jnp.asarray(round),
            key=jax.vmap(method_key, in_axes=(0, None))(clients.key, name),
        )

    stacked = jax.tree.map(known, stacked)
    for name, method in algorithm.having("corrupt_uploads").items():
        made = method.corrupt_uploads(stacked, view(name))
        stacked = jax.tree.map(known, check_returned(name, "corrupt_uploads", made, stacked))
    for name, method in algorithm.having("combine_uploads").items():
        like = jax.tree.map(lambda leaf: leaf[0], stacked)
        return check_returned(name, "combine_uploads", method.combine_uploads(stacked, view(name)), like)
    return weighted_sum(stacked, clients.weight)


class Divided(NamedTuple):
    """What the noise on the mean upload depends on, where the sum was divided by the expected number of clients."""

    expected: jax.Array
    round: jax.Array
    key: Key  # of the run's rounds


def aggregate(
    algorithm: FedAvg, model: Model, server: Server, upload: Upload, divided: Divided | None = None
) -> Server:
    """Returns the server after a round, given the cohort's reduced uploads."""
    old, mean, reports = server.variables, masks.fill(upload.mean, server.variables), upload.total
    shared = {
        name: check_returned(name, "combine", method.combine(server.shared[name], reports[name]), server.shared[name])
        for name, method in algorithm.methods.items()
    }
    if algorithm.sends_updates:
        sent = upload.mean.params
        for name in algorithm.having("perturb"):
            _check_only_reports_of(name, reports)
            sent, shared[name] = _perturbed(algorithm, name, sent, shared[name], reports[name], divided)
        update = masks.fill(sent, jax.tree.map(jnp.zeros_like, old.params))
        for name, method in algorithm.having("aggregate").items():
            update = check_returned(name, "aggregate", method.aggregate(update, shared[name], reports[name]), update)
        gradient = jax.tree.map(jnp.negative, update)
        mean = mean._replace(params=jax.tree.map(jnp.add, old.params, update))
    else:
        gradient = jax.tree.map(jnp.subtract, old.params, mean.params)
    new, optimizer = mean, server.optimizer
    if algorithm.server_optimizer is not None:
        statistics = jax.tree.map(jnp.subtract, old.batch_stats, mean.batch_stats)
        gradients = _optimized(algorithm, Variables(gradient, statistics))
        stepped, optimizer = server_step(algorithm.server_optimizer(), optimizer, _optimized(algorithm, old), gradients)
        new = mean._replace(**stepped)
    return Server(masks.where(algorithm.unchanged_by_server(model), old, new), shared, optimizer)


def apply_measured(algorithm: FedAvg, model: Model, server: Server, measured: dict[str, PyTree]) -> Server:
    """Returns the server after its cohort has measured the new model."""
    variables = server.variables
    for name, method in algorithm.having("apply").items():
        if not method.measures_all():
            variables = check_returned(name, "apply", method.apply(variables, measured[name], model), variables)
    return server._replace(variables=masks.where(algorithm.unchanged_by_server(model), server.variables, variables))


def after_round(
    algorithm: FedAvg, before: Variables, server: Server, measured: dict[str, PyTree], by_all: bool = False
) -> Server:
    """Returns the server with the methods' state updated for its new model.

    Args:
        algorithm: the algorithm.
        before: the model that was sent in this round.
        server: the server with its new model.
        measured: the measurements of the new model, by method.
        by_all: whether to update the methods whose model is measured by all clients, instead of the others.
    """
    shared = dict(server.shared)
    for name, method in algorithm.having("after_round").items():
        if method.measures_all() == by_all:
            kept = method.after_round(shared[name], before, server.variables, measured.get(name, ()))
            shared[name] = check_returned(name, "after_round", kept, shared[name])
    return server._replace(shared=shared)


def dispatch(
    algorithm: FedAvg, server: Server, clients: ClientState, arrived: jax.Array, round: jax.Array, key: Key
) -> ClientState:
    """Returns the states of all clients after the server has made each client's part of them from those of all.

    Args:
        algorithm: the algorithm.
        server: the server after the round.
        clients: the states of all clients, stacked, by identity.
        arrived: [clients] whether the server received the client's upload in this round.
        round: the number of the round, from 0.
        key: of the run's rounds.
    """
    key = Stream.DISPATCH.key(jax.random.fold_in(key, round))
    for name, method in algorithm.having("dispatch").items():
        given = clients.private, clients.memory[name]
        view = DispatchView(server.shared[name], *given, arrived, round, method_key(key, name))
        private, memory = check_returned(name, "dispatch", method.dispatch(view), given)
        clients = ClientState({**clients.memory, name: memory}, private)
    return clients


def evaluated(algorithm: FedAvg, model: Model, server: Server, clients: ClientState) -> Variables:
    """Returns the server's model as it is evaluated.

    Its private parts are the mean over all clients, since the server's own copy of them was never trained. ``clients``
    holds the states of all clients, stacked.
    """
    variables = server.variables
    for name, method in algorithm.having("evaluated").items():
        variables = method.evaluated(variables, server.shared[name], model)
    private = own_parts(algorithm, server, clients)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, dtype=leaf.dtype), private)
    return masks.replace(variables, mean)


def own_parts(algorithm: FedAvg, server: Server, clients: ClientState) -> dict[str, jax.Array]:
    """Returns, by path, the private parts with which each of the stacked clients starts a round and is evaluated."""
    if not algorithm.having("own_parts"):
        return clients.private
    return jax.vmap(algorithm.own_parts, in_axes=(None, 0))(server.shared, scored_clients(algorithm, clients))


def scored_clients(algorithm: FedAvg, clients: ClientState) -> ClientState:
    """Returns the part of the clients' states that their models are made from."""
    making = ("own_parts", "batch", "receive", "personal", "predict")
    used = {name for hook in making for name in algorithm.having(hook)} | {TRAINED}
    return clients._replace(memory={name: memory for name, memory in clients.memory.items() if name in used})


def _check_only_reports_of(name, reports):
    """Raises UserError if another method than the one that perturbs the mean upload reports something."""
    for other, report in reports.items():
        if other != name and jax.tree.leaves(report):
            raise UserError(
                f"methods {name} and {other}: clients also send a report of {other}, which the noise does not cover; "
                f"choose one of them"
            )


def _perturbed(algorithm, name, update, shared, report, divided):
    """Returns the mean upload with the method's noise, and the method's new state."""
    key = Stream.NOISE.key(jax.random.fold_in(divided.key, divided.round))
    view = NoiseView(shared, report, divided.expected, divided.round, method_key(key, name))
    return check_returned(name, "perturb", algorithm.methods[name].perturb(update, view), (update, shared))


def _optimized(algorithm, variables):
    """Returns the variables that the server optimizer acts on, by name."""
    return {"params": variables.params} if algorithm.optimized == "params" else variables._asdict()
