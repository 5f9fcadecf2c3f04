"""The rounds of one run, or of several batched runs, with states and examples on the device or on the host."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_collapse.core.records import Examples, UserError
from fedjax_collapse.data import federation
from fedjax_collapse.data.store import Store
from fedjax_collapse.engine import host_rounds, memory, rounds, together
from fedjax_collapse.engine.client_states import StoredStates
from fedjax_collapse.engine.cohort import Assignment, home_order
from fedjax_collapse.engine.layout import Layout, RoundSpec
from fedjax_collapse.engine.placement import on_one_device, to_host
from fedjax_collapse.engine.rounds import Advance, State
from fedjax_collapse.training.algorithm import FedAvg

STORAGES = ("auto", *federation.STORAGES)
_MIB = 2**20


class Program:
    """Advances runs by rounds. Each run is an algorithm, its state and its assignment; all share the same examples.

    Args:
        spec: the static description of the rounds.
        runs: the runs; more than one needs a ``run_map`` and storage on the device.
        examples: the examples.
        storage: ``device``; ``host``, where client states, and the examples if they are NumPy arrays, stay there and
            the cohort's are sent in every round; ``disk``, the same for examples in a store; ``auto`` is the device,
            unless the examples are NumPy arrays or in a store, or the two do not fit.
        stored: the client states, if they are in files; the runs' states are without them, before and after.

    Raises:
        UserError: the storage cannot hold several runs, or is not where the examples are.
    """

    def __init__(
        self,
        spec: RoundSpec,
        runs: Sequence[tuple[FedAvg, State, Assignment]],
        examples: Examples,
        storage: str = "auto",
        stored: StoredStates | None = None,
    ):
        self._spec, self._runs, self._examples = spec, list(runs), examples
        self._assignment = self._runs[0][2]
        self._state = None  # until it is placed
        self._left_out = []  # by run, the clients whose first reports were left out; until the first rounds
        self.round_bytes = math.nan  # needed on each device by rounds, besides what is stored; NaN if unknown
        self._is_on_disk = isinstance(self._assignment.ownership.rows, Store)
        if storage != "auto" and self._is_on_disk != (storage == "disk"):
            where, choice = ("in", "disk") if self._is_on_disk else ("not in", "host")
            raise UserError(
                f"storage {storage!r}: the examples are {where} a store on disk, choose {choice!r} or 'auto'"
            )
        self._is_on_host = self._chosen(storage)
        self._stored_states = stored
        self._run = rounds.run_rounds
        if self._is_on_host and spec.run_map is not None:
            raise UserError(
                "runs are batched only with storage on the device: choose engine.runs=separate or engine.storage=device"
            )

    def prepare(self) -> str:
        """Places all arrays and compiles, with as many clients at once as fit; returns a line about layout and memory.

        Raises:
            UserError: one client at a time does not fit.
        """
        place = self._on_host if self._is_on_host else self._on_devices
        self._algorithm, self._state, self._assignment = place()
        if self._is_on_host or not self._spec.layout.client_map.is_compiled:
            return f"{self._description}, {self._stored}"
        free = memory.free_bytes(self._spec.devices)
        layout, needed = memory.fit(self._spec.layout, self._round_bytes, free, beside=self._stored)
        self._spec, self.round_bytes = self._with(layout), needed
        return f"{self._description}; on each device {needed / _MIB:.1f} MiB for a round in addition to {self._stored}"

    def advance(self, num_rounds: int) -> list[Advance]:
        """Returns each run after ``num_rounds`` more rounds."""
        advance = jax.block_until_ready(self._run(self._spec, *self._arguments(num_rounds)))
        self._state = advance.state
        if self._stored_states is not None:
            advance = advance._replace(state=self._without_stored(advance.state))
        left_out, self._left_out = self._left_out, [None] * len(self._runs)  # counted in the first round
        return [
            each._replace(record=to_host(each.record).with_skipped(these, 0))
            for each, these in zip(self._each(advance), left_out, strict=True)
        ]

    def states(self) -> list[State]:
        """Returns each run's state in the form of ``rounds.init``: without padding, its clients on the host."""
        states = [state for _, state, _ in self._runs] if self._state is None else self._each(self._state)
        states = states if self._stored_states is None else list(map(self._without_stored, states))
        num_clients = len(self._runs[0][2].ownership.sizes)
        return [rounds.without_padding(state, num_clients, self.order) for state in states]

    @property
    def order(self) -> jax.Array | None:
        """Identities in the order of the client states that ``advance`` returns; None if ascending."""
        return self._assignment.order

    @property
    def stored_bytes(self) -> float:
        """Bytes of examples and client states on each device; NaN if some of them are on the host."""
        return math.nan if self._is_on_host else sum(self._stored_bytes())

    def _without_stored(self, state):
        return state._replace(clients=self._runs[0][1].clients)

    def _each(self, tree):
        return [tree] if self._spec.run_map is None else together.unstack(on_one_device(tree), len(self._runs))

    def _on_host(self):
        algorithm, state, assignment = self._runs[0]
        algorithm = self._spec.layout.client_map.replicate(algorithm)
        assignment = assignment._replace(ownership=jax.device_get(assignment.ownership))
        state = state if self._stored_states is None else state._replace(clients=self._stored_states)
        store = host_rounds.OnHost(self._spec, algorithm, assignment, self._examples)
        self._run = functools.partial(host_rounds.run_rounds, store=store)
        return algorithm, self._started(host_rounds, algorithm, state, assignment), assignment

    def _on_devices(self):
        client_map, run_map, runs = self._spec.layout.client_map, self._spec.run_map, []
        if run_map is None or self._runs[0][0].having("measure", "start"):  # first reports are computed run by run
            self._examples = client_map.replicate(self._examples)
        for algorithm, state, assignment in self._runs:
            assignment = assignment._replace(order=home_order(self._spec, assignment))
            algorithm, assignment = client_map.replicate((algorithm, assignment))
            state = rounds.distribute(client_map, state, assignment.order)
            runs.append((algorithm, self._started(rounds, algorithm, state, assignment), assignment))
        if run_map is None:
            return runs[0]
        self._examples = run_map.replicate(self._examples)
        return together.stack_runs(runs, run_map)

    def _started(self, module, algorithm, state, assignment):
        """Returns the state, updated by the first reports if it is the one before the first round."""
        left_out = None
        if not int(state.round):
            alone = dataclasses.replace(self._spec, run_map=None)
            state, left_out = module.with_first_reports(alone, algorithm, state, assignment, self._examples)
        self._left_out.append(to_host(left_out))
        return state

    def _chosen(self, storage):
        if storage != "auto":
            return storage in ("host", "disk")
        return self._has_examples_on_host or not memory.fits(sum(self._stored_bytes()), self._spec.devices)

    def _stored_bytes(self):
        """Returns the bytes on each device of the examples with their ownership, and of the client states."""
        (_, state, assignment), num_devices = self._runs[0], len(self._spec.devices)
        per_device = -(-len(self._runs) // num_devices) if self._spec.run_map else 1 / num_devices
        rows = () if self._is_on_disk else assignment.ownership.rows
        size = memory.size_in_bytes((self._examples, assignment.ownership._replace(rows=rows)))
        return size, round(per_device * memory.size_in_bytes(state.clients))

    def _with(self, layout: Layout) -> RoundSpec:
        return dataclasses.replace(self._spec, layout=layout)

    def _round_bytes(self, layout):
        if self.order is not None and layout != self._spec.layout:  # clients have another home in it
            (state,), self._state, client_map = self.states(), None, layout.client_map
            order = client_map.replicate(home_order(self._with(layout), self._assignment))
            self._state = rounds.distribute(client_map, state, order)
            self._assignment = self._assignment._replace(order=order)
        arguments = self._arguments(layout.max_rounds)
        return memory.program_bytes(functools.partial(rounds.compile_rounds, self._with(layout), *arguments))

    def _arguments(self, num_rounds):
        return self._algorithm, self._state, self._assignment, self._examples, num_rounds

    @property
    def _description(self):
        layout = self._spec.layout
        each = f"cohorts of {layout.cohort_size}, {layout.client_map}"
        if self._spec.run_map is None:
            return each
        return f"{len(self._runs)} runs together on {len(self._spec.devices)} devices, each with {each}"

    @property
    def _stored(self):
        data, clients = (size / _MIB for size in self._stored_bytes())
        if self._stored_states is not None:
            return f"{data:.1f} MiB of examples on disk and client states in files"
        where = " on disk" if self._is_on_disk else " on the host" * self._has_examples_on_host
        states = f"{clients:.1f} MiB of client states" + " on the host" * self._is_on_host
        return f"{data:.1f} MiB of examples{where} and {states}"

    @property
    def _has_examples_on_host(self):
        return isinstance(self._examples.inputs, np.ndarray)
