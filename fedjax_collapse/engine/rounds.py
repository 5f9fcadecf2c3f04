"""The compiled rounds: draw a cohort, map local training over it, aggregate; several rounds in one call.

Several runs can be one program as well: their arguments are stacked on a leading axis, and laid out by a client map as
clients are. A run resumes exactly from its state, also on another number of devices.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import ClientState, Examples, Key, PyTree, Server, Variables, in_one_line
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Outcome
from fedjax_collapse.engine.cohort import Assignment, Watched
from fedjax_collapse.engine.layout import RoundSpec
from fedjax_collapse.engine.placement import on_one_device, to_host
from fedjax_collapse.engine.skipping import SKIPPED
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training import server
from fedjax_collapse.training.algorithm import FedAvg


class State(NamedTuple):
    """Everything that a run carries from round to round; the content of a checkpoint."""

    server: Server
    clients: ClientState  # each leaf with a leading axis over all clients; on devices padded, in ``Assignment.order``
    key: Key  # of the run, never changed
    round: jax.Array  # number of rounds done

    __repr__ = in_one_line


class RoundRecord(NamedTuple):
    """The record of a round; NaN (steps: 0) for clients outside the cohort.

    Of a federation on disk it only has entries for the cohort, in the order of identities.
    """

    metrics: dict[str, jax.Array]  # each [clients], or [cohort]
    steps: jax.Array  # [clients] optimizer steps, or [cohort]
    ids: np.ndarray | None = None  # [cohort] identities, the number of clients where there is none; None: all clients

    def of_entries(self, of_clients: np.ndarray, absent: float = 0) -> np.ndarray:
        """Returns the values of the record's entries, given those of all clients."""
        if self.ids is None:
            return of_clients
        return np.where(self.ids < len(of_clients), of_clients.take(self.ids, mode="clip"), absent)


class Advance(NamedTuple):
    """A run after some rounds, with their records."""

    state: State
    record: RoundRecord  # of each round, [max_rounds, ...]; entries after the requested rounds are unused
    watched: Watched  # of the last round


def init(algorithm: FedAvg, model: Model, variables: Variables, num_clients: int, key: Key) -> State:
    """Returns the state before the first round. All clients start from the same state, stored once, on the host."""
    started, client = server.init(algorithm, model, variables, num_clients)
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_clients, *np.shape(leaf))), client)
    started, key, round = jax.tree.map(jnp.array, (started, key, jnp.zeros((), jnp.int32)))
    return State(started, clients, key, round)


def client_shapes(algorithm: FedAvg, model: Model, num_clients: int) -> ClientState:
    """Returns the shapes of the states of all clients, without computing anything."""

    def start_client(key):
        return server.init(algorithm, model, model.init(key), num_clients)[1]

    return _of_all(jax.eval_shape(start_client, jax.random.key(0)), num_clients)


def distribute(client_map: ClientMap, state: State, order: jax.Array | None = None) -> State:
    """Places the state where the compiled rounds expect it: clients sharded, the rest replicated.

    Args:
        client_map: the layout.
        state: the state, its clients by identity.
        order: ``Assignment.order`` of these rounds; padding gets the last client's state.
    """

    def place(leaf):
        if order is not None:
            leaf = np.take(jax.device_get(leaf), order, axis=0, mode="clip")
        return client_map.shard(leaf)

    placed = client_map.replicate(state._replace(clients=()))
    return placed._replace(clients=jax.tree.map(place, state.clients))


def without_padding(state: State, num_clients: int, order: jax.Array | None = None) -> State:
    """Returns the state with its clients by identity, without padding and on the host, from any placement."""
    clients = by_identity(to_host(state.clients), num_clients, order)
    rest = state._replace(clients=())
    if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(rest) if isinstance(leaf, jax.Array)):
        rest = on_one_device(rest)
    return rest._replace(clients=clients)


def by_identity(stored: PyTree, num_clients: int, order: jax.Array | None) -> PyTree:
    """Returns what is stored for all clients in the order of their identities, without padding."""
    rows = slice(num_clients)
    if order is not None:  # padding has the last identities
        rows = (jnp if is_traced(order) else np).argsort(order)[:num_clients]
    return jax.tree.map(lambda leaf: leaf[rows], stored)


def run_rounds(
    spec: RoundSpec,
    algorithm: FedAvg,
    state: State,
    assignment: Assignment,
    examples: Examples,
    num_rounds: jax.Array | int,
) -> Advance:
    """Runs ``num_rounds`` rounds; with a ``run_map`` of every run, stacked as by ``together.stack_runs``.

    Compiled once for all numbers of rounds up to ``layout.max_rounds`` and all values of the algorithm's
    hyper-parameters. ``state`` is donated: its buffers are reused and it must not be used again.
    """
    if spec.layout.client_map.is_compiled:
        advance = _run_rounds_compiled(spec, algorithm, state, assignment, examples, num_rounds)
        return advance._replace(watched=advance.watched.collected(spec))
    with jax.disable_jit():
        return _run_rounds(spec, algorithm, state, assignment, examples, num_rounds)


