"""Rounds of a federation that is larger than the device, or than memory: client states stay on the host.

The examples stay there too if their inputs are a NumPy array, or on disk if it is memory-mapped. The device then holds
the server, one cohort, and the examples of this cohort and of the next two, which a thread reads, pads and sends while
the device computes. Each of several devices only receives the examples of the clients that it trains, and each process
only reads the examples of its devices' clients. ``cohort.py`` has the round.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import ClientState, Drawn, Examples, Key, PyTree, UserError
from fedjax_collapse.data.store import Store
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine import rounds, skipping
from fedjax_collapse.engine.client_states import StoredStates
from fedjax_collapse.engine.cohort import Assignment, Cohort
from fedjax_collapse.engine.layout import RoundSpec
from fedjax_collapse.engine.participation import Participation
from fedjax_collapse.engine.placement import to_host
from fedjax_collapse.engine.rounds import Advance, State
from fedjax_collapse.engine.samplers import HostUniform
from fedjax_collapse.engine.skipping import Attempt
from fedjax_collapse.training import server
from fedjax_collapse.training.algorithm import FedAvg

_AHEAD = 2  # cohorts that are sent before their round; the rows of one more are read ahead from a disk
_ROOM = 1.25  # of the mean number of examples of a cohort, for the first of the sizes that are compiled


def run_rounds(
    spec: RoundSpec,
    algorithm: FedAvg,
    state: State,
    assignment: Assignment,
    examples: Examples,
    num_rounds: jax.Array | int,
    store: "OnHost | None" = None,
) -> Advance:
    """Returns what ``rounds.run_rounds`` returns, with client states and records as NumPy arrays.

    Args:
        spec: the static description of the rounds.
        algorithm: the algorithm.
        state: donated; client states in NumPy arrays are changed in place, unless they are read-only, and so are those
            in files (``StoredStates``).
        assignment: preferably with NumPy arrays in ``ownership``, which are otherwise read from the device in every
            call.
        examples: the examples.
        num_rounds: at least 1.
        store: of the same ``spec``, algorithm, assignment and examples, which also sends cohorts of the rounds after
            this call; by default only those of this call are sent.
    """
    state = _placed(spec, state, assignment)
    records, num_rounds = [], int(num_rounds)
    with rounds.compiled_or_not(spec):
        ahead = 0 if store is None else _AHEAD + 1
        store = store or OnHost(spec, algorithm, assignment, examples)
        store.round = int(state.round)
        # all cohorts are drawn before the first round: the device works in order, so that the host would wait for it
        store.draw(state.key, store.round + num_rounds + ahead)
        for _ in range(num_rounds):
            advance = rounds.one_round(store, state, None)
            records.append(advance.record)
            state, store.round = advance.state, store.round + 1
        record = jax.tree.map(functools.partial(_stack, spec.layout.max_rounds), *records)
        advance = rounds.measured_by_all(store, advance._replace(record=record), num_rounds)
    return advance._replace(watched=advance.watched.collected(spec))


def with_first_reports(
    spec: RoundSpec, algorithm: FedAvg, state: State, assignment: Assignment, examples: Examples
) -> tuple[State, np.ndarray | None]:
    """Returns what ``rounds.with_first_reports`` returns, from reports of as many clients at once as a cohort has."""
    if not algorithm.having("measure", "start"):
        return state, None
    with rounds.compiled_or_not(spec):
        store = OnHost(spec, algorithm, assignment, examples)
        return rounds.survey(store, _placed(spec, state, assignment), "start")


def _placed(spec, state, assignment):
    """Returns the state where rounds expect it; client states in writable arrays on the host, or in files."""
    states = state.clients
    if not isinstance(states, StoredStates):
        states = jax.tree.map(functools.partial(_writable, len(assignment.ownership.sizes)), states)
    return spec.layout.client_map.replicate(state._replace(clients=()))._replace(clients=states)


class OnHost:
    """The clients of a run on the host or on disk, with the methods of ``rounds.OnDevice``; states change in place.

    Cohorts are sent ahead of their rounds, in a thread.

    Args:
        spec: the static description of the rounds.
        algorithm: the algorithm.
        assignment: see ``run_rounds``.
        examples: the examples.
    """

    def __init__(self, spec: RoundSpec, algorithm: FedAvg, assignment: Assignment, examples: Examples):
        ownership, client_map = assignment.ownership, spec.layout.client_map
        self.spec, self.algorithm, self.client_map = spec, algorithm, client_map
        self.sizes = np.asarray(ownership.sizes)
        cohort_size, at_once = spec.layout.cohort_size, client_map.clients_at_once
        on_each = min(cohort_size, -(-cohort_size // at_once) * at_once // client_map.num_devices)
        # the most examples that the clients of a device can own, and how many are always sent, so that nothing is
        # recompiled: the same, or of a store more than they typically own
        self._most = self._least = int(np.partition(self.sizes, -on_each)[-on_each:].sum())
        self._rows, self.is_on_disk = ownership.rows, isinstance(ownership.rows, Store)
        if self.is_on_disk:
            self._least = min(self._most, _power_of_two(int(_ROOM * on_each * self.sizes.mean())))
        else:
            self._rows = np.asarray(self._rows)  # [clients, capacity]
        self._examples = examples if isinstance(examples.inputs, np.ndarray) else client_map.replicate(examples)
        self._placed = client_map.replicate(assignment._replace(ownership=ownership._replace(rows=())))
        self.round, self.listed = 0, None  # number of rounds done, and identities of a record's entries, None: all
        self._thread = futures.ThreadPoolExecutor(1, "cohorts")
        self._drawn: dict[int, Drawn] = {}
        self._sent: dict[int, futures.Future] = {}

    def draw(self, key: Key, end: int) -> None:
        """Draws the cohorts of the rounds up to ``end``, unless they are drawn already."""
        for round in range(self.round, end):
            if round not in self._drawn and round not in self._sent:
                self._drawn[round] = _drawn(self.spec, self.algorithm, self._placed, key, round)

    def take(self, round: int) -> Cohort:
        """Returns the cohort of a round, and starts to send the cohorts of the next rounds that are drawn.

        Raises:
            UserError: the examples cannot be read.
        """
        for ahead in range(round, round + _AHEAD + 1):
            if ahead in self._drawn:
                self._sent[ahead] = self._thread.submit(self._send, self._drawn.pop(ahead))
        if (later := self._drawn.get(round + _AHEAD + 1)) is not None:
            self._thread.submit(self.advise, later)
        return self._sent.pop(round).result()

    def _send(self, drawn):
        try:
            return self.send(drawn)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"data: the examples of a cohort cannot be read ({reason}); restore the store") from error

    def cohort(self, state: State, left_out: np.ndarray | None) -> Cohort:
        if left_out is not None and left_out.any():
            given = self._placed, state.key, state.round, left_out
            return self.send(_drawn(self.spec, self.algorithm, *given))
        cohort = self.take(self.round)
        if self.is_on_disk:
            self.listed = np.sort(np.asarray(cohort.drawn.id))[: self.spec.layout.cohort_size]
        return cohort

    def everyone(self, key: Key, left_out: np.ndarray | None) -> Iterator[Cohort]:
        for ids in _everyone(len(self.sizes), self.spec.layout.cohort_size):
            yield self.send(_arranged(self.spec, self.algorithm, self._placed, key, ids, left_out))

    def gather(self, states: ClientState | StoredStates, cohort: Cohort) -> ClientState:
        ids = np.asarray(cohort.drawn.id)
        if isinstance(states, StoredStates):
            states = states.take(ids)
        else:
            states = jax.tree.map(lambda leaf: leaf.take(ids, axis=0, mode="clip"), states)
        return self.client_map.shard(states)

    def scatter(self, states: ClientState | StoredStates, ids: np.ndarray, new: ClientState):
        if not isinstance(states, StoredStates):
            return _put(states, ids, new)
        states.put(self.round, ids, new)
        return states

    def change_all(self, states: ClientState, change: Callable[[ClientState], ClientState]) -> ClientState:
        return _put(states, ..., to_host(change(states)))

    def spread(self, ids: np.ndarray, values: PyTree, absent: float) -> PyTree:
        places = ids if self.listed is None else np.searchsorted(self.listed, ids)
        count = len(self.sizes if self.listed is None else self.listed)
        return _put(jax.tree.map(lambda leaf: np.full(count, absent, leaf.dtype), values), places, values)

    def repeat(self, attempt: Attempt) -> tuple[np.ndarray | None, np.ndarray, PyTree, PyTree]:
        repeat = skipping.repeat_on_host if self.spec.skips else skipping.once
        left_out, ids, (rest, of_clients) = repeat(attempt, len(self.sizes))
        is_real = np.asarray(ids) < len(self.sizes)
        return left_out, np.asarray(ids)[is_real], rest, jax.tree.map(lambda leaf: leaf[is_real], to_host(of_clients))

    def call(self, function: Callable, *arguments):
        return _COMPILED[function](*arguments)

    def send(self, drawn: Drawn) -> Cohort:
        """Sends the clients' rows, and the examples that these refer to, to the clients' devices."""
        ids, client_map, examples = np.asarray(drawn.id), self.client_map, self._examples
        if not isinstance(examples.inputs, np.ndarray):
            return Cohort(drawn, client_map.shard(self._rows.take(ids, axis=0, mode="clip")), examples)
        sizes = np.where(ids < len(self.sizes), self.sizes.take(ids, mode="clip"), 0)
        is_owned = np.arange(self._rows.shape[1]) < sizes[:, None]
        counts = sizes.reshape(client_map.num_devices, -1).sum(axis=1)  # of each device
        rows = np.zeros(is_owned.shape, self._rows.dtype)
        rows[is_owned] = np.concatenate([np.arange(count) for count in counts])
        room = max(self._least, min(self._most, _power_of_two(int(counts.max()))))
        by_device = self._by_device(ids)
        owned = [self._owned(own) for own in by_device]
        identities, inputs, labels = (self._padded(array, owned, room) for array in (None, *examples[:2]))
        for place, own in enumerate(by_device if self.is_on_disk else ()):
            part = slice(place * room, (place + 1) * room)
            self._rows.verify(own, (inputs[part], labels[part]))
        constants = client_map.replicate(examples._replace(inputs=(), labels=()))
        sent, inputs, labels, identities = client_map.shard((rows, inputs, labels, identities))
        return Cohort(drawn, sent, constants._replace(inputs=inputs, labels=labels, identities=identities))

    def _by_device(self, ids):
        """Returns the clients of each device, one array after another; none for devices of other processes."""
        of_device = np.split(ids, self.client_map.num_devices)
        is_own = [device.process_index == jax.process_index() for device in self.client_map.devices]
        return [own if here else own[:0] for own, here in zip(of_device, is_own, strict=True)]

    def _owned(self, ids):
        """Returns the rows of some clients among all examples, one client after another."""
        if self.is_on_disk:
            return self._rows.rows(ids)[0]
        sizes = np.where(ids < len(self.sizes), self.sizes.take(ids, mode="clip"), 0)
        return self._rows.take(ids, axis=0, mode="clip")[np.arange(self._rows.shape[1]) < sizes[:, None]]

    def _padded(self, array, owned, room):
        """Returns the rows of an array, or of None their numbers, that each device owns, each padded to ``room``."""
        shape, dtype = ((), self._rows.dtype) if array is None else (array.shape[1:], array.dtype)
        padded = np.zeros((len(owned), room, *shape), dtype)
        for part, rows in zip(padded, owned, strict=True):
            if array is None:
                part[: len(rows)] = rows
            else:
                array.take(rows, axis=0, out=part[: len(rows)], mode="clip")  # does not hold the interpreter's lock
        return padded.reshape(-1, *shape)

    def advise(self, drawn: Drawn) -> None:
        """Has the system read the clients' examples ahead, if they are on disk."""
        if self.is_on_disk:
            self._rows.advise(np.concatenate(self._by_device(np.asarray(drawn.id))))


