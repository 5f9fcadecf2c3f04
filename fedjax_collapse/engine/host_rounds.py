"""Rounds of a federation that is larger than the device: the host keeps what is stored of all clients.

The host keeps the examples as well where their inputs are a NumPy array. The device then holds the server, one cohort,
and the examples of this cohort and of the next, which are sent while it computes. A round is the one of ``cohort.py``.
"""

import contextlib
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import randomness
from fedjax_collapse.algorithm import FedAvg
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine import skipping
from fedjax_collapse.engine.client_maps import ClientMap, to_host
from fedjax_collapse.engine.cohort import Data
from fedjax_collapse.engine.layout import Rounds
from fedjax_collapse.engine.rounds import Advance, RoundRecord, State
from fedjax_collapse.records import Client, ClientState, Examples, PyTree


def run_rounds(rounds: Rounds, algorithm: FedAvg, state: State, data: Data, num_rounds: jax.Array | int) -> Advance:
    """What ``rounds.run_rounds`` returns, with client states and records as NumPy arrays.

    ``num_rounds``: at least 1. ``data.ownership``: best as NumPy arrays, else it is read from the device in every call.
    ``state`` is donated: client states in NumPy arrays are changed in place, unless they are read-only.
    """
    num_rounds, num_clients, client_map = int(num_rounds), len(data.ownership.sizes), rounds.layout.client_map
    current, key, round = client_map.replicate((state.server, state.key, state.round))
    states = jax.tree.map(functools.partial(_writable, num_clients), state.clients)
    records = []
    with _compiled_or_not(client_map):
        host = _Host.of(rounds, data)
        # all cohorts are drawn before the first round: the device works in order, so that the host would wait for it
        drawn = [_draw(rounds, algorithm, host.placed, key, round + index) for index in range(num_rounds)]
        sent = host.send(drawn[0])
        for index in range(num_rounds):
            if rounds.skips_clients:
                when = key, round + index, sent
                left_out, ids, (current, result) = _run_skipping(rounds, algorithm, current, states, host, when)
            else:
                ids, (current, result) = _run_cohort(rounds, algorithm, current, states, round + index, sent)
            if index + 1 < num_rounds:
                sent = host.send(drawn[index + 1])
            _store(states, ids, to_host(result.states))
            records.append(_record(ids, num_clients, *to_host((result.metrics, result.steps))))
            if rounds.skips_clients:
                records[-1].metrics[skipping.SKIPPED][left_out] = 1
        if algorithm.measuring(by_all=True):
            last = round + num_rounds - 1
            report = functools.partial(_measure, rounds, algorithm, current, last)
            keys = randomness.clients_key(jax.random.fold_in(key, last))
            left_out, reports = _reports_of_all(rounds, algorithm, host, keys, states, report)
            current = _end_with(rounds, algorithm, current, reports, left_out)
            if rounds.skips_clients:
                records[-1].metrics[skipping.SKIPPED][left_out] = 1
    record = jax.tree.map(functools.partial(_stack, rounds.layout.max_rounds), *records)
    return Advance(State(current, states, key, round + num_rounds), record, result.watched)


def with_first_reports(rounds: Rounds, algorithm: FedAvg, state: State, data: Data) -> tuple[State, np.ndarray]:
    """What ``rounds.with_first_reports`` returns; reports are added up, of as many clients at once as a cohort has."""
    client_map = rounds.layout.client_map
    if not algorithm.starting:
        return state, np.zeros(len(data.ownership.sizes), bool)
    current, key = client_map.replicate((state.server, state.key))
    states = jax.tree.map(np.asarray, state.clients)
    with _compiled_or_not(client_map):
        report = functools.partial(_first_reports, rounds, algorithm, current)
        left_out, total = _reports_of_all(rounds, algorithm, _Host.of(rounds, data), key, states, report)
        return state._replace(server=_start_with(rounds, algorithm, current, total, left_out)), left_out


def _reports_of_all(rounds, algorithm, host, key, states, report):
    """Whose reports were left out [clients], and the sum of the others', of all clients with keys made of that one."""
    num_clients, client_map = len(host.sizes), rounds.layout.client_map
    nobody = np.zeros(num_clients, bool)

    def attempt(left_out):
        blocks, total = [], None
        for cohort in _everyone(num_clients, rounds.layout.cohort_size):
            clients, part = host.send(_arranged(rounds, algorithm, host.placed, key, cohort, left_out))
            ids = np.asarray(clients.id)
            reports, wrong = report(client_map.shard(_gather(states, ids)), (clients, part))
            total = reports if total is None else jax.tree.map(jnp.add, total, reports)
            jax.block_until_ready(total)  # or the examples of all clients would be sent at once
            blocks.append((ids, to_host(wrong) > 0 if rounds.skips_clients else ()))
        return *map(np.concatenate, zip(*blocks, strict=True)), total

    if rounds.skips_clients:
        left_out, _, total = skipping.without_failed_on_host(attempt, num_clients)
        return left_out, total
    return nobody, attempt(nobody)[2]