def compile_rounds(spec: RoundSpec, *arguments) -> jax.stages.Compiled:
    """Returns the program that ``run_rounds`` runs on these arguments, which is then cached."""
    return _run_rounds_compiled.lower(spec, *arguments).compile()


def trace(spec: RoundSpec, algorithm: FedAvg, assignment: Assignment, examples: Examples) -> None:
    """Traces a round of a run, client by client, without computing anything, to find whatever does not fit together.

    Raises:
        UserError: a network or a method does not fit the rest.
    """
    layout = spec.layout._replace(client_map=Chunked(1), max_rounds=1, batch_parts=1)
    spec = dataclasses.replace(spec, layout=layout, run_map=None)
    _run_rounds_compiled.eval_shape(spec, *_shapes(spec, algorithm, assignment, examples), spec.layout.max_rounds)


def lower(spec: RoundSpec, algorithm: FedAvg, assignment: Assignment, examples: Examples) -> jax.stages.Lowered:
    """Lowers the rounds of a run, also for absent devices; ``assignment`` and ``examples`` may be shapes."""
    return _run_rounds_compiled.lower(spec, *_shapes(spec, algorithm, assignment, examples), spec.layout.max_rounds)


def with_first_reports(
    spec: RoundSpec, algorithm: FedAvg, state: State, assignment: Assignment, examples: Examples
) -> tuple[State, jax.Array | np.ndarray | None]:
    """Returns the state before the first round, updated by the reports on the initial model that some methods need.

    Also returns the clients [clients] whose reports were left out because they were not finite; None if clients are not
    skipped.
    """
    if not algorithm.having("measure", "start"):
        return state, None
    return _with_first_reports(spec, algorithm, state, assignment, examples)


def _run_rounds(spec, algorithm, state, assignment, examples, num_rounds):
    if spec.run_map is None:
        return _run_one(spec, algorithm, state, assignment, examples, num_rounds)

    def run(common, own):
        return Outcome((), _run_one(spec, *own, *common))

    return spec.run_map(run, (examples, num_rounds), (algorithm, state, assignment)).result


_run_rounds_compiled = jax.jit(_run_rounds, static_argnums=0, donate_argnums=2)


def _run_one(spec, algorithm, state, assignment, examples, num_rounds):
    @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
    def one_round(state, slots, algorithm, assignment, examples):
        return _run_round(spec, algorithm, state, slots, assignment, examples)

    def body(index, carry):
        advance = one_round(carry.state, carry.watched.variables, algorithm, assignment, examples)
        record = jax.tree.map(lambda all, one: all.at[index].set(one), carry.record, advance.record)
        return advance._replace(record=record)

    models = cohorts.no_models(spec, algorithm, state.server)
    shapes = jax.eval_shape(one_round, state, models, algorithm, assignment, examples)
    max_rounds = spec.layout.max_rounds
    record = jax.tree.map(lambda leaf: jnp.zeros((max_rounds, *leaf.shape), leaf.dtype), shapes.record)
    watched = Watched(zeros_of(shapes.watched.ids), models, state.server.variables)
    advance = jax.lax.fori_loop(0, num_rounds, body, Advance(state, record, watched))
    if algorithm.having("measure", "evaluation"):
        return _measured_by_all(spec, algorithm, advance, assignment, examples, num_rounds)
    return advance


def _run_round(spec, algorithm, state, slots, assignment, examples):
    """Draws a cohort, trains it, aggregates its uploads, and records the results."""
    received = cohorts.Received(state.server, state.round, examples, state.key)
    dispatches = algorithm.having("dispatch")

    def attempt(left_out):
        drawn = cohorts.draw(spec, algorithm, assignment, state.key, state.round, left_out)
        clients = cohorts.gather(drawn, assignment, state.clients)
        upload, result = cohorts.train(spec, algorithm, received, clients, slots)
        new, result = cohorts.aggregate(spec, algorithm, received, clients, upload, result)
        return drawn.id, result.metrics.get(SKIPPED), (new, result, drawn.is_counted if dispatches else ())

    num_clients = len(assignment.ownership.sizes)
    left_out, ids, (new, result, is_counted) = spec.diverging.repeat(attempt, num_clients)
    states, record = _record(spec, state.clients, assignment, ids, result, left_out)
    if dispatches:
        arrived = jnp.zeros(num_clients, bool).at[ids].max(is_counted, mode="drop")
        states = _dispatch(spec, algorithm, state._replace(server=new, clients=states), assignment, arrived)
    return Advance(State(new, states, state.key, state.round + 1), record, result.watched)


