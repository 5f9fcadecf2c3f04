"""The compiled rounds: draw a cohort, map local training over it, aggregate; several rounds in one call.

Several runs can be one program as well: their arguments are stacked on a leading axis, and laid out by a client map as
clients are. A run resumes exactly from its state, also on another number of devices.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import ClientState, Examples, Key, PyTree, Server, Variables, in_one_line
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine import skipping
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Outcome
from fedjax_collapse.engine.cohort import Assignment, Cohort, Watched
from fedjax_collapse.engine.layout import RoundSpec
from fedjax_collapse.engine.placement import copied, on_one_device, to_host
from fedjax_collapse.engine.skipping import SKIPPED, Attempt
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

    def of_entries(self, of_clients: np.ndarray) -> np.ndarray:
        """Returns the values of the record's entries, given all clients' values; 0 for entries without a client."""
        if self.ids is None:
            return of_clients
        return np.where(self.ids < len(of_clients), of_clients.take(self.ids, mode="clip"), 0)

    def with_skipped(
        self, left_out: jax.Array | np.ndarray | None, round: jax.Array | int | None = None
    ) -> "RoundRecord":
        """Returns the record with the clients [clients] that were left out counted as skipped.

        ``round``: if the record is of several rounds, the index of the one in which they are counted.
        """
        if left_out is None:
            return self
        skipped = self.metrics[SKIPPED]
        choose = jnp.where if isinstance(skipped, jax.Array) else np.where
        is_now = True if round is None else (np.arange(len(skipped)) == round)[:, None]
        marked = choose(is_now & (self.of_entries(left_out) > 0), 1, skipped)
        return self._replace(metrics={**self.metrics, SKIPPED: marked})


class Advance(NamedTuple):
    """A run after some rounds, with their records."""

    state: State
    record: RoundRecord  # of each round, [max_rounds, ...]; entries after the requested rounds are unused
    watched: Watched  # of the last round


def init(algorithm: FedAvg, model: Model, variables: Variables, num_clients: int, key: Key) -> State:
    """Returns the state before the first round. All clients start from the same state, stored once, on the host."""
    started, client = server.init(algorithm, model, variables, num_clients)
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_clients, *np.shape(leaf))), client)
    started, key, round = copied(jax.tree.map(jnp.asarray, (started, key, np.zeros((), np.int32))))
    return State(started, clients, key, round)


def client_shapes(algorithm: FedAvg, model: Model, num_clients: int) -> ClientState:
    """Returns the shapes of the states of all clients, without computing anything."""
    return _of_all(_started(algorithm, model, num_clients).clients, num_clients)


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
    """Returns arrays over all clients in the order of their identities, without padding."""
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
    with compiled_or_not(spec):
        advance = _run_rounds_compiled(spec, algorithm, state, assignment, examples, num_rounds)
    return advance._replace(watched=advance.watched.collected(spec))


def compiled_or_not(spec: RoundSpec) -> AbstractContextManager[None]:
    """Runs its body operation by operation in the debug layout; in others as JAX is set, also by ``disable_jit``."""
    return contextlib.nullcontext() if spec.layout.client_map.is_compiled else jax.disable_jit()


def compile_rounds(spec: RoundSpec, *arguments) -> jax.stages.Compiled:
    """Returns the program that ``run_rounds`` runs on these arguments, which is then cached."""
    return _run_rounds_compiled.lower(spec, *arguments).compile()


def trace(spec: RoundSpec, algorithm: FedAvg, assignment: Assignment, examples: Examples) -> None:
    """Traces a round of a run, client by client, without computing anything, to find mismatched shapes and types.

    Raises:
        UserError: a network or a method does not fit the rest.
    """
    layout = spec.layout._replace(client_map=Chunked(1), max_rounds=1, batch_parts=0)
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
    def traced_round(state, slots, algorithm, assignment, examples):
        return _run_round(spec, algorithm, state, slots, assignment, examples)

    def body(index, carry):
        advance = traced_round(carry.state, carry.watched.variables, algorithm, assignment, examples)
        record = jax.tree.map(lambda all, one: all.at[index].set(one), carry.record, advance.record)
        return advance._replace(record=record)

    models = cohorts.no_models(spec, algorithm, state.server)
    shapes = jax.eval_shape(traced_round, state, models, algorithm, assignment, examples)
    max_rounds = spec.layout.max_rounds
    record = jax.tree.map(lambda leaf: jnp.zeros((max_rounds, *leaf.shape), leaf.dtype), shapes.record)
    watched = Watched(zeros_of(shapes.watched.ids), models, state.server.variables)
    advance = jax.lax.fori_loop(0, num_rounds, body, Advance(state, record, watched))
    return measured_by_all(OnDevice(spec, algorithm, assignment, examples), advance, num_rounds)


def _run_round(spec, algorithm, state, slots, assignment, examples):
    return one_round(OnDevice(spec, algorithm, assignment, examples), state, slots)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _with_first_reports(spec, algorithm, state, assignment, examples):
    return survey(OnDevice(spec, algorithm, assignment, examples), state, "start")


class OnDevice(NamedTuple):
    """The clients of a run on its devices: the operations that depend on where clients are stored.

    Used inside compiled code. ``host_rounds.OnHost`` has the same methods for clients on the host or on disk.
    """

    spec: RoundSpec
    algorithm: FedAvg
    assignment: Assignment
    examples: Examples
    listed = None  # the identities of a record's entries; None: all clients

    def cohort(self, state: State, left_out: jax.Array | None) -> Cohort:
        """Returns the cohort of the next round, drawn without the clients [clients] that are left out."""
        given = self.assignment, state.key, state.round, left_out
        return self._with_rows(cohorts.draw(self.spec, self.algorithm, *given))

    def everyone(self, key: Key, left_out: jax.Array | None) -> Iterator[Cohort]:
        """Yields cohorts that together are all clients, whose keys are derived from ``key``."""
        sizes, order = self.assignment.ownership.sizes, self.assignment.order
        order = cohorts.everyone(sizes, self.spec.layout.client_map) if order is None else order
        yield self._with_rows(cohorts.stack(self.algorithm, cohorts.without(order, left_out), sizes, key, None))

    def gather(self, states: ClientState, cohort: Cohort) -> ClientState:
        """Returns the states of a cohort, stacked; arbitrary for clients that only pad it."""
        return _rows_of(states, cohort.drawn) if self.assignment.order is None else states

    def scatter(self, states: ClientState, ids: jax.Array, new: ClientState) -> ClientState:
        """Returns the states of all clients after a cohort's have changed."""
        new = self._put(states, ids, new) if self.assignment.order is None else new
        return self.spec.layout.client_map.keep_sharded(new)

    def change_all(self, states: ClientState, change: Callable[[ClientState], ClientState]) -> ClientState:
        """Returns the states after a change of all clients' states, by identity."""
        count, order = len(self.assignment.ownership.sizes), self.assignment.order
        new = change(by_identity(states, count, order))
        if order is None:
            new = jax.tree.map(lambda leaf, own: leaf.at[:count].set(own), states, new)
        else:
            new = jax.tree.map(lambda own: own.at[order].get(mode="clip"), new)
        return self.spec.layout.client_map.keep_sharded(new)

    def spread(self, ids: jax.Array, values: PyTree, absent: float) -> PyTree:
        """Returns a cohort's values as entries of a record, ``absent`` for clients that are not in the cohort."""
        count = len(self.assignment.ownership.sizes)
        return self._put(jax.tree.map(lambda leaf: jnp.full(count, absent, leaf.dtype), values), ids, values)

    def repeat(self, attempt: Attempt) -> tuple[jax.Array | None, jax.Array, PyTree, PyTree]:
        """Repeats an attempt that ends with a pair: values of any kind, and values by client of its cohort.

        Returns the clients left out [clients], or None; the identities of the cohort, and the pair.
        """
        repeat = skipping.repeat if self.spec.skips else skipping.once
        left_out, ids, rest = repeat(attempt, len(self.assignment.ownership.sizes))
        return left_out, ids, *rest

    def call(self, function: Callable, *arguments):
        """Returns the value of a function of arrays on the devices."""
        return function(*arguments)

    def _with_rows(self, drawn):
        return Cohort(drawn, _rows_of(self.assignment.ownership.rows, drawn), self.examples)

    def _put(self, stored, ids, new):
        count = len(self.assignment.ownership.sizes)
        positions = jnp.where(ids < count, ids, np.iinfo(np.int32).max)  # padding clients are dropped
        return jax.tree.map(lambda leaf, own: leaf.at[positions].set(own, mode="drop"), stored, new)


