"""Devices, and the placement of arrays on them, also when several processes have a part of the devices each."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, Sharding

from fedjax_collapse.core import processes
from fedjax_collapse.core.records import PyTree, UserError


def available_devices() -> tuple[jax.Device, ...]:
    """Returns the devices of all processes; no other function queries them if no devices are given."""
    return tuple(jax.devices())


def own_devices() -> tuple[jax.Device, ...]:
    """Returns the devices of this process, for computations that every process repeats."""
    return tuple(jax.local_devices())


def num_busy(count: int, devices: Sequence[jax.Device]) -> int:
    """Returns over how many of the devices clients or runs are divided: all if there are several processes."""
    return len(devices) if processes.is_multiprocess() else min(len(devices), count)


def first_devices(count: int, devices: tuple[jax.Device, ...]) -> tuple[jax.Device, ...]:
    """Returns the first ``count`` of the devices.

    Raises:
        UserError: there are fewer.
    """
    if not 1 <= count <= len(devices):
        raise UserError(f"num_devices {count}: expected 1 to {len(devices)}, as many as there are")
    return devices[:count]


def copied(tree: PyTree) -> PyTree:
    """Returns copies of the arrays, where they are. Unlike ``jnp.copy``, none on one device needs a program compiled.

    On several devices ``jax.device_put`` may return the array itself, or a key that shares its memory.
    """

    def copy(leaf):
        return jax.device_put(leaf, may_alias=False) if isinstance(leaf.device, jax.Device) else leaf.copy()

    return jax.tree.map(copy, tree)


def on_one_device(tree: PyTree) -> PyTree:
    """Moves the arrays to the first of their devices, without a copy if they are replicated.

    NumPy arrays stay on the host.
    """

    def take(leaf):
        if isinstance(leaf, np.ndarray):
            return leaf
        if not leaf.is_fully_addressable:
            leaf = _on_each(leaf)
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return jax.device_put(leaf, leaf.sharding.mesh.devices.flat[0])

    return jax.tree.map(take, tree)


def to_host(tree: PyTree) -> PyTree:
    """Returns the arrays as NumPy arrays, gathered if they are divided over processes."""

    def fetch(leaf):  # one after another, as each is whole on every device for a moment
        is_part = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        return np.asarray(_on_each(leaf)) if is_part else leaf

    return jax.device_get(jax.tree.map(fetch, tree))


def place_on(sharding: Sharding, tree: PyTree) -> PyTree:
    """Places the arrays, which all processes have, on the devices; each process fills its own devices."""
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def place(leaf):
        is_common = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        if is_common or getattr(leaf, "weak_type", False):  # device_put keeps weak types, but compares all processes
            return jax.device_put(leaf, sharding)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return jax.make_array_from_callback(leaf.shape, sharding, np.asarray(leaf).__getitem__)

    return jax.tree.map(place, tree)


def _on_each(leaf):
    """Replicates an array, of which processes have parts, on all of its devices."""
    everywhere = leaf.sharding.update(spec=PartitionSpec())
    return leaf if leaf.is_fully_replicated else jax.jit(jnp.copy, out_shardings=everywhere)(leaf)