_COMPILED = {
    cohorts.train_and_aggregate: jax.jit(cohorts.train_and_aggregate, static_argnums=0, donate_argnums=(2, 3)),
    cohorts.sum_reports: jax.jit(cohorts.sum_reports, static_argnums=(0, 6)),
    cohorts.after_reports: jax.jit(cohorts.after_reports, static_argnums=(0, 5)),
    server.dispatch: jax.jit(server.dispatch),
}


def _put(stored, places, new):
    for leaf, own in zip(*map(jax.tree.leaves, (stored, new)), strict=True):
        leaf[places] = own
    return stored


def _power_of_two(count):
    return 1 << max(0, count - 1).bit_length()


def _drawn(spec, algorithm, assignment, key, round, left_out=None):
    """Returns the cohort of a round; drawn on the host if the sampler is for that."""
    rule, num_clients, cohort = assignment.participation, len(assignment.ownership.sizes), None
    if isinstance(rule.sampler, HostUniform) and type(rule).draw is Participation.draw:
        words = to_host(_key_of_cohort(key, round))
        cohort = rule.sampler.draw_on_host(words, num_clients, spec.layout.cohort_size)
    return _draw(spec, algorithm, assignment, key, round, left_out, cohort)


@jax.jit
def _key_of_cohort(key, round):
    return jax.random.key_data(Stream.COHORT.key(jax.random.fold_in(key, round)))


