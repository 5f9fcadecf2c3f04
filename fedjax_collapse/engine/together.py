"""Where several runs go as one program: seeds, or values of numeric hyper-parameters."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_collapse.engine import memory
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Sharded, Vectorized, num_busy
from fedjax_collapse.engine.cohort import device_steps
from fedjax_collapse.records import PyTree


def lay_out_runs(client_map: ClientMap, num_runs: int) -> tuple[ClientMap, ClientMap]:
    """Client maps of the runs and of the clients of each, on the devices of ``client_map``: each device gets whole
    runs, one after another; on a single device they go side by side."""
    match client_map:
        case Sharded(_, inner, on):
            return Sharded(num_busy(num_runs, client_map.devices), Chunked(1), on), inner
    return Vectorized(client_map.on), client_map


def is_faster(client_map: ClientMap, sizes: Sequence[np.ndarray], batch_size: int) -> bool:
    """Whether whole runs on each device end before one run after another, its clients divided over all devices.

    Divided clients wait for the device with most steps, whole runs for the device with most runs. ``sizes``: of each
    run. On a single device runs side by side were not faster on a CPU, and not measured elsewhere.
    """
    if client_map.num_devices == 1 or len(sizes) < 2:
        return False
    steps = [device_steps(of_run, batch_size, client_map) for of_run in sizes]
    whole = [of_run.sum() for of_run in steps]
    longest = max(sum(whole[device :: client_map.num_devices]) for device in range(client_map.num_devices))
    return bool(longest < sum(of_run.max() for of_run in steps))


def fits(client_map: ClientMap, examples: PyTree, clients: PyTree, num_runs: int) -> bool:
    """Whether each device has room for the examples, which lie there, and for the client states of its whole runs.

    ``clients``: the states of one run, or their shapes.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(examples)):  # they did not fit by themselves
        return False
    on_each = -(-num_runs // client_map.num_devices)
    size = memory.size_in_bytes(examples) + on_each * memory.size_in_bytes(clients)
    return memory.fits(size, client_map.devices)
