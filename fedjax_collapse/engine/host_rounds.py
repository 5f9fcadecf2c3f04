"""Rounds of a federation that is larger than the device: client states stay on the host.

The examples stay there too if their inputs are a NumPy array. The device then holds the server, one cohort, and the
examples of this cohort and of the next, which are sent while it computes. A round is the one of ``cohort.py``.
"""

import contextlib
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import ClientState, Drawn, Examples, PyTree
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.engine.cohort import CohortResult, Data
from fedjax_collapse.engine.layout import Rounds
from fedjax_collapse.engine.placement import to_host
from fedjax_collapse.engine.rounds import Advance, RoundRecord, State
from fedjax_collapse.engine.skipping import SKIPPED
from fedjax_collapse.training import server
from fedjax_collapse.training.algorithm import FedAvg


def run_rounds(
    rounds: Rounds, algorithm: FedAvg, state: State, data: Data, examples: Examples, num_rounds: jax.Array | int
) -> Advance:
    """Returns what ``rounds.run_rounds`` returns, with client states and records as NumPy arrays.

    Args:
        rounds: what the rounds are compiled for.
        algorithm: the algorithm.
        state: donated; client states in NumPy arrays are changed in place, unless they are read-only.
        data: preferably with NumPy arrays in ``ownership``, which are otherwise read from the device in every call.
        examples: the examples.
        num_rounds: at least 1.
    """
    num_rounds, client_map = int(num_rounds), rounds.layout.client_map
    states = jax.tree.map(functools.partial(_writable, len(data.ownership.sizes)), state.clients)
    state = client_map.replicate(state._replace(clients=()))._replace(clients=states)
    records = []
    with _compiled_or_not(client_map):
        host = _Host.of(rounds, data, examples)
        # all cohorts are drawn before the first round: the device works in order, so that the host would wait for it
        drawn = [_draw(rounds, algorithm, host.placed, state.key, state.round + index) for index in range(num_rounds)]
        sent = host.send(drawn[0])
        for index in range(num_rounds):
            left_out, ids, (new, result, is_counted) = _train_and_aggregate(rounds, algorithm, host, state, sent)
            if index + 1 < num_rounds:
                sent = host.send(drawn[index + 1])
            records.append(_record(states, len(host.sizes), ids, result, left_out))
            if algorithm.having("dispatch"):
                arrived = np.zeros(len(host.sizes), bool)
                arrived[ids[np.asarray(is_counted)]] = True
                made = _dispatch(algorithm, new, states, arrived, state.round, state.key)
                _store_dispatched(states, made)
            state = state._replace(server=new, round=state.round + 1)
        if algorithm.measuring(by_all=True):
            last = state.round - 1
            report = functools.partial(_measure, rounds, algorithm, state.server, last)
            key = Stream.CLIENTS.key(jax.random.fold_in(state.key, last))
            left_out, reports = _reports_of_all(rounds, algorithm, host, key, states, report)
            state = state._replace(server=_end_with(algorithm, state.server, reports, left_out))
            _mark(records[-1], left_out)
    record = jax.tree.map(functools.partial(_stack, rounds.layout.max_rounds), *records)
    return Advance(state, record, result.watched)


def with_first_reports(
    rounds: Rounds, algorithm: FedAvg, state: State, data: Data, examples: Examples
) -> tuple[State, np.ndarray | None]:
    """Returns what ``rounds.with_first_reports`` returns, from reports of as many clients at once as a cohort has."""
    client_map = rounds.layout.client_map
    if not algorithm.starting:
        return state, None
    current, key = client_map.replicate((state.server, state.key))
    states = jax.tree.map(np.asarray, state.clients)
    with _compiled_or_not(client_map):
        host, report = _Host.of(rounds, data, examples), functools.partial(_first_reports, rounds, algorithm, current)
        of_clients = Stream.FIRST_REPORTS.key(key)
        left_out, total = _reports_of_all(rounds, algorithm, host, of_clients, states, report)
        return state._replace(server=_start_with(rounds, algorithm, current, total, left_out)), left_out


