"""The server: its state before the first round, its step from the cohort's uploads, and the model that is evaluated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

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
from fedjax_collapse.methods.base import CohortView, DispatchView, NoiseView, Setup, check_returned, initial_state
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.aggregation import Upload, per_client, weighted_sum
from fedjax_collapse.training import client_memory
from fedjax_collapse.training.algorithm import FedAvg


def init(algorithm: FedAvg, model: Model, variables: Variables, num_clients: int) -> tuple[Server, ClientState]:
    """Returns the server's state and ONE client's state, of ``num_clients``, before the first round."""
    setup = Setup(algorithm.local_training, algorithm.private_part, model, num_clients)
    shared = dict.fromkeys(algorithm.methods, ())
    for name, method in algorithm.having("init_shared").items():
        shared[name] = initial_state(method.init_shared, variables, setup)
    memory = client_memory.initial(algorithm, variables, setup)
    make = algorithm.server_optimizer
    optimizer = () if make is None else make().init(_optimized(algorithm, variables))
    private = masks.select(model.mask(algorithm.private_part), variables)
    if not algorithm.training.momentum_reset:
        frozen = model.mask(algorithm.local_training.frozen_part()).params
        memory[OPTIMIZER] = algorithm.training.make_optimizer().init(masks.without(frozen, variables.params))
    if algorithm.keep_trained:
        memory[TRAINED] = masks.without(algorithm.common_to_clients(model, always=True), variables), jnp.zeros((), bool)
    return Server(variables, shared, optimizer), ClientState(memory, private)


def combine_uploads(
    algorithm: FedAvg, server: Server, round: jax.Array | int, clients: Drawn, stacked: PyTree
) -> PyTree:
    """Returns the params of the mean upload, or of the result of a method that replaces the mean.

    Args:
        algorithm: the algorithm.
        server: the state that was sent.
        round: the number of the round, from 0.
        clients: the cohort, stacked.
        stacked: the uploaded params, stacked.
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
    """The values on which noise on the mean upload depends; the sum was divided by ``expected``."""

    expected: jax.Array
    round: jax.Array
    key: Key  # of the run's rounds


def aggregate(
    algorithm: FedAvg, model: Model, server: Server, upload: Upload, divided: Divided | None = None
) -> Server:
    """Returns the server after a round, given the cohort's reduced uploads."""
    old, mean, reports = server.variables, masks.fill(upload.mean, server.variables), upload.total
    shared = dict(server.shared)
    for name, method in algorithm.having("combine").items():
        shared[name] = check_returned(name, "combine", method.combine(shared[name], reports[name]), shared[name])
    if algorithm.sends_updates:
        sent = upload.mean.params
        for name, method in algorithm.having("perturb").items():
            _check_only_reports_of(name, reports)
            key = method_key(Stream.NOISE.key(jax.random.fold_in(divided.key, divided.round)), name)
            view = NoiseView(shared[name], reports[name], divided.expected, divided.round, key)
            noisy = method.perturb(sent, view)
            sent, shared[name] = check_returned(name, "perturb", noisy, (sent, shared[name]))
        update = masks.fill(sent, jax.tree.map(jnp.zeros_like, old.params))
        for name, method in algorithm.having("aggregate").items():
            update = check_returned(name, "aggregate", method.aggregate(update, shared[name], reports[name]), update)
        gradient = jax.tree.map(jnp.negative, update)
        mean = mean._replace(params=jax.tree.map(jnp.add, old.params, update))
    else:
        gradient = jax.tree.map(jnp.subtract, old.params, mean.params)
    optimizer = server.optimizer
    if make := algorithm.server_optimizer:
        statistics = jax.tree.map(jnp.subtract, old.batch_stats, mean.batch_stats)
        gradients, own = _optimized(algorithm, Variables(gradient, statistics)), _optimized(algorithm, old)
        updates, optimizer = make().update(gradients, optimizer, own)
        mean = mean._replace(**optax.apply_updates(own, updates))
    return Server(masks.where(algorithm.unchanged_by_server(model), old, mean), shared, optimizer)


def after_measuring(
    algorithm: FedAvg, model: Model, before: Variables, server: Server, measured: dict[str, PyTree], when: str
) -> Server:
    """Returns the server after its clients have measured its model.

    Args:
        algorithm: the algorithm.
        model: the model.
        before: the variables that were sent in this round.
        server: the server with its new variables.
        measured: the sums of the clients' measurements, by method.
        when: the time, ``Method.when_measured``.
    """
    variables, shared = server.variables, dict(server.shared)
    for name, method in algorithm.having("apply", when).items():
        if when != "evaluation":
            variables = check_returned(name, "apply", method.apply(variables, measured[name], model), variables)
    fixed = model.mask(algorithm.private_part) if when == "start" else algorithm.unchanged_by_server(model)
    variables = masks.where(fixed, server.variables, variables)
    for name, method in algorithm.having("after_round", when).items():
        new = method.after_round(shared[name], before, variables, measured.get(name, ()))
        shared[name] = check_returned(name, "after_round", new, shared[name])
    return server._replace(variables=variables, shared=shared)


def dispatch(
    algorithm: FedAvg, server: Server, clients: ClientState, arrived: jax.Array, round: jax.Array, key: Key
) -> ClientState:
    """Returns the states of all clients after the methods' ``dispatch``.

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
    """Returns the evaluated model of the server.

    Its private parts are means over all ``clients``, whose states are stacked: the server's copy was never trained.
    """
    variables = server.variables
    for name, method in algorithm.having("evaluated").items():
        variables = method.evaluated(variables, server.shared[name], model)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, dtype=leaf.dtype), clients.private)
    return masks.replace(variables, mean)


def scored_clients(algorithm: FedAvg, clients: ClientState) -> ClientState:
    """Returns the part of the clients' states from which their models are computed."""
    used = {name for hook in ("batch", "receive", "personal", "predict") for name in algorithm.having(hook)} | {TRAINED}
    return clients._replace(memory={name: memory for name, memory in clients.memory.items() if name in used})


def _check_only_reports_of(name, reports):
    """Raises UserError if a method other than the one that perturbs the mean upload sends a report."""
    for other, report in reports.items():
        if other != name and jax.tree.leaves(report):
            raise UserError(
                f"methods {name} and {other}: clients also send a report of {other}, which the noise does not cover; "
                f"choose one of them"
            )


def _optimized(algorithm, variables):
    """Returns the variables that the server optimizer acts on, by name."""
    return {"params": variables.params} if algorithm.optimized == "params" else variables._asdict()
