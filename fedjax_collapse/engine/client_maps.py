"""Client maps: the layout of a function of one client over a cohort.

A client map turns ``function(shared, client) -> Outcome`` into a function of a cohort, whose clients are stacked on a
leading axis: summands are summed, results are stacked, and large values are stored for some clients only. All maps give
the same numbers up to the order of float summation; they differ in speed and memory:

    outcome = Vectorized()(lambda shared, client: Outcome(client * shared, client), 2.0, jnp.arange(3.0))
    # outcome.summand == 6.0, outcome.result == [0., 1., 2.]

Maps are hashable and equal by value, so they are static arguments of compiled functions. The number of clients must be
a multiple of ``clients_at_once``; the engine pads a cohort with clients of size 0.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from fedjax_collapse.core import processes
from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.data.batches import zeros_of
from fedjax_collapse.engine.placement import available_devices, first_devices, own_devices, place_on
from fedjax_collapse.optim.aggregation import sum_clients
from fedjax_collapse.schema.options import Count, check_fields


class Outcome(NamedTuple):
    """The outcome of one client's function, or of a client map: the sum, stacked results, and stored values.

    Results stay on the device that computed them; numbers, which must be floats, are copied to all devices together
    with the sum. ``kept`` is stored at index ``slot`` of the stack of the device that computed it; it is dropped if the
    slot is after the end of the stack.
    """

    summand: PyTree
    result: PyTree = ()
    numbers: PyTree = ()
    kept: PyTree = ()
    slot: jax.Array | int = 0


PerClient = Callable[[PyTree, PyTree], Outcome]


class ClientMap:
    """The interface; its defaults are for one device."""

    clients_at_once: int
    num_devices: int
    on: tuple[jax.Device, ...] = ()  # the devices that it runs on; the first ones if empty
    is_compiled: ClassVar[bool] = True  # False for the debug map, whose rounds run operation by operation
    runs_clients_alone: bool = False  # one at a time, without a client axis, so that a branch costs only the taken case

    def __post_init__(self):
        check_fields(self)
        object.__setattr__(self, "on", tuple(self.on))

    def __call__(
        self,
        function: PerClient,
        shared: PyTree,
        clients: PyTree,
        slots: PyTree = (),
        divided: PyTree = False,  # bools
    ) -> Outcome:
        """Returns the sum of the summands, the stacked results, and ``slots`` with the values of ``kept``.

        Args:
            function: of one client.
            shared: the argument that all clients receive.
            clients: stacked.
            slots: the stacks of all devices, one after another, as ``shard`` divides them. Slots that no client has may
                hold any values.
            divided: a prefix tree of bools over ``shared``: True if the leaf is sharded over devices (``shard``), and
                each client receives its device's part.
        """
        raise NotImplementedError

    def collect(self, slots: PyTree) -> PyTree:
        """Returns one stack, with each value from the device that has stored it, on every device."""
        return slots

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The ``num_devices`` devices that it runs on.

        Raises:
            UserError: there are fewer.
        """
        return first_devices(self.num_devices, self.on or own_devices())

    @property
    def target(self) -> Target:
        """The target that the rounds are compiled for."""
        return Target.of(self.devices[0])

    def arrange(self, ids: jax.Array) -> jax.Array:
        """Returns the order in which the map processes clients, which are given by increasing size."""
        return ids

    def replicate(self, tree: PyTree) -> PyTree:
        """Places the arrays on every device, where the compiled round expects and leaves them.

        So the round is compiled only once.
        """
        return jax.device_put(tree, self.devices[0])

    def shard(self, clients: PyTree) -> PyTree:
        """Divides arrays over all clients among the devices, padded to a multiple of ``num_devices``."""
        return self.replicate(clients)

    def shapes(self, tree: PyTree, sharded: bool = False) -> PyTree:
        """Returns shapes of arrays placed by ``replicate`` or ``shard``, which can be traced in their place."""
        sharding = self._sharding(sharded)

        def describe(leaf):
            weak_type = getattr(leaf, "weak_type", False)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak_type)

        return jax.tree.map(describe, tree)

    def _sharding(self, sharded: bool) -> Sharding | None:
        """Returns the sharding; None for JAX's default placement."""
        return SingleDeviceSharding(self.on[0]) if self.on else None

    def keep_sharded(self, clients: PyTree) -> PyTree:
        """Constrains the arrays, inside compiled code, to the placement of ``shard``."""
        return clients

    def keep_replicated(self, tree: PyTree) -> PyTree:
        """Makes every device compute the arrays, inside compiled code, instead of communicating."""
        return tree


