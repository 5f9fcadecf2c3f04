"""Rounds of a federation that is larger than the device: the host keeps what is stored of all clients.

The host keeps the examples as well where their images are a NumPy array. The device then holds the server, one cohort,
and the examples of this cohort and of the next, which are sent while it computes. The numbers are those of
``rounds.py``.
"""

import contextlib
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.engine.layout import Layout
from fedjax_collapse.engine.rounds import RoundRecord, State
from fedjax_collapse.records import Client, ClientState, Examples, Model, Ownership, PyTree, Variables


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
    """What ``rounds.run_rounds`` returns, with client states and records as NumPy arrays.

    ``num_rounds``: at least 1. ``ownership``: best as NumPy arrays, else it is read from the device in every call.
    ``state`` is donated: client states in NumPy arrays are changed in place, unless they are read-only.
    """
    num_rounds, num_clients, client_map = int(num_rounds), len(ownership.sizes), layout.client_map
    server, key, round = client_map.place((state.server, state.key, state.round))
    states = jax.tree.map(functools.partial(_writable, num_clients), state.clients)
    records = []
    with _compiled_or_not(client_map):
        host = _Host.of(examples, ownership, layout)
        # all cohorts are drawn before the first round: the device works in order, so that the host would wait for it
        drawn = [host.draw(algorithm, key, round + index) for index in range(num_rounds)]
        sent = host.send(drawn[0])
        for index in range(num_rounds):
            clients, part = sent
            ids = np.asarray(clients.id)
            of_cohort = client_map.deal(_gather(states, ids))
            server, outcome = _run_round(
                algorithm, server, of_cohort, round + index, clients, part, num_clients, model=model, layout=layout
            )
            if index + 1 < num_rounds:
                sent = host.send(drawn[index + 1])
            _store(states, ids, jax.device_get(outcome.states))
            records.append(_record(ids, num_clients, *jax.device_get((outcome.metrics, outcome.steps))))
    record = jax.tree.map(functools.partial(_stack, layout.max_rounds), *records)
    return State(server, states, key, round + num_rounds), record, outcome.watched


def start(
    algorithm: Algorithm, state: State, examples: Examples, ownership: Ownership, *, model: Model, layout: Layout
) -> State:
    """What ``rounds.start`` returns: the reports of all clients are added up, as many at a time as a cohort has."""
    if not any(regularizer.starts_with_report() for regularizer in algorithm.regularizers.values()):
        return state
    server, key = layout.client_map.place((state.server, state.key))
    states, total = jax.tree.map(np.asarray, state.clients), None
    with _compiled_or_not(layout.client_map):
        host = _Host.of(examples, ownership, layout)
        for cohort in _everyone(len(ownership.sizes), layout.cohort_size):
            clients, part = host.send(_arranged(algorithm, cohort, host.placed_sizes, key, layout=layout))
            of_cohort = layout.client_map.deal(_gather(states, np.asarray(clients.id)))
            reports = _first_reports(algorithm, server, of_cohort, clients, part, model=model, layout=layout)
            total = reports if total is None else jax.tree.map(jnp.add, total, reports)
            jax.block_until_ready(total)  # or the examples of all clients would be sent at once
        return state._replace(server=_start(algorithm, server, total))


class _Host(NamedTuple):
    """What cohorts are drawn and sent from; on the host as far as it may be too much for the device."""

    examples: Examples
    rows: np.ndarray  # [clients, capacity]
    sizes: np.ndarray  # [clients]
    placed_sizes: jax.Array  # the same on the device
    num_sent: int  # the most examples that a cohort can own; as many are always sent, so that nothing is recompiled
    layout: Layout

    @classmethod
    def of(cls, examples: Examples, ownership: Ownership, layout: Layout) -> "_Host":
        rows, sizes = map(np.asarray, ownership)
        num_sent = int(np.sort(sizes)[-layout.cohort_size :].sum())
        if not isinstance(examples.images, np.ndarray):
            examples = layout.client_map.place(examples)
        return cls(examples, rows, sizes, layout.client_map.place(ownership.sizes), num_sent, layout)

    def draw(self, algorithm, key, round) -> Client:
        return _draw(algorithm, key, round, self.placed_sizes, layout=self.layout)

    def send(self, clients: Client) -> tuple[Client, Examples]:
        """The clients with their rows, and the examples that these are rows of, on their way to the device."""
        ids, client_map = np.asarray(clients.id), self.layout.client_map
        rows = self.rows.take(ids, axis=0, mode="clip")
        if not isinstance(self.examples.images, np.ndarray):
            return clients._replace(rows=client_map.deal(rows)), self.examples
        sizes = np.where(ids < len(self.sizes), self.sizes.take(ids, mode="clip"), 0)
        is_owned = np.arange(rows.shape[1]) < sizes[:, None]
        identities = np.zeros(self.num_sent, rows.dtype)
        identities[: sizes.sum()] = rows[is_owned]
        rows = np.zeros_like(rows)
        rows[is_owned] = np.arange(sizes.sum())
        images, labels = (array[identities] for array in self.examples[:2])
        part = self.examples._replace(images=images, labels=labels, identities=identities)
        return clients._replace(rows=client_map.deal(rows)), client_map.place(part)


@functools.partial(jax.jit, static_argnames="layout")
def _draw(algorithm, key, round, sizes, *, layout):
    cohort = cohorts.draw(key, round, len(sizes), layout.cohort_size)
    return _arranged(algorithm, cohort, sizes, cohorts.round_key(key, round), layout=layout)


@functools.partial(jax.jit, static_argnames="layout")
def _arranged(algorithm, cohort, sizes, key, *, layout):
    """The cohort in the layout's order and padded, as stacked clients without rows and states."""
    return cohorts.stack(algorithm, cohorts.arrange(cohort, sizes, layout.client_map), (), (), sizes, key)


@functools.partial(jax.jit, static_argnames=("model", "layout"), donate_argnames=("server", "states"))
def _run_round(algorithm, server, states, round, clients, examples, num_clients, *, model, layout):
    clients = clients._replace(state=states)
    return cohorts.run(algorithm, server, round, clients, examples, num_clients, model=model, layout=layout)


@functools.partial(jax.jit, static_argnames=("model", "layout"))
def _first_reports(algorithm, server, states, clients, examples, *, model, layout):
    clients = clients._replace(state=states)
    return cohorts.first_reports(algorithm, server, clients, examples, model=model, layout=layout)


_start = jax.jit(base.start)


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

    return RoundRecord(jax.tree.map(lambda m: spread(m, np.nan), metrics), spread(steps, 0), ids.min())


def _stack(max_rounds: int, *rounds: PyTree) -> np.ndarray:
    """The rounds' values on a leading axis, which is as long as the longest call's."""
    stacked = np.zeros((max_rounds, *np.shape(rounds[0])), np.asarray(rounds[0]).dtype)
    stacked[: len(rounds)] = rounds
    return stacked
