"""The compiled round: draw a cohort, map local training over it, aggregate; several rounds in one call.

A run resumes exactly from its state alone, also on another number of devices.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import Chunked, ClientMap
from fedjax_collapse.engine.layout import Layout
from fedjax_collapse.records import ClientState, Examples, Key, Model, Ownership, Server, Variables


class State(NamedTuple):
    """All that a run carries from round to round; what a checkpoint holds."""

    server: Server
    clients: ClientState  # every leaf with a leading axis over all clients; behind them padding, while it is placed
    key: Key  # of the run, never changed
    round: jax.Array  # number of rounds done


class RoundRecord(NamedTuple):
    """What a person wants to know of a round; NaN (steps: 0) for clients outside the cohort."""

    metrics: dict[str, jax.Array]  # each [clients]
    steps: jax.Array  # [clients] optimizer steps
    watched: jax.Array  # identity of the client whose local model is kept


def init(algorithm: Algorithm, model: Model, variables: Variables, num_clients: int, key: Key) -> State:
    """The state before the first round; every client starts from the same state, which lies on the host once."""
    server, client = base.init(algorithm, model, variables)
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_clients, *np.shape(leaf))), client)
    server, key, round = jax.tree.map(jnp.array, (server, key, jnp.zeros((), jnp.int32)))
    return State(server, clients, key, round)


def _state_shapes(algorithm, model, num_clients, client_map):
    """Of a state that is placed on devices."""

    def start_state(key):
        return State(*base.init(algorithm, model, model.init(key)), key, jnp.zeros((), jnp.int32))

    state = jax.eval_shape(start_state, jax.random.key(0))
    stored = num_clients + -num_clients % client_map.num_devices
    clients = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((stored, *leaf.shape), leaf.dtype), state.clients)
    placed = client_map.shapes(state._replace(clients=()))
    return placed._replace(clients=client_map.shapes(clients, dealt=True))


def place(client_map: ClientMap, state: State) -> State:
    """The state where the compiled rounds expect and leave it: clients dealt to the devices, the rest on each."""
    placed = client_map.place(state._replace(clients=()))
    return placed._replace(clients=client_map.deal(state.clients))


def without_padding(state: State, num_clients: int) -> State:
    """The state of the clients that there are, whatever number of devices it was placed on; on the host."""
    state = state._replace(clients=jax.device_get(state.clients))
    return state._replace(clients=jax.tree.map(lambda leaf: leaf[:num_clients], state.clients))


def run_rounds(
    algorithm: Algorithm,
    state: State,
    examples: Examples,
    ownership: Ownership,
    num_rounds: jax.Array | int,
    *,
    model: Model,
    layout: Layout,
) -> tuple[State, RoundRecord, Variables]:
    """The state after ``num_rounds`` rounds, a record of each ([max_rounds, ...], those beyond unused), and the local
    model of the last round's watched client: the cohort's member of lowest identity, after its local training.

    Compiled once for all numbers of rounds up to ``layout.max_rounds`` and all values of the algorithm's
    hyper-parameters. ``state`` is donated: its buffers are reused and it must not be used again.
    """
    if layout.client_map.is_compiled:
        return _run_rounds_compiled(algorithm, state, examples, ownership, num_rounds, model=model, layout=layout)
    with jax.disable_jit():
        return _run_rounds(algorithm, state, examples, ownership, num_rounds, model=model, layout=layout)


def compile_rounds(*arguments, model: Model, layout: Layout) -> jax.stages.Compiled:
    """The program that ``run_rounds`` runs on these arguments, and has then compiled."""
    return _run_rounds_compiled.lower(*arguments, model=model, layout=layout).compile()


def _run_rounds(algorithm, state, examples, ownership, num_rounds, *, model, layout):
    @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
    def one_round(state, algorithm, examples, ownership):
        return _run_round(state, algorithm, examples, ownership, model, layout)

    def body(index, carry):
        state, records, _ = carry
        state, record, watched = one_round(state, algorithm, examples, ownership)
        return state, jax.tree.map(lambda all, one: all.at[index].set(one), records, record), watched

    _, record, watched = jax.eval_shape(one_round, state, algorithm, examples, ownership)
    records = jax.tree.map(lambda leaf: jnp.zeros((layout.max_rounds, *leaf.shape), leaf.dtype), record)
    return jax.lax.fori_loop(0, num_rounds, body, (state, records, zeros_of(watched)))


_run_rounds_compiled = jax.jit(_run_rounds, static_argnames=("model", "layout"), donate_argnames="state")


def _run_round(state, algorithm, examples, ownership, model, layout):
    num_clients = len(ownership.sizes)
    cohort = cohorts.draw(state.key, state.round, num_clients, layout.cohort_size)
    cohort = cohorts.arrange(cohort, ownership.sizes, layout.client_map)
    key = cohorts.round_key(state.key, state.round)
    clients = cohorts.pick(algorithm, cohort, ownership, state.clients, key)
    context = dict(model=model, layout=layout)
    server, outcome = cohorts.run(algorithm, state.server, state.round, clients, examples, num_clients, **context)
    positions = jnp.where(cohort < num_clients, cohort, np.iinfo(np.int32).max)  # padding clients are dropped

    def store(stored, new):
        return stored.at[positions].set(new, mode="drop")

    record = RoundRecord(
        metrics=jax.tree.map(lambda m: store(jnp.full(num_clients, jnp.nan, m.dtype), m), outcome.metrics),
        steps=store(jnp.zeros(num_clients, outcome.steps.dtype), outcome.steps),
        watched=jnp.min(cohort),
    )
    states = layout.client_map.keep_dealt(jax.tree.map(store, state.clients, outcome.states))
    return State(server, states, state.key, state.round + 1), record, outcome.watched


def trace(algorithm: Algorithm, examples: Examples, ownership: Ownership, *, model: Model, layout: Layout) -> None:
    """Goes through the rounds of a run without computing anything, so that whatever does not fit together is found.

    Raises:
        UserError: by a network, a regularizer or an algorithm that cannot work with the others.
    """
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    if not layout.client_map.is_compiled:
        layout = layout._replace(client_map=Chunked(1))
    state = _state_shapes(algorithm, model, len(ownership.sizes), layout.client_map)
    algorithm, examples, ownership = layout.client_map.shapes((algorithm, examples, ownership))
    _run_rounds_compiled.eval_shape(
        algorithm, state, examples, ownership, layout.max_rounds, model=model, layout=layout
    )


def start(
    algorithm: Algorithm, state: State, examples: Examples, ownership: Ownership, *, model: Model, layout: Layout
) -> State:
    """The state before the first round, after the reports on the initial model that some regularizers start with."""
    if not any(regularizer.starts_with_report() for regularizer in algorithm.regularizers.values()):
        return state
    return _start(algorithm, state, examples, ownership, model, layout)


@functools.partial(jax.jit, static_argnames=("model", "layout"), donate_argnames="state")
def _start(algorithm, state, examples, ownership, model, layout):
    everyone = cohorts.arrange(jnp.arange(len(ownership.sizes)), ownership.sizes, layout.client_map)
    clients = cohorts.pick(algorithm, everyone, ownership, state.clients, state.key)
    reports = cohorts.first_reports(algorithm, state.server, clients, examples, model=model, layout=layout)
    return state._replace(server=base.start(algorithm, state.server, reports))