class _Host(NamedTuple):
    """What cohorts are drawn and sent from; on the host as far as it may be too much for the device."""

    examples: Examples
    rows: np.ndarray  # [clients, capacity]
    sizes: np.ndarray  # [clients]
    placed: Data  # on the device: without examples and rows
    num_sent: int  # the most examples that a cohort can own; as many are always sent, so that nothing is recompiled
    client_map: ClientMap

    @classmethod
    def of(cls, rounds: Rounds, data: Data) -> "_Host":
        rows, sizes = map(np.asarray, data.ownership)
        num_sent, client_map = int(np.sort(sizes)[-rounds.layout.cohort_size :].sum()), rounds.layout.client_map
        examples = data.examples
        if not isinstance(examples.inputs, np.ndarray):
            examples = client_map.replicate(examples)
        placed = client_map.replicate(data._replace(examples=(), ownership=data.ownership._replace(rows=())))
        return cls(examples, rows, sizes, placed, num_sent, client_map)

    def send(self, clients: Client) -> tuple[Client, Examples]:
        """The clients with their rows, and the examples that these are rows of, on their way to the device."""
        ids, client_map, examples = np.asarray(clients.id), self.client_map, self.examples
        rows = self.rows.take(ids, axis=0, mode="clip")
        if not isinstance(examples.inputs, np.ndarray):
            return clients._replace(rows=client_map.shard(rows)), examples
        sizes = np.where(ids < len(self.sizes), self.sizes.take(ids, mode="clip"), 0)
        is_owned = np.arange(rows.shape[1]) < sizes[:, None]
        identities = np.zeros(self.num_sent, rows.dtype)
        identities[: sizes.sum()] = rows[is_owned]
        rows = np.zeros_like(rows)
        rows[is_owned] = np.arange(sizes.sum())
        inputs, labels = (array[identities] for array in examples[:2])
        part = client_map.replicate(examples._replace(inputs=inputs, labels=labels, identities=identities))
        return clients._replace(rows=client_map.shard(rows)), part


def _run_cohort(rounds, algorithm, current, states, round, sent):
    """The cohort's identities, the new server and what the clients leave."""
    clients, part = sent
    ids = np.asarray(clients.id)
    of_cohort = rounds.layout.client_map.shard(_gather(states, ids))
    return ids, _run_round(rounds, algorithm, current, of_cohort, (round, clients, part))


def _run_skipping(rounds, algorithm, current, states, host, when):
    """``_run_cohort`` without the clients that diverge, who they are before it."""
    key, round, first = when

    def attempt(left_out):
        start = jax.tree.map(jnp.copy, current)  # it is donated
        sent = first
        if left_out.any():
            sent = host.send(_draw(rounds, algorithm, host.placed, key, round, left_out))
        ids, (new, result) = _run_cohort(rounds, algorithm, start, states, round, sent)
        return ids, to_host(result.metrics[skipping.SKIPPED]) > 0, (new, result)

    return skipping.without_failed_on_host(attempt, len(host.sizes))


@functools.partial(jax.jit, static_argnums=0)
def _arranged(rounds, algorithm, data, key, cohort, left_out):
    """Some of all clients that are not left out, in the layout's order and padded, as stacked clients without rows and
    states; their weights are those among all."""
    sizes = data.ownership.sizes
    cohort = cohorts.arrange(cohorts.without(cohort, left_out), sizes, rounds.layout.client_map)
    clients = cohorts.stack(algorithm, cohort, sizes, key, None)
    among_all = cohorts.stack(algorithm, cohorts.without(jnp.arange(len(sizes)), left_out), sizes, key, None)
    return clients._replace(weight=among_all.weight.at[cohort].get(mode="fill", fill_value=0))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _run_round(rounds, algorithm, current, states, cohort):
    round, clients, examples = cohort
    start = cohorts.Start(current, round, cohorts.no_models(rounds, current))
    return cohorts.run(rounds, algorithm, start, clients._replace(state=states), examples)


@functools.partial(jax.jit, static_argnums=0)
def _first_reports(rounds, algorithm, current, states, cohort):
    clients, examples = cohort
    return cohorts.first_reports(rounds, algorithm, current, clients._replace(state=states), examples)


@functools.partial(jax.jit, static_argnums=0)
def _measure(rounds, algorithm, current, round, states, cohort):
    clients, examples = cohort
    clients = clients._replace(state=states)
    return cohorts.measured_by_all(rounds, algorithm, current, round, clients, examples)


_draw = jax.jit(cohorts.draw, static_argnums=0)
_start_with = jax.jit(cohorts.start_with, static_argnums=0)
_end_with = jax.jit(cohorts.end_with, static_argnums=0)


def _compiled_or_not(client_map: ClientMap):
    return contextlib.nullcontext() if client_map.is_compiled else jax.disable_jit()


def _everyone(num_clients, cohort_size):
    """Identities [blocks, cohort_size] of all clients; those of padding are behind the last client's."""
    padded = num_clients + -num_clients % cohort_size
    return np.minimum(np.arange(padded, dtype=np.int32), num_clients).reshape(-1, cohort_size)


def _writable(num_clients, leaf):
    """The stored states without padding, in an array on the host that can be changed."""
    leaf = np.asarray(leaf)[:num_clients]
    return leaf if leaf.flags.writeable else leaf.copy()


def _gather(states: ClientState, ids: np.ndarray) -> ClientState:
    """The cohort's states; those of clients that only pad it are some client's, and ignored."""
    return jax.tree.map(lambda leaf: leaf.take(ids, axis=0, mode="clip"), states)


def _store(states: ClientState, ids: np.ndarray, new: ClientState) -> None:
    def store(stored, new):
        is_real = ids < len(stored)
        stored[ids[is_real]] = new[is_real]

    jax.tree.map(store, states, new)


def _record(ids: np.ndarray, num_clients: int, metrics: dict[str, np.ndarray], steps: np.ndarray) -> RoundRecord:
    def spread(values, absent):
        everyone = np.full(num_clients, absent, values.dtype)
        _store(everyone, ids, values)
        return everyone

    return RoundRecord(jax.tree.map(lambda m: spread(m, np.nan), metrics), spread(steps, 0))


def _stack(max_rounds: int, *rounds: PyTree) -> np.ndarray:
    """The rounds' values on a leading axis, which is as long as the longest call's."""
    stacked = np.zeros((max_rounds, *np.shape(rounds[0])), np.asarray(rounds[0]).dtype)
    stacked[: len(rounds)] = rounds
    return stacked
