"""The rounds of a run, or of several that go together, wherever their states and examples lie."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.data import federation
from fedjax_collapse.engine import host_rounds, memory, rounds, together
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.engine.layout import Layout
from fedjax_collapse.engine.rounds import RoundRecord, State
from fedjax_collapse.records import Examples, Model, Ownership, UserError, Variables

STORAGES = ("auto", *federation.STORAGES)
_MIB = 2**20


class Program:
    """Advances runs by rounds; each run is an algorithm, its state and who owns what of the common examples.

    ``storage``: ``device``; ``host``, where client states, and the examples if they are NumPy arrays, stay there and
    the cohort's are sent in every round; ``auto`` is the device, unless the examples are NumPy arrays or both do not
    fit. More than one run needs a ``run_map`` and the device.

    Raises:
        UserError: there is no such storage, or it cannot hold several runs.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Algorithm, State, Ownership]],
        examples: Examples,
        *,
        model: Model,
        layout: Layout,
        run_map: ClientMap | None = None,
        storage: str = "auto",
    ):
        self._runs, self._examples = list(runs), examples
        self._model, self._layout, self._run_map = model, layout, run_map
        self._num_clients = len(runs[0][2].sizes)
        self._state = None  # until it is placed
        self._num_devices = (run_map or layout.client_map).num_devices
        self._is_on_host = self._chosen(storage)
        if self._is_on_host and run_map is not None:
            raise UserError("runs go together on devices only: choose engine.runs=separate or engine.storage=device")

    def prepare(self) -> str:
        """Places everything and compiles, with as few clients at once as fit; a line about layout and memory.

        Raises:
            UserError: one client at a time does not fit.
        """
        place = self._on_host if self._is_on_host else self._on_devices
        self._algorithm, self._state, self._data = place()
        if self._is_on_host or not self._layout.client_map.is_compiled:
            return f"{self._description}, {self._stored}"
        free = memory.free_bytes(self._num_devices)
        self._layout, needed = memory.fit(self._layout, self._round_bytes, free, beside=self._stored)
        return f"{self._description}; on each device {needed / _MIB:.1f} MiB for a round beside {self._stored}"

    def advance(self, num_rounds: int) -> list[tuple[State, RoundRecord, Variables]]:
        """Each run after so many rounds: its state, the record of every round, the watched client's variables."""
        outcome = self._function(self._algorithm, self._state, *self._data, num_rounds, **self._statics(self._layout))
        outcome = jax.block_until_ready(outcome)
        self._state = outcome[0]
        return self._each(outcome)

    def states(self) -> list[State]:
        """Each run's state as ``rounds.init`` makes it: without padding, its clients on the host."""
        return [rounds.without_padding(state, self._num_clients) for state in self._states()]

    def variables(self) -> list[Variables]:
        """Of each run's server."""
        return [state.server.variables for state in self._states()]

    def _states(self):
        return [state for _, state, _ in self._runs] if self._state is None else self._each(self._state)

    @property
    def _function(self):
        if self._is_on_host:
            return host_rounds.run_rounds
        return rounds.run_rounds if self._run_map is None else together.run_together

    def _statics(self, layout):
        statics = dict(model=self._model, layout=layout)
        return statics if self._run_map is None else statics | dict(run_map=self._run_map)

    def _each(self, tree):
        return [tree] if self._run_map is None else together.split_runs(tree, len(self._runs))

    def _on_host(self):
        algorithm, state, ownership = self._runs[0]
        algorithm = self._layout.client_map.place(algorithm)
        data = self._examples, jax.device_get(ownership)
        return algorithm, self._started(host_rounds, algorithm, state, *data), data

    def _on_devices(self):
        client_map, runs = self._layout.client_map, []
        examples = (self._run_map or client_map).place(self._examples)
        for algorithm, state, ownership in self._runs:
            algorithm, ownership = client_map.place((algorithm, ownership))
            state = rounds.place(client_map, state)
            runs.append((algorithm, self._started(rounds, algorithm, state, examples, ownership), ownership))
        algorithm, state, ownership = runs[0] if self._run_map is None else together.stack_runs(runs, self._run_map)
        return algorithm, state, (examples, ownership)

    def _started(self, module, algorithm, state, *data):
        """The state, after the first reports if it is that before the first round."""
        if int(state.round):
            return state
        return module.start(algorithm, state, *data, model=self._model, layout=self._layout)

    def _chosen(self, storage):
        if storage not in STORAGES:
            raise UserError(f"storage {storage!r}: expected one of {', '.join(STORAGES)}")
        if storage != "auto":
            return storage == "host"
        return self._has_examples_on_host or not memory.fits(sum(self._stored_bytes()), self._num_devices)

    def _stored_bytes(self):
        """On each device: of the examples with their owners, and of the client states."""
        _, state, ownership = self._runs[0]
        per_device = -(-len(self._runs) // self._num_devices) if self._run_map else 1 / self._num_devices
        data = memory.size_in_bytes((self._examples, ownership))
        return data, round(per_device * memory.size_in_bytes(state.clients))

    def _round_bytes(self, layout):
        function = rounds.compile_rounds if self._run_map is None else together.compile_together
        arguments = (self._algorithm, self._state, *self._data, layout.max_rounds)
        return memory.program_bytes(function(*arguments, **self._statics(layout)))

    @property
    def _description(self):
        each = f"cohorts of {self._layout.cohort_size}, {self._layout.client_map}"
        if self._run_map is None:
            return each
        return f"{len(self._runs)} runs together on {self._num_devices} devices, each with {each}"

    @property
    def _stored(self):
        data, clients = (size / _MIB for size in self._stored_bytes())
        on_host = [" on the host" * where for where in (self._has_examples_on_host, self._is_on_host)]
        return f"{data:.1f} MiB of examples{on_host[0]} and {clients:.1f} MiB of client states{on_host[1]}"

    @property
    def _has_examples_on_host(self):
        return isinstance(self._examples.images, np.ndarray)
