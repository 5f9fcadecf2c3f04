"""The compiled rounds: draw a cohort, map local training over it, aggregate; several rounds in one call.

Several runs are one program as well: all that belongs to a run is stacked on a leading axis, and laid out by a client
map as clients are. A run resumes exactly from its state alone, also on another number of devices.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import randomness, server
from fedjax_collapse.algorithm import FedAvg
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine import skipping
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Outcome, on_one_device, to_host
from fedjax_collapse.engine.cohort import Data, Watched
from fedjax_collapse.engine.layout import Rounds
from fedjax_collapse.engine.skipping import SKIPPED
from fedjax_collapse.model import Model
from fedjax_collapse.records import ClientState, Key, PyTree, Server, Variables


class State(NamedTuple):
    """All that a run carries from round to round; what a checkpoint holds."""

    server: Server
    clients: ClientState  # every leaf with a leading axis over all clients; padded and in ``Data.order`` on devices
    key: Key  # of the run, never changed
    round: jax.Array  # number of rounds done


class RoundRecord(NamedTuple):
    """What a person wants to know of a round; NaN (steps: 0) for clients outside the cohort."""

    metrics: dict[str, jax.Array]  # each [clients]
    steps: jax.Array  # [clients] optimizer steps


class Advance(NamedTuple):
    """A run after some rounds."""

    state: State
    record: RoundRecord  # of each round, [max_rounds, ...]; those beyond the rounds that were asked for are unused
    watched: Watched  # of the last round


def init(algorithm: FedAvg, model: Model, variables: Variables, num_clients: int, key: Key) -> State:
    """The state before the first round; every client starts from the same state, which lies on the host once."""
    started, client = server.init(algorithm, model, variables)
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_clients, *np.shape(leaf))), client)
    started, key, round = jax.tree.map(jnp.array, (started, key, jnp.zeros((), jnp.int32)))
    return State(started, clients, key, round)


def client_shapes(algorithm: FedAvg, model: Model, num_clients: int) -> ClientState:
    """Shapes of the states of all clients; nothing is computed."""
    client = jax.eval_shape(lambda key: server.init(algorithm, model, model.init(key))[1], jax.random.key(0))
    return _of_all(client, num_clients)


def distribute(client_map: ClientMap, state: State, order: jax.Array | None = None) -> State:
    """The state where the compiled rounds expect and leave it: clients sharded, the rest replicated.

    ``order``: that of the ``Data`` of these rounds; padding gets the last client's state.
    """

    def place(leaf):
        if order is not None:
            leaf = np.take(jax.device_get(leaf), order, axis=0, mode="clip")
        return client_map.shard(leaf)

    placed = client_map.replicate(state._replace(clients=()))
    return placed._replace(clients=jax.tree.map(place, state.clients))


def without_padding(state: State, num_clients: int, order: jax.Array | None = None) -> State:
    """The state of the clients that there are, by identity, whatever devices it was placed on; on the host."""
    clients = by_identity(to_host(state.clients), num_clients, order)
    return _own(state._replace(clients=()))._replace(clients=clients)


def _own(state):
    """The state on a device of this process alone, where others have it as well."""
    is_common = not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))
    return on_one_device(state) if is_common else state


def by_identity(stored: PyTree, num_clients: int, order: jax.Array | None) -> PyTree:
    """What is stored of all clients in the order, row i that of client i, without padding."""
    rows = slice(num_clients) if order is None else np.argsort(order)[:num_clients]  # padding has the last identities
    return jax.tree.map(lambda leaf: leaf[rows], stored)


def run_rounds(rounds: Rounds, algorithm: FedAvg, state: State, data: Data, num_rounds: jax.Array | int) -> Advance:
    """The run after ``num_rounds`` rounds; with a ``run_map`` every run, stacked as ``stack_runs`` does it.

    Compiled once for all numbers of rounds up to ``layout.max_rounds`` and all values of the algorithm's
    hyper-parameters. ``state`` is donated: its buffers are reused and it must not be used again.
    """
    if rounds.layout.client_map.is_compiled:
        return _run_rounds_compiled(rounds, algorithm, state, data, num_rounds)
    with jax.disable_jit():
        return _run_rounds(rounds, algorithm, state, data, num_rounds)


def compile_rounds(rounds: Rounds, *arguments) -> jax.stages.Compiled:
    """The program that ``run_rounds`` runs on these arguments, and has then compiled."""
    return _run_rounds_compiled.lower(rounds, *arguments).compile()


def trace(rounds: Rounds, algorithm: FedAvg, data: Data) -> None:
    """Goes through the rounds of a run without computing anything, so that whatever does not fit together is found.

    Raises:
        UserError: by a network or a method that cannot work with the others.
    """
    if not rounds.layout.client_map.is_compiled:
        rounds = dataclasses.replace(rounds, layout=rounds.layout._replace(client_map=Chunked(1)))
    _run_rounds_compiled.eval_shape(rounds, *_shapes(rounds, algorithm, data), rounds.layout.max_rounds)


def lower(rounds: Rounds, algorithm: FedAvg, data: Data) -> jax.stages.Lowered:
    """The rounds of a run as they go to the compiler, also of devices that are not there; ``data`` may be shapes."""
    return _run_rounds_compiled.lower(rounds, *_shapes(rounds, algorithm, data), rounds.layout.max_rounds)


def with_first_reports(
    rounds: Rounds, algorithm: FedAvg, state: State, data: Data
) -> tuple[State, jax.Array | np.ndarray]:
    """The state before the first round, after the reports on the initial model that some methods start with, and whose
    were left out [clients], as they were not finite and clients are skipped."""
    if not algorithm.starting:
        return state, np.zeros(len(data.ownership.sizes), bool)
    return _with_first_reports(rounds, algorithm, state, data)


def stack_runs(runs: Sequence[tuple[FedAvg, State, Data]], run_map: ClientMap) -> tuple[FedAvg, State, Data]:
    """The runs' algorithms, states and data, each stacked on a leading axis; the examples are common to all.

    Padded to a multiple of ``run_map.clients_at_once`` with runs whose clients own nothing.
    """
    examples = runs[0][2].examples
    own = [(algorithm, state, data._replace(examples=())) for algorithm, state, data in runs]
    algorithm, state, data = own[-1]
    idle = data.ownership._replace(sizes=jnp.zeros_like(data.ownership.sizes))
    own += [(algorithm, state, data._replace(ownership=idle))] * (-len(own) % run_map.clients_at_once)
    algorithm, state, data = (run_map.shard(part) for part in jax.tree.map(lambda *leaves: _stack(leaves), *own))
    return algorithm, state, data._replace(examples=examples)


def split_runs(stacked: PyTree, num_runs: int) -> list[PyTree]:
    """What belongs to each of the stacked runs, on one device; without those that only pad."""
    return _split_runs(on_one_device(stacked), num_runs)


def _run_rounds(rounds, algorithm, state, data, num_rounds):
    if rounds.run_map is None:
        return _run_one(rounds, algorithm, state, data, num_rounds)

    def run(shared, own):
        algorithm, state, data = own
        return Outcome((), _run_one(rounds, algorithm, state, data._replace(examples=shared[0]), shared[1]))

    own = algorithm, state, data._replace(examples=())
    return rounds.run_map(run, (data.examples, num_rounds), own).result


_run_rounds_compiled = jax.jit(_run_rounds, static_argnums=0, donate_argnums=2)


def _run_one(rounds, algorithm, state, data, num_rounds):
    @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
    def one_round(state, watched, algorithm, data):
        return _run_round(rounds, algorithm, state, watched, data)

    def body(index, carry):
        advance = one_round(carry.state, carry.watched.variables, algorithm, data)
        record = jax.tree.map(lambda all, one: all.at[index].set(one), carry.record, advance.record)
        return advance._replace(record=record)

    models = cohorts.no_models(rounds, state.server)
    shapes = jax.eval_shape(one_round, state, models, algorithm, data)
    max_rounds = rounds.layout.max_rounds
    record = jax.tree.map(lambda leaf: jnp.zeros((max_rounds, *leaf.shape), leaf.dtype), shapes.record)
    watched = Watched(zeros_of(shapes.watched.ids), models, state.server.variables)
    advance = jax.lax.fori_loop(0, num_rounds, body, Advance(state, record, watched))
    return _measured(rounds, algorithm, advance, data, num_rounds) if algorithm.measuring(by_all=True) else advance


def _measured(rounds, algorithm, advance, data, num_rounds):
    """The run after all clients have measured the server's model."""
    state, record = advance.state, advance.record
    last = state.round - 1

    def report(clients):
        return cohorts.measured_by_all(rounds, algorithm, state.server, last, clients, data.examples)

    key = randomness.clients_key(jax.random.fold_in(state.key, last))
    left_out, reports = _reports_of_all(rounds, algorithm, state, data, key, report)
    new = cohorts.end_with(rounds, algorithm, state.server, reports, left_out)
    if rounds.skips_clients:
        skipped = record.metrics[SKIPPED]
        of_last = jnp.where(left_out, 1, skipped[num_rounds - 1])
        record = record._replace(metrics={**record.metrics, SKIPPED: skipped.at[num_rounds - 1].set(of_last)})
    return advance._replace(state=state._replace(server=new), record=record)


