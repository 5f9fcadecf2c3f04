"""The compiled round: draw a cohort, map local training over it, aggregate; several rounds in one call.

All randomness comes from identities (round, client, epoch), never from a position, so the numbers do not depend on how
clients are laid out, and a run resumes exactly from its state alone.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.aggregation import Upload, weigh
from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine.client_maps import Chunked, ClientMap
from fedjax_collapse.records import Client, ClientState, Examples, Key, Model, Ownership, PyTree, Server, Variables

_COHORT, _CLIENT = 0, 1  # streams of randomness within a round


class State(NamedTuple):
    """All that a run carries from round to round; what a checkpoint holds."""

    server: Server
    clients: ClientState  # every leaf with a leading axis over all clients
    key: Key  # of the run, never changed
    round: jax.Array  # number of rounds done


class RoundRecord(NamedTuple):
    """What a person wants to know of a round; NaN (steps: 0) for clients outside the cohort."""

    metrics: dict[str, jax.Array]  # each [clients]
    steps: jax.Array  # [clients] optimizer steps
    watched: jax.Array  # identity of the client whose local model is kept


def init(algorithm: Algorithm, model: Model, variables: Variables, num_clients: int, key: Key) -> State:
    """The state before the first round; every client starts from the same state."""
    server, client = base.init(algorithm, model, variables)
    clients = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num_clients, axis=0), client)
    return jax.tree.map(jnp.array, State(server, clients, key, jnp.zeros((), jnp.int32)))


def run_rounds(
    algorithm: Algorithm,
    state: State,
    examples: Examples,
    ownership: Ownership,
    num_rounds: jax.Array | int,
    *,
    model: Model,
    client_map: ClientMap,
    cohort_size: int,
    max_rounds: int,
) -> tuple[State, RoundRecord, Variables]:
    """The state after ``num_rounds`` rounds, a record of each ([max_rounds, ...], those beyond unused), and the local
    model of the last round's watched client: the cohort's member of lowest identity, after its local training.

    Compiled once for all numbers of rounds up to ``max_rounds`` and all values of the algorithm's hyper-parameters.
    ``state`` is donated: its buffers are reused and it must not be used again.
    """
    statics = dict(model=model, client_map=client_map, cohort_size=cohort_size, max_rounds=max_rounds)
    if client_map.is_compiled:
        return _run_rounds_compiled(algorithm, state, examples, ownership, num_rounds, **statics)
    with jax.disable_jit():
        return _run_rounds(algorithm, state, examples, ownership, num_rounds, **statics)


def _run_rounds(algorithm, state, examples, ownership, num_rounds, *, model, client_map, cohort_size, max_rounds):
    def one_round(state):
        return _run_round(algorithm, state, examples, ownership, model, client_map, cohort_size)

    def body(index, carry):
        state, records, _ = carry
        state, record, watched = one_round(state)
        return state, jax.tree.map(lambda all, one: all.at[index].set(one), records, record), watched

    _, record, watched = jax.eval_shape(one_round, state)
    records = jax.tree.map(lambda leaf: jnp.zeros((max_rounds, *leaf.shape), leaf.dtype), record)
    return jax.lax.fori_loop(0, num_rounds, body, (state, records, zeros_of(watched)))


def trace(
    algorithm: Algorithm,
    examples: Examples,
    ownership: Ownership,
    *,
    model: Model,
    client_map: ClientMap,
    cohort_size: int,
    max_rounds: int,
) -> None:
    """Goes through the rounds of a run without computing anything, so that whatever does not fit together is found.

    Raises:
        UserError: by a network, a regularizer or an algorithm that cannot work with the others.
    """
    algorithm = jax.tree.map(jnp.asarray, algorithm)

    def start_state(key):
        return init(algorithm, model, model.init(key), len(ownership.sizes), key)

    state = jax.eval_shape(start_state, jax.random.key(0))
    client_map = client_map if client_map.is_compiled else Chunked(1)
    layout = dict(client_map=client_map, cohort_size=cohort_size, max_rounds=max_rounds)
    _run_rounds_compiled.eval_shape(algorithm, state, examples, ownership, max_rounds, model=model, **layout)


def start(
    algorithm: Algorithm,
    state: State,
    examples: Examples,
    ownership: Ownership,
    *,
    model: Model,
    client_map: ClientMap,
) -> State:
    """The state before the first round, after the reports on the initial model that some regularizers start with."""
    if not any(regularizer.starts_with_report() for regularizer in algorithm.regularizers.values()):
        return state
    return _start(algorithm, state, examples, ownership, model, client_map)


@functools.partial(jax.jit, static_argnames=("model", "client_map"), donate_argnames="state")
def _start(algorithm, state, examples, ownership, model, client_map):
    num_clients = len(ownership.sizes)
    everyone = _pad_and_sort(jnp.arange(num_clients), ownership.sizes, client_map.clients_at_once)
    clients = _gather_clients(client_map.arrange(everyone), ownership, state.clients, state.key, algorithm)

    def report(shared, client):
        server, examples = shared
        reports = base.first_report(algorithm, model, examples, server, client)
        return weigh(Upload((), reports), client.weight, client.id < num_clients), ()

    upload, _ = client_map(report, (state.server, examples), clients)
    return state._replace(server=base.start(algorithm, state.server, upload.total))


_run_rounds_compiled = jax.jit(
    _run_rounds, static_argnames=("model", "client_map", "cohort_size", "max_rounds"), donate_argnames="state"
)


def _run_round(algorithm, state, examples, ownership, model, client_map, cohort_size):
    num_clients = len(ownership.sizes)
    key = jax.random.fold_in(state.key, state.round)
    cohort = _draw_cohort(jax.random.fold_in(key, _COHORT), num_clients, cohort_size)
    watched_id = jnp.min(cohort)
    cohort = client_map.arrange(_pad_and_sort(cohort, ownership.sizes, client_map.clients_at_once))
    clients = _gather_clients(cohort, ownership, state.clients, jax.random.fold_in(key, _CLIENT), algorithm)

    halve = halves_short_batches(client_map, state.server.variables)

    def run_client(shared, client):
        server, examples = shared
        context = (algorithm, model, examples, server, state.round)
        upload, client_state, trained = base.local(*context, client, halve_short_batches=halve)
        upload = weigh(upload, client.weight, client.id < num_clients)
        watched = jax.tree.map(lambda leaf: jnp.where(client.id == watched_id, leaf, 0), trained.variables)
        return (upload, watched), (client_state, trained.steps, trained.metrics)

    shared = (state.server, examples)
    (upload, watched), (client_states, steps, metrics) = client_map(run_client, shared, clients)

    def store(stored, new):  # identities of padding clients are out of range, and dropped
        return stored.at[cohort].set(new, mode="drop")

    record = RoundRecord(
        metrics=jax.tree.map(lambda leaf: store(jnp.full(num_clients, jnp.nan, leaf.dtype), leaf), metrics),
        steps=store(jnp.zeros(num_clients, steps.dtype), steps),
        watched=watched_id,
    )
    server = base.aggregate(algorithm, state.server, upload)
    if algorithm.recalibrate:
        server = _recalibrate(algorithm, server, examples, clients, num_clients, model, client_map)
    state = State(
        server=server,
        clients=jax.tree.map(store, state.clients, client_states),
        key=state.key,
        round=state.round + 1,
    )
    return state, record, watched


def halves_short_batches(client_map: ClientMap, variables: Variables) -> bool:
    """Whether a batch that fits into half of one costs half.

    Only for clients that run alone, as under ``vmap`` a branch costs both of its cases; and only for networks of dense
    layers alone, which gain a fifth by it: convolutional ones gain nothing that we could measure, and compile twice as
    long.
    """
    is_dense = all(leaf.ndim <= 2 for leaf in jax.tree.leaves(variables.params))
    return client_map.runs_clients_alone and is_dense


def _recalibrate(algorithm, server, examples, clients, num_clients, model, client_map):
    """The server with the running statistics that the cohort measures on its model."""

    def measure(shared, client):
        variables, examples = shared
        measured = base.batch_statistics(algorithm, model, examples, variables, client)
        return weigh(Upload(measured), client.weight, client.id < num_clients), ()

    upload, _ = client_map(measure, (server.variables, examples), clients)
    return server._replace(variables=server.variables._replace(batch_stats=upload.mean))


def _draw_cohort(key: Key, num_clients: int, cohort_size: int) -> jax.Array:
    """Identities [cohort_size] of distinct clients, uniformly drawn."""
    if cohort_size == num_clients:
        return jnp.arange(num_clients)
    return jax.random.permutation(key, num_clients)[:cohort_size]


def _pad_and_sort(cohort: jax.Array, sizes: jax.Array, multiple: int) -> jax.Array:
    """The cohort by increasing size, behind as many out-of-range identities as make its length a multiple.

    Sorted, the clients of a chunk have similar numbers of steps and wait little for one another.
    """
    padding = jnp.full(-len(cohort) % multiple, len(sizes), cohort.dtype)
    return jnp.concatenate([padding, cohort[jnp.argsort(sizes[cohort])]])


def _gather_clients(cohort: jax.Array, ownership: Ownership, states: PyTree, key: Key, algorithm: Algorithm) -> Client:
    """The cohort as stacked clients; out-of-range identities get size 0 and weight 0."""
    num_clients = len(ownership.sizes)
    is_real = cohort < num_clients
    stored = jnp.where(is_real, cohort, 0)
    sizes = jnp.where(is_real, ownership.sizes[stored], 0)
    batches = sizes // algorithm.training.batch_size
    batches = jnp.where(jnp.sum(batches) > 0, batches, sizes)  # where nobody has a whole batch
    weights = {"size": sizes, "equal": is_real, "batches": batches}[algorithm.weighting]
    return Client(
        id=cohort,
        rows=ownership.rows[stored],
        size=sizes,
        weight=weights / jnp.sum(weights),
        state=jax.tree.map(lambda leaf: leaf[stored], states),
        key=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, cohort),
        num_clients=jnp.full(len(cohort), num_clients),
        mean_size=jnp.full(len(cohort), jnp.sum(ownership.sizes) / num_clients),
    )