def _record(spec, stored, assignment, ids, result, left_out):
    """Returns the states of all clients, in their places, and the round's record, by client."""
    num_clients = len(assignment.ownership.sizes)
    positions = jnp.where(ids < num_clients, ids, np.iinfo(np.int32).max)  # padding clients are dropped

    def store(stored, new):
        return stored.at[positions].set(new, mode="drop")

    metrics = jax.tree.map(lambda m: store(jnp.full(num_clients, jnp.nan, m.dtype), m), result.metrics)
    steps = store(jnp.zeros(num_clients, result.steps.dtype), result.steps)
    if left_out is not None:
        metrics[SKIPPED] = jnp.where(left_out, 1, metrics[SKIPPED])
    states = jax.tree.map(store, stored, result.states) if assignment.order is None else result.states
    return spec.layout.client_map.keep_sharded(states), RoundRecord(metrics, steps)


def _dispatch(spec, algorithm, state, assignment, arrived):
    """Returns the clients' stored states after the server's part in them, which it makes from those of all clients."""
    num_clients, order = len(assignment.ownership.sizes), assignment.order
    of_all = by_identity(state.clients, num_clients, order)
    new = server.dispatch(algorithm, state.server, of_all, arrived, state.round, state.key)
    if order is None:
        states = jax.tree.map(lambda leaf, own: leaf.at[:num_clients].set(own), state.clients, new)
    else:
        states = jax.tree.map(lambda own: own.at[order].get(mode="clip"), new)
    return spec.layout.client_map.keep_sharded(states)


def _measured_by_all(spec, algorithm, advance, assignment, examples, num_rounds):
    """Returns the run after all clients have measured the server's model."""
    state, record = advance.state, advance.record
    last = state.round - 1
    received = cohorts.Received(state.server, last, examples)
    report = functools.partial(cohorts.measure, spec, algorithm, received, when="evaluation")
    key = Stream.CLIENTS.key(jax.random.fold_in(state.key, last))
    left_out, reports = _reports_of_all(spec, algorithm, state, assignment, key, report)
    new = cohorts.after_measuring(spec, algorithm, state.server, reports, left_out, "evaluation")
    if left_out is not None:
        skipped = record.metrics[SKIPPED]
        of_last = jnp.where(left_out, 1, skipped[num_rounds - 1])
        record = record._replace(metrics={**record.metrics, SKIPPED: skipped.at[num_rounds - 1].set(of_last)})
    return advance._replace(state=state._replace(server=new), record=record)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _with_first_reports(spec, algorithm, state, assignment, examples):
    received = cohorts.Received(state.server, 0, examples)
    report = functools.partial(cohorts.measure, spec, algorithm, received, when="start")
    key = Stream.FIRST_REPORTS.key(state.key)
    left_out, reports = _reports_of_all(spec, algorithm, state, assignment, key, report)
    new = cohorts.after_measuring(spec, algorithm, state.server, reports, left_out, "start")
    return state._replace(server=new), left_out


def _reports_of_all(spec, algorithm, state, assignment, key, report):
    """Returns the clients [clients] whose reports were left out, or None, and the sum of all other clients' reports.

    ``key`` is the key from which the keys of all clients are derived.
    """
    sizes = assignment.ownership.sizes

    def attempt(left_out):
        order = cohorts.everyone(sizes, spec.layout.client_map) if assignment.order is None else assignment.order
        drawn = cohorts.stack(algorithm, cohorts.without(order, left_out), sizes, key, None)
        reports, wrong = report(cohorts.gather(drawn, assignment, state.clients))
        return drawn.id, wrong, reports

    left_out, _, reports = spec.diverging.repeat(attempt, len(sizes))
    return left_out, reports


def _shapes(spec, algorithm, assignment, examples):
    """Returns the shapes and placements of the arguments of the rounds."""
    client_map = spec.layout.client_map
    algorithm, participation = jax.tree.map(jnp.asarray, (algorithm, assignment.participation))
    assignment = assignment._replace(participation=participation)
    assignment = assignment._replace(order=jax.eval_shape(functools.partial(cohorts.home_order, spec), assignment))
    state = _state_shapes(algorithm, spec.model, assignment, client_map)
    algorithm, assignment, examples = client_map.shapes((algorithm, assignment, examples))
    return algorithm, state, assignment, examples


def _state_shapes(algorithm, model, assignment, client_map):
    """Returns the shapes and placements of a state."""

    num_clients = len(assignment.ownership.sizes)

    def start_state(key):
        return State(*server.init(algorithm, model, model.init(key), num_clients), key, jnp.zeros((), jnp.int32))

    state = jax.eval_shape(start_state, jax.random.key(0))
    stored = num_clients + -num_clients % client_map.num_devices if assignment.order is None else len(assignment.order)
    placed = client_map.shapes(state._replace(clients=()))
    return placed._replace(clients=client_map.shapes(_of_all(state.clients, stored), sharded=True))


def _of_all(client, num_clients):
    """Returns the shapes of one client's state with an axis over clients."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape), leaf.dtype), client)