def _run_round(rounds, algorithm, state, watched, data):
    sizes = data.ownership.sizes

    def attempt(left_out=None):
        clients = cohorts.draw(rounds, algorithm, data, state.key, state.round, left_out)
        clients = cohorts.gather(clients, data, state.clients)
        start = cohorts.Start(state.server, state.round, watched)
        new, result = cohorts.run(rounds, algorithm, start, clients, data.examples)
        failed = result.metrics[SKIPPED] > 0 if rounds.skips_clients else ()
        return clients.id, failed, (new, result)

    if rounds.skips_clients:
        left_out, ids, (new, result) = skipping.without_failed(attempt, len(sizes))
    else:
        ids, _, (new, result) = attempt()
    positions = jnp.where(ids < len(sizes), ids, np.iinfo(np.int32).max)  # padding clients are dropped

    def store(stored, new):
        return stored.at[positions].set(new, mode="drop")

    record = RoundRecord(
        metrics=jax.tree.map(lambda m: store(jnp.full(len(sizes), jnp.nan, m.dtype), m), result.metrics),
        steps=store(jnp.zeros(len(sizes), result.steps.dtype), result.steps),
    )
    if rounds.skips_clients:
        record.metrics[SKIPPED] = jnp.where(left_out, 1, record.metrics[SKIPPED])
    states = jax.tree.map(store, state.clients, result.states) if data.order is None else result.states
    states = rounds.layout.client_map.keep_sharded(states)
    return Advance(State(new, states, state.key, state.round + 1), record, result.watched)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _with_first_reports(rounds, algorithm, state, data):
    def report(clients):
        return cohorts.first_reports(rounds, algorithm, state.server, clients, data.examples)

    left_out, reports = _reports_of_all(rounds, algorithm, state, data, state.key, report)
    return state._replace(server=cohorts.start_with(rounds, algorithm, state.server, reports, left_out)), left_out