def _train_and_aggregate(rounds, algorithm, host, state, first):
    """Returns the clients [clients] that were left out, or None; and the identities, the new server and the result.

    ``first`` is the cohort that was drawn, as it was sent; it is drawn again if clients are left out.
    """

    def attempt(left_out):
        server, cohort = state.server, first
        if left_out is not None:
            server = jax.tree.map(jnp.copy, server)  # it is donated
            if left_out.any():
                cohort = host.send(_draw(rounds, algorithm, host.placed, state.key, state.round, left_out))
        ids = np.asarray(cohort.drawn.id)
        of_cohort = rounds.layout.client_map.shard(_gather(state.clients, ids))
        new, result = _run_round(rounds, algorithm, server, of_cohort, state.round, state.key, cohort)
        return ids, result.metrics.get(SKIPPED), (new, result, cohort.drawn.is_counted)

    return rounds.diverging.repeat_on_host(attempt, len(host.sizes))


def _reports_of_all(rounds, algorithm, host, key, states, report):
    """Returns the clients [clients] whose reports were left out, or None, and the sum of all other clients' reports.

    ``key`` is the key from which the keys of all clients are derived.
    """
    num_clients, client_map = len(host.sizes), rounds.layout.client_map

    def attempt(left_out):
        blocks, total = [], None
        for ids in _everyone(num_clients, rounds.layout.cohort_size):
            cohort = host.send(_arranged(rounds, algorithm, host.placed, key, ids, left_out))
            ids = np.asarray(cohort.drawn.id)
            reports, wrong = report(client_map.shard(_gather(states, ids)), cohort)
            total = reports if total is None else jax.tree.map(jnp.add, total, reports)
            jax.block_until_ready(total)  # otherwise the examples of all clients would be sent at once
            blocks.append((ids, to_host(wrong)))
        return *map(np.concatenate, zip(*blocks, strict=True)), total

    left_out, _, total = rounds.diverging.repeat_on_host(attempt, num_clients)
    return left_out, total


class _Cohort(NamedTuple):
    """A cohort that is being sent to the device."""

    drawn: Drawn
    rows: jax.Array  # [cohort, capacity] of the examples that are sent with it
    examples: Examples


class _Host(NamedTuple):
    """The source of cohorts; on the host as far as it may be too large for the device."""

    examples: Examples
    rows: np.ndarray  # [clients, capacity]
    sizes: np.ndarray  # [clients]
    placed: Data  # on the device, without rows
    num_sent: int  # the most examples that a cohort can own, always sent so that nothing is recompiled
    client_map: ClientMap

    @classmethod
    def of(cls, rounds: Rounds, data: Data, examples: Examples) -> "_Host":
        rows, sizes = map(np.asarray, data.ownership)
        num_sent, client_map = int(np.sort(sizes)[-rounds.layout.cohort_size :].sum()), rounds.layout.client_map
        if not isinstance(examples.inputs, np.ndarray):
            examples = client_map.replicate(examples)
        placed = client_map.replicate(data._replace(ownership=data.ownership._replace(rows=())))
        return cls(examples, rows, sizes, placed, num_sent, client_map)

    def send(self, drawn: Drawn) -> _Cohort:
        """Sends the clients' rows, and the examples that these refer to, to the device."""
        ids, client_map, examples = np.asarray(drawn.id), self.client_map, self.examples
        rows = self.rows.take(ids, axis=0, mode="clip")
        if not isinstance(examples.inputs, np.ndarray):
            return _Cohort(drawn, client_map.shard(rows), examples)
        sizes = np.where(ids < len(self.sizes), self.sizes.take(ids, mode="clip"), 0)
        is_owned = np.arange(rows.shape[1]) < sizes[:, None]
        identities = np.zeros(self.num_sent, rows.dtype)
        identities[: sizes.sum()] = rows[is_owned]
        rows = np.zeros_like(rows)
        rows[is_owned] = np.arange(sizes.sum())
        inputs, labels = (array[identities] for array in examples[:2])
        part = client_map.replicate(examples._replace(inputs=inputs, labels=labels, identities=identities))
        return _Cohort(drawn, client_map.shard(rows), part)