def _rows_of(stored, drawn):
    return jax.tree.map(lambda leaf: leaf.at[drawn.id].get(mode="clip"), stored)


def one_round(store: OnDevice, state: State, slots: Variables | None) -> Advance:
    """Draws a cohort from the store, trains it, aggregates its uploads, and records the results.

    ``slots`` are the buffers of ``cohort.train_and_aggregate``.
    """
    spec, algorithm = store.spec, store.algorithm
    dispatches = algorithm.having("dispatch")

    def attempt(left_out):
        cohort = store.cohort(state, left_out)
        current = state.server if left_out is None else jax.tree.map(jnp.copy, state.server)  # it may be donated
        given = current, store.gather(state.clients, cohort), state.round, state.key, cohort, slots
        new, result = store.call(cohorts.train_and_aggregate, spec, algorithm, *given)
        of_clients = result.states, result.metrics, result.steps, cohort.drawn.is_counted if dispatches else ()
        return cohort.drawn.id, result.metrics.get(SKIPPED), ((new, result.watched), of_clients)

    left_out, ids, (new, watched), (states, metrics, steps, is_counted) = store.repeat(attempt)
    states = store.scatter(state.clients, ids, states)
    record = RoundRecord(store.spread(ids, metrics, np.nan), store.spread(ids, steps, 0), store.listed)
    if dispatches:
        arrived = store.spread(ids, is_counted, False)

        def dispatch(states):
            return store.call(server.dispatch, algorithm, new, states, arrived, state.round, state.key)

        states = store.change_all(states, dispatch)
    return Advance(State(new, states, state.key, state.round + 1), record.with_skipped(left_out), watched)