_draw = jax.jit(cohorts.draw, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _arranged(spec, algorithm, assignment, key, cohort, left_out):
    """Returns some of all clients, without those left out, in the layout's order, weighted as among all clients."""
    sizes = assignment.ownership.sizes
    cohort = cohorts.arrange(cohorts.without(cohort, left_out), sizes, spec.layout.client_map)
    drawn = cohorts.stack(algorithm, cohort, sizes, key, None)
    among_all = cohorts.stack(algorithm, cohorts.without(jnp.arange(len(sizes)), left_out), sizes, key, None)
    return drawn.replace(weight=among_all.weight.at[cohort].get(mode="fill", fill_value=0))


def _everyone(num_clients, cohort_size):
    """Returns the identities of all clients [blocks, cohort_size]; the identity of padding is the number of clients."""
    padded = num_clients + -num_clients % cohort_size
    return np.minimum(np.arange(padded, dtype=np.int32), num_clients).reshape(-1, cohort_size)


def _writable(num_clients, leaf):
    """Returns the stored states without padding, in a writable array on the host."""
    leaf = np.asarray(leaf)[:num_clients]
    return leaf if leaf.flags.writeable else leaf.copy()


def _stack(max_rounds: int, *rounds: PyTree) -> np.ndarray:
    """Stacks the rounds' values on a leading axis of length ``max_rounds``."""
    stacked = np.zeros((max_rounds, *np.shape(rounds[0])), np.asarray(rounds[0]).dtype)
    stacked[: len(rounds)] = rounds
    return stacked