_draw = jax.jit(cohorts.draw, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _arranged(rounds, algorithm, data, key, cohort, left_out):
    """Returns some of all clients, without those left out, in the layout's order, weighted as among all clients."""
    sizes = data.ownership.sizes
    cohort = cohorts.arrange(cohorts.without(cohort, left_out), sizes, rounds.layout.client_map)
    drawn = cohorts.stack(algorithm, cohort, sizes, key, None)
    among_all = cohorts.stack(algorithm, cohorts.without(jnp.arange(len(sizes)), left_out), sizes, key, None)
    return drawn.replace(weight=among_all.weight.at[cohort].get(mode="fill", fill_value=0))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _run_round(rounds, algorithm, server, states, round, key, cohort):
    clients, shared = cohort.drawn.with_data(cohort.rows, states), cohorts.Shared(server, round, cohort.examples, key)
    upload, result = cohorts.train(rounds, algorithm, shared, clients, cohorts.no_models(rounds, algorithm, server))
    return cohorts.aggregate(rounds, algorithm, shared, clients, upload, result)


@functools.partial(jax.jit, static_argnums=0)
def _first_reports(rounds, algorithm, server, states, cohort):
    clients, shared = cohort.drawn.with_data(cohort.rows, states), cohorts.Shared(server, 0, cohort.examples)
    return cohorts.first_reports(rounds, algorithm, shared, clients)


@functools.partial(jax.jit, static_argnums=0)
def _measure(rounds, algorithm, server, round, states, cohort):
    clients, shared = cohort.drawn.with_data(cohort.rows, states), cohorts.Shared(server, round, cohort.examples)
    return cohorts.measured_by_all(rounds, algorithm, shared, clients)


_dispatch = jax.jit(server.dispatch)
_start_with = jax.jit(cohorts.start_with, static_argnums=0)
_end_with = jax.jit(cohorts.end_with)


def _store_dispatched(states, new):
    """Changes the stored states in place."""
    for stored, made in zip(*map(jax.tree.leaves, (states, to_host(new))), strict=True):
        stored[...] = made


def _compiled_or_not(client_map: ClientMap):
    return contextlib.nullcontext() if client_map.is_compiled else jax.disable_jit()


def _everyone(num_clients, cohort_size):
    """Returns the identities of all clients [blocks, cohort_size]; the identity of padding is the number of clients."""
    padded = num_clients + -num_clients % cohort_size
    return np.minimum(np.arange(padded, dtype=np.int32), num_clients).reshape(-1, cohort_size)


def _writable(num_clients, leaf):
    """Returns the stored states without padding, in a writable array on the host."""
    leaf = np.asarray(leaf)[:num_clients]
    return leaf if leaf.flags.writeable else leaf.copy()


def _gather(states: ClientState, ids: np.ndarray) -> ClientState:
    """Returns the cohort's states; for clients that only pad it some client's state, which is ignored."""
    return jax.tree.map(lambda leaf: leaf.take(ids, axis=0, mode="clip"), states)


def _record(
    states: ClientState, num_clients: int, ids: np.ndarray, result: CohortResult, left_out: np.ndarray | None
) -> RoundRecord:
    """Returns the round's record by client, and stores the cohort's new states in ``states``."""
    is_real = ids < num_clients

    def store(stored, new):
        stored[ids[is_real]] = new[is_real]
        return stored

    def spread(values, absent):
        return store(np.full(num_clients, absent, values.dtype), values)

    new, metrics, steps = to_host((result.states, result.metrics, result.steps))
    jax.tree.map(store, states, new)
    record = RoundRecord(jax.tree.map(lambda m: spread(m, np.nan), metrics), spread(steps, 0))
    _mark(record, left_out)
    return record


def _mark(record, left_out):
    """Counts the clients that were left out as skipped."""
    if left_out is not None:
        record.metrics[SKIPPED][left_out] = 1


def _stack(max_rounds: int, *rounds: PyTree) -> np.ndarray:
    """Stacks the rounds' values on a leading axis of length ``max_rounds``."""
    stacked = np.zeros((max_rounds, *np.shape(rounds[0])), np.asarray(rounds[0]).dtype)
    stacked[: len(rounds)] = rounds
    return stacked