def survey(store: OnDevice, state: State, when: str) -> tuple[State, jax.Array | None]:
    """Returns the state after all clients have measured the model, and the clients [clients] left out, or None.

    ``when``: before the first round (``start``), or after the last one, before an ``evaluation``.
    """
    last = 0 if when == "start" else state.round - 1
    if when == "start":
        key = Stream.FIRST_REPORTS.key(state.key)
    else:
        key = Stream.CLIENTS.key(jax.random.fold_in(state.key, last))

    def attempt(left_out):
        parts, total = [], None
        for cohort in store.everyone(key, left_out):
            given = state.server, last, store.gather(state.clients, cohort), cohort, when
            reports, diverged = store.call(cohorts.sum_reports, store.spec, store.algorithm, *given)
            total = reports if total is None else jax.tree.map(jnp.add, total, reports)
            jax.block_until_ready(total)  # otherwise the examples of all clients would be sent at once
            parts.append((cohort.drawn.id, diverged))
        ids, diverged = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*to_host(parts), strict=True))
        return ids, diverged, (total, ())

    left_out, _, reports, _ = store.repeat(attempt)
    given = state.server, reports, left_out, when
    return state._replace(server=store.call(cohorts.after_reports, store.spec, store.algorithm, *given)), left_out


def measured_by_all(store: OnDevice, advance: Advance, num_rounds: jax.Array | int) -> Advance:
    """Returns the run after all clients have measured the last model, if a method needs that."""
    if not store.algorithm.having("measure", "evaluation"):
        return advance
    state, left_out = survey(store, advance.state, "evaluation")
    return advance._replace(state=state, record=advance.record.with_skipped(left_out, num_rounds - 1))


def _shapes(spec, algorithm, assignment, examples):
    """Returns the shapes and placements of the arguments of the rounds."""
    client_map = spec.layout.client_map
    algorithm, participation = jax.tree.map(jnp.asarray, (algorithm, assignment.participation))
    assignment = assignment._replace(participation=participation)
    assignment = assignment._replace(order=jax.eval_shape(functools.partial(cohorts.home_order, spec), assignment))
    num_clients = len(assignment.ownership.sizes)
    state = _started(algorithm, spec.model, num_clients)
    stored = num_clients + -num_clients % client_map.num_devices if assignment.order is None else len(assignment.order)
    clients = client_map.shapes(_of_all(state.clients, stored), sharded=True)
    replicated = algorithm, state._replace(clients=()), assignment, examples
    algorithm, state, assignment, examples = client_map.shapes(replicated)
    return algorithm, state._replace(clients=clients), assignment, examples


def _started(algorithm, model, num_clients):
    """Returns the shapes of a state before the first round, with the state of one client."""

    def start(key):
        return State(*server.init(algorithm, model, model.init(key), num_clients), key, jnp.zeros((), jnp.int32))

    return jax.eval_shape(start, jax.random.key(0))


def _of_all(client, num_clients):
    """Returns the shapes of one client's state with an axis over clients."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape), leaf.dtype), client)