@dataclasses.dataclass(frozen=True)
class Vectorized(ClientMap):
    """All clients of the cohort at once, by ``jax.vmap``. Every client takes as long as the one with most steps."""

    clients_at_once: ClassVar[int] = 1
    num_devices: ClassVar[int] = 1
    on: tuple[jax.Device, ...] = ()

    def __str__(self):
        return "all clients at once"

    def __call__(self, function, shared, clients, slots=(), divided=False):
        outcome = _side_by_side(function, shared, clients)
        return outcome._replace(kept=_keep(slots, outcome))


@dataclasses.dataclass(frozen=True)
class Chunked(ClientMap):
    """``clients_at_once`` clients at a time, one chunk after another; a chunk takes as long as its longest client.

    Memory grows with the chunk, not with the cohort.

    Raises:
        UserError: ``clients_at_once`` is not a number >= 1.
    """

    clients_at_once: Count
    num_devices: ClassVar[int] = 1
    on: tuple[jax.Device, ...] = ()

    def __str__(self):
        return f"{self.clients_at_once} client{'s' * (self.clients_at_once > 1)} at a time"

    @property
    def runs_clients_alone(self) -> bool:
        return self.clients_at_once == 1

    def __call__(self, function, shared, clients, slots=(), divided=False):
        chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, self.clients_at_once, *leaf.shape[1:]), clients)

        @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
        def run_chunk(shared, chunk):
            if self.runs_clients_alone:
                outcome = function(shared, jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, [0]), chunk))
                stacked = jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, [0]), outcome)
                return stacked._replace(summand=outcome.summand)
            return _side_by_side(function, shared, chunk)

        def add_chunk(carry, chunk):
            total, kept = carry
            outcome = run_chunk(shared, chunk)
            stacked = outcome.result, outcome.numbers
            return (jax.tree.map(jnp.add, total, outcome.summand), _keep(kept, outcome)), stacked

        first = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, 0, keepdims=False), chunks)
        outcome = jax.eval_shape(run_chunk, shared, first)
        (total, kept), stacked = jax.lax.scan(add_chunk, (zeros_of(outcome.summand), slots), chunks)
        return Outcome(total, *jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacked), kept)


@dataclasses.dataclass(frozen=True)
class Sharded(ClientMap):
    """The cohort divided over several devices, each of which runs its part by the map ``inner``.

    On a CPU one client rarely uses several cores: as many CPU devices as cores, each running one client at a time, are
    faster than one device that uses all cores (set ``jax_num_cpu_devices`` before JAX starts).

    Raises:
        UserError: there are fewer devices than requested.
    """

    num_devices: Count
    inner: ClientMap
    on: tuple[jax.Device, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        _ = self.devices  # raises

    def __str__(self):
        return f"{self.inner} on each of {self.num_devices} devices"

    @property
    def devices(self):
        devices = first_devices(self.num_devices, self.on or available_devices())
        if processes.is_multiprocess() and not self.on and self.num_devices < len(available_devices()):
            raise UserError(
                f"num_devices {self.num_devices}: expected {len(available_devices())}, all that the "
                f"{jax.process_count()} processes have"
            )
        return devices

    @property
    def clients_at_once(self) -> int:
        return self.num_devices * self.inner.clients_at_once

    @property
    def runs_clients_alone(self) -> bool:
        return self.inner.runs_clients_alone

    @property
    def mesh(self) -> Mesh:
        return jax.make_mesh((self.num_devices,), ("clients",), axis_types=(AxisType.Auto,), devices=self.devices)

    def __call__(self, function, shared, clients, slots=(), divided=False):
        def run_part(shared, clients, slots):
            slots = jax.tree.map(jnp.zeros_like, slots)  # ``collect`` sums them
            outcome = self.inner(function, shared, clients, slots)
            numbers = jax.tree.map(self._among_all, outcome.numbers)
            return jax.lax.psum((outcome.summand, numbers), "clients"), (outcome.result, outcome.kept)

        replicated, sharded = PartitionSpec(), PartitionSpec("clients")
        (total, numbers), (results, kept) = jax.shard_map(
            run_part,
            mesh=self.mesh,
            in_specs=(jax.tree.map(lambda is_part: sharded if is_part else replicated, divided), sharded, sharded),
            out_specs=(replicated, sharded),
            check_vma=False,
        )(shared, clients, slots)
        return Outcome(total, results, numbers, kept)

    def collect(self, slots):
        return _sum_over_devices(self, slots)

    def _among_all(self, part):
        """Returns the numbers of this device's clients in their places among all, and 0 elsewhere."""
        whole = jnp.zeros((self.num_devices, *part.shape), part.dtype)
        return whole.at[jax.lax.axis_index("clients")].set(part).reshape(-1, *part.shape[1:])

    def arrange(self, ids):
        """Deals chunks of neighbours to the devices, reversing the order after each row, for even loads."""
        rows = np.arange(len(ids)).reshape(-1, self.num_devices, self.inner.clients_at_once)
        rows[1::2] = rows[1::2, ::-1]
        return ids[rows.swapaxes(0, 1).ravel()]  # a gather, because JAX 0.12 shards a reversal wrongly

    def replicate(self, tree):
        return place_on(self._sharding(sharded=False), tree)

    def shard(self, clients):
        """Divides the clients, so that no device stores all of them."""

        def pad(leaf):
            missing = -len(leaf) % self.num_devices
            return np.pad(leaf, [(0, missing), *[(0, 0)] * (leaf.ndim - 1)]) if missing else leaf

        return place_on(self._sharding(sharded=True), jax.tree.map(pad, jax.device_get(clients)))

    def keep_sharded(self, clients):
        return jax.lax.with_sharding_constraint(clients, self._sharding(sharded=True))

    def keep_replicated(self, tree):
        return jax.lax.with_sharding_constraint(tree, self._sharding(sharded=False))

    def _sharding(self, sharded):
        return NamedSharding(self.mesh, PartitionSpec("clients") if sharded else PartitionSpec())


@dataclasses.dataclass(frozen=True)
class Loop(ClientMap):
    """The debug map: one client and one operation after another, uncompiled; a failure names its client and step."""

    clients_at_once: ClassVar[int] = 1
    num_devices: ClassVar[int] = 1
    is_compiled: ClassVar[bool] = False
    on: tuple[jax.Device, ...] = ()

    def __str__(self):
        return "one client and one operation after another"

    def __call__(self, function, shared, clients, slots=(), divided=False):
        count = len(jax.tree.leaves(clients)[0])
        outcomes = [function(shared, jax.tree.map(operator.itemgetter(i), clients)) for i in range(count)]
        outcome = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outcomes)
        return outcome._replace(summand=sum_clients(outcome.summand), kept=_keep(slots, outcome))


