"""Client maps: how a function of one client is laid out over a cohort.

A client map turns ``function(shared, client) -> (summand, result)`` into a function of a cohort, whose clients are
stacked on a leading axis: summands are added up, results are stacked. All maps give the same numbers up to the order of
float summation; they differ in speed and memory:

    total, results = Vectorized()(lambda shared, client: (client * shared, client), 2.0, jnp.arange(3.0))
    # total == 6.0, results == [0., 1., 2.]

Maps are hashable and equal by value, so they are static arguments of compiled functions. The number of clients must be
a multiple of ``clients_at_once``; the engine pads a cohort with clients of size 0.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_collapse.aggregation import sum_clients
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.records import PyTree, UserError

PerClient = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


class ClientMap:
    """The contract; its defaults are those of one device."""

    clients_at_once: int
    num_devices: int
    is_compiled: ClassVar[bool] = True  # False for the debug map, whose rounds run operation by operation
    runs_clients_alone: bool = False  # without a client axis, so that a branch costs only the case that is taken

    def __call__(self, function: PerClient, shared: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
        """The sum of the summands, and the stacked results."""
        raise NotImplementedError

    def arrange(self, ids: jax.Array) -> jax.Array:
        """The order in which the map wants clients, given by increasing size."""
        return ids

    def place(self, tree: PyTree) -> PyTree:
        """The arrays where the compiled round expects and leaves them, so that it is compiled only once."""
        return jax.device_put(tree, jax.devices()[0])

    def deal(self, clients: PyTree) -> PyTree:
        """``place`` for what is stored of all clients, stacked; padded to a multiple of ``num_devices``."""
        return self.place(clients)

    def shapes(self, tree: PyTree, dealt: bool = False) -> PyTree:
        """Shapes of arrays as ``place`` leaves them, or ``deal``: what is traced with them need not be traced again."""
        sharding = self._sharding(dealt)

        def describe(leaf):
            weak_type = getattr(leaf, "weak_type", False)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak_type)

        return jax.tree.map(describe, tree)

    def _sharding(self, dealt: bool) -> NamedSharding | None:
        """None where nothing is divided over devices."""
        del dealt

    def keep_dealt(self, clients: PyTree) -> PyTree:
        """The arrays, unchanged; inside compiled code, so that they are left as ``deal`` placed them."""
        return clients


@dataclasses.dataclass(frozen=True)
class Vectorized(ClientMap):
    """All clients of the cohort at once: ``jax.vmap``. Every client takes as long as the one with most steps."""

    clients_at_once: ClassVar[int] = 1
    num_devices: ClassVar[int] = 1

    def __str__(self):
        return "all clients at once"

    def __call__(self, function, shared, clients):
        summands, results = jax.vmap(function, in_axes=(None, 0))(shared, clients)
        return sum_clients(summands), results


@dataclasses.dataclass(frozen=True)
class Chunked(ClientMap):
    """``clients_at_once`` clients at a time, one chunk after another; a chunk takes as long as its longest client.

    Memory grows with the chunk, not with the cohort.

    Raises:
        UserError: ``clients_at_once`` < 1.
    """

    clients_at_once: int
    num_devices: ClassVar[int] = 1

    def __post_init__(self):
        if self.clients_at_once < 1:
            raise UserError(f"clients_at_once {self.clients_at_once} is too small, expected >= 1")

    def __str__(self):
        return f"{self.clients_at_once} client{'s' * (self.clients_at_once > 1)} at a time"

    @property
    def runs_clients_alone(self) -> bool:
        return self.clients_at_once == 1

    def __call__(self, function, shared, clients):
        chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, self.clients_at_once, *leaf.shape[1:]), clients)

        @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
        def run_chunk(shared, chunk):
            if self.runs_clients_alone:
                summand, results = function(shared, jax.tree.map(lambda leaf: leaf[0], chunk))
                return summand, jax.tree.map(lambda leaf: leaf[None], results)
            return Vectorized()(function, shared, chunk)

        def add_chunk(total, chunk):
            summand, results = run_chunk(shared, chunk)
            return jax.tree.map(jnp.add, total, summand), results

        summand, _ = jax.eval_shape(run_chunk, shared, jax.tree.map(lambda leaf: leaf[0], chunks))
        total, results = jax.lax.scan(add_chunk, zeros_of(summand), chunks)
        return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


@dataclasses.dataclass(frozen=True)
class Sharded(ClientMap):
    """The cohort dealt out over several devices of one host, each of which runs its share by the map ``inner``.

    On a CPU one client rarely keeps several cores busy: as many CPU devices as cores, each running one client at a
    time, are faster than one device that uses all cores (set ``jax_num_cpu_devices`` before JAX starts).

    Raises:
        UserError: fewer devices than asked for.
    """

    num_devices: int
    inner: ClientMap

    def __post_init__(self):
        if not 1 <= self.num_devices <= len(jax.devices()):
            raise UserError(f"num_devices {self.num_devices}: expected 1 to {len(jax.devices())}, as many as JAX finds")

    def __str__(self):
        return f"{self.inner} on each of {self.num_devices} devices"

    @property
    def clients_at_once(self) -> int:
        return self.num_devices * self.inner.clients_at_once

    @property
    def runs_clients_alone(self) -> bool:
        return self.inner.runs_clients_alone

    @property
    def mesh(self) -> Mesh:
        devices = jax.devices()[: self.num_devices]
        return jax.make_mesh((self.num_devices,), ("clients",), axis_types=(AxisType.Auto,), devices=devices)

    def __call__(self, function, shared, clients):
        def run_share(shared, clients):
            total, results = self.inner(function, shared, clients)
            return jax.lax.psum(total, "clients"), results

        everywhere, dealt = PartitionSpec(), PartitionSpec("clients")
        return jax.shard_map(
            run_share, mesh=self.mesh, in_specs=(everywhere, dealt), out_specs=(everywhere, dealt), check_vma=False
        )(shared, clients)

    def arrange(self, ids):
        """Deals chunks of neighbours to the devices like cards, turning round after each row, for even loads."""
        rows = ids.reshape(-1, self.num_devices, self.inner.clients_at_once)
        rows = rows.at[1::2].set(rows[1::2, ::-1])
        return rows.swapaxes(0, 1).reshape(-1)

    def place(self, tree):
        return jax.device_put(tree, self._sharding(dealt=False))

    def deal(self, clients):
        """A device keeps its share of the clients, not all of them."""

        def pad(leaf):
            missing = -len(leaf) % self.num_devices
            return np.pad(leaf, [(0, missing), *[(0, 0)] * (leaf.ndim - 1)]) if missing else leaf

        return jax.device_put(jax.tree.map(pad, jax.device_get(clients)), self._sharding(dealt=True))

    def keep_dealt(self, clients):
        return jax.lax.with_sharding_constraint(clients, self._sharding(dealt=True))

    def _sharding(self, dealt):
        return NamedSharding(self.mesh, PartitionSpec("clients") if dealt else PartitionSpec())


@dataclasses.dataclass(frozen=True)
class Loop(ClientMap):
    """The debug map: one client and one operation after another, uncompiled; a failure names its client and step."""

    clients_at_once: ClassVar[int] = 1
    num_devices: ClassVar[int] = 1
    is_compiled: ClassVar[bool] = False

    def __str__(self):
        return "one client and one operation after another"

    def __call__(self, function, shared, clients):
        count = len(jax.tree.leaves(clients)[0])
        outcomes = [function(shared, jax.tree.map(operator.itemgetter(i), clients)) for i in range(count)]
        summands, results = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outcomes)
        return sum_clients(summands), results