def _reports_of_all(rounds, algorithm, state, data, key, report):
    """Whose reports were left out [clients], and the sum of the others', of all clients with keys made of that one."""
    sizes = data.ownership.sizes
    nobody = jnp.zeros(len(sizes), bool)

    def attempt(left_out):
        order = cohorts.everyone(sizes, rounds.layout.client_map) if data.order is None else data.order
        order = cohorts.without(order, left_out) if rounds.skips_clients else order
        clients = cohorts.gather(cohorts.stack(algorithm, order, sizes, key, None), data, state.clients)
        reports, wrong = report(clients)
        return clients.id, wrong > 0 if rounds.skips_clients else (), reports

    if rounds.skips_clients:
        left_out, _, reports = skipping.without_failed(attempt, len(sizes))
        return left_out, reports
    return nobody, attempt(nobody)[2]


def _shapes(rounds, algorithm, data):
    """Of what the rounds are given, where it is placed."""
    client_map = rounds.layout.client_map
    algorithm, participation = jax.tree.map(jnp.asarray, (algorithm, data.participation))
    data = data._replace(participation=participation)
    data = data._replace(order=jax.eval_shape(functools.partial(cohorts.home_order, rounds), data))
    state = _state_shapes(algorithm, rounds.model, data, client_map)
    algorithm, data = client_map.shapes((algorithm, data))
    return algorithm, state, data


def _state_shapes(algorithm, model, data, client_map):
    """Of a state that is placed on devices."""

    def start_state(key):
        return State(*server.init(algorithm, model, model.init(key)), key, jnp.zeros((), jnp.int32))

    state = jax.eval_shape(start_state, jax.random.key(0))
    num_clients = len(data.ownership.sizes)
    stored = num_clients + -num_clients % client_map.num_devices if data.order is None else len(data.order)
    placed = client_map.shapes(state._replace(clients=()))
    return placed._replace(clients=client_map.shapes(_of_all(state.clients, stored), sharded=True))


def _of_all(client, num_clients):
    """Shapes of one client's state, with an axis over clients."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape), leaf.dtype), client)


@functools.partial(jax.jit, static_argnames="num_runs")  # one call: each slice by itself would cost as much
def _split_runs(stacked, num_runs):
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(num_runs)]


def _stack(leaves):
    return jnp.stack(leaves) if isinstance(leaves[0], jax.Array) else np.stack(leaves)