def check_at_once(name: str, client_map: ClientMap, most: int, whose: str) -> None:
    """Raises UserError if a device is to run more clients or runs at once than there are."""
    at_once = client_map.clients_at_once // client_map.num_devices
    if at_once > most:
        raise UserError(f"{name}: {at_once} at a time on a device: expected at most {most}, {whose}")


def within_process(client_map: ClientMap) -> ClientMap:
    """Returns the map on its devices of this process; the map itself if all belong to it."""
    devices = tuple(device for device in client_map.devices if device.process_index == jax.process_index())
    match client_map:
        case Sharded(count, inner, _) if len(devices) < count:
            return Sharded(len(devices), inner, devices)
    return client_map


@functools.partial(jax.jit, static_argnums=0)
def _sum_over_devices(client_map, slots):
    sharded, replicated = PartitionSpec("clients"), PartitionSpec()
    add = functools.partial(jax.lax.psum, axis_name="clients")
    return jax.shard_map(add, mesh=client_map.mesh, in_specs=sharded, out_specs=replicated)(slots)


def _side_by_side(function, shared, clients):
    """Returns the outcome of vectorized clients: the sum of the summands, and the rest stacked."""
    outcome = jax.vmap(function, in_axes=(None, 0))(shared, clients)
    slots = jnp.broadcast_to(outcome.slot, len(jax.tree.leaves(clients)[0]))
    return outcome._replace(summand=sum_clients(outcome.summand), slot=slots)


def _keep(slots: PyTree, outcome: Outcome) -> PyTree:
    """Stores ``kept`` of clients that have a slot; ``outcome`` is stacked."""
    leaves = jax.tree.leaves(slots)
    if not leaves:
        return slots

    def store():
        return jax.tree.map(lambda all, new: all.at[outcome.slot].set(new, mode="drop"), slots, outcome.kept)

    if len(outcome.slot) > 1:
        return store()
    is_kept = outcome.slot[0] < len(leaves[0])
    if len(leaves[0]) == 1:  # compiles faster than a branch
        return jax.tree.map(lambda all, new: jnp.where(is_kept, new, all), slots, outcome.kept)
    return jax.lax.cond(is_kept, store, lambda: slots)  # otherwise all slots would be written for every client
