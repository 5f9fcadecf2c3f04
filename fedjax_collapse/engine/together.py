"""Several runs batched into one program: seeds, or values of numeric hyper-parameters."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.engine import memory
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Sharded, Vectorized
from fedjax_collapse.engine.cohort import Assignment, device_steps
from fedjax_collapse.engine.placement import num_busy
from fedjax_collapse.engine.rounds import State
from fedjax_collapse.training.algorithm import FedAvg


def lay_out_runs(client_map: ClientMap, num_runs: int) -> tuple[ClientMap, ClientMap]:
    """Returns the client maps of the runs and of the clients of each run, on the devices of ``client_map``.

    Each of several devices gets whole runs, one after another; on a single device the runs are vectorized.
    """
    match client_map:
        case Sharded(_, inner, on):
            return Sharded(num_busy(num_runs, client_map.devices), Chunked(1), on), inner
    return Vectorized(client_map.on), client_map


def is_faster(client_map: ClientMap, sizes: Sequence[np.ndarray], batch_size: int) -> bool:
    """Returns whether whole runs on each device are faster than runs one after another with clients on all devices.

    Divided clients wait for the device with most steps, whole runs for the device with most runs. On a single device
    vectorized runs were not faster on a CPU; this was not measured elsewhere. ``sizes`` holds the clients' sizes of
    each run.
    """
    if client_map.num_devices == 1 or len(sizes) < 2:
        return False
    steps = [device_steps(of_run, batch_size, client_map) for of_run in sizes]
    whole = [of_run.sum() for of_run in steps]
    longest = max(sum(whole[device :: client_map.num_devices]) for device in range(client_map.num_devices))
    return bool(longest < sum(of_run.max() for of_run in steps))


def fits(client_map: ClientMap, examples: PyTree, clients: PyTree, num_runs: int) -> bool:
    """Returns whether each device has room for the examples, which are stored there, and the client states of its runs.

    ``clients`` holds the states of one run, or their shapes.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(examples)):  # the examples alone did not fit
        return False
    on_each = -(-num_runs // client_map.num_devices)
    size = memory.size_in_bytes(examples) + on_each * memory.size_in_bytes(clients)
    return memory.fits(size, client_map.devices)


def stack_runs(
    runs: Sequence[tuple[FedAvg, State, Assignment]], run_map: ClientMap
) -> tuple[FedAvg, State, Assignment]:
    """Returns the runs' algorithms, states and assignments, each stacked on a leading axis.

    They are padded to a multiple of ``run_map.clients_at_once`` with runs whose clients own nothing.
    """
    algorithm, state, assignment = runs[-1]
    idle = assignment.ownership._replace(sizes=jnp.zeros_like(assignment.ownership.sizes))
    padding = [(algorithm, state, assignment._replace(ownership=idle))] * (-len(runs) % run_map.clients_at_once)
    return tuple(map(run_map.shard, jax.tree.map(lambda *leaves: _stack(leaves), *runs, *padding)))


@functools.partial(jax.jit, static_argnums=1)  # one call, since each separate slice would cost as much
def unstack(stacked: PyTree, count: int) -> list[PyTree]:
    """Returns the first ``count`` entries along the leading axis, each as a tree."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(count)]


def _stack(leaves):
    return jnp.stack(leaves) if isinstance(leaves[0], jax.Array) else np.stack(leaves)
