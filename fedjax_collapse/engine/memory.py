"""Predicts the memory that rounds take on each device, and finds a layout that fits."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from fedjax_collapse.core import processes
from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Sharded, Vectorized
from fedjax_collapse.engine.layout import Layout

_GIB = 2**30
_SHOWN = 100  # characters of the runtime's message
_STORED_FRACTION = 0.8  # of the free memory that examples and client states may take; the rest is for the rounds


def free_bytes(devices: Sequence[jax.Device]) -> float:
    """Returns the bytes that are free on each of the devices; infinite if unknown.

    CPU devices share the machine's memory. If there are several processes, each measures its own devices, and all
    return the minimum.
    """
    return min(processes.all_gather(_own_free_bytes([d for d in devices if d.process_index == jax.process_index()])))


def _own_free_bytes(devices):
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in s for s in stats):
        return min(s["bytes_limit"] - s.get("bytes_in_use", 0) for s in stats)
    return free_bytes_of_host() / len(devices) if devices[0].platform == "cpu" else math.inf


def free_bytes_of_host() -> float:
    """Returns the bytes that are free on this machine; infinite if unknown."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return available[0] if available else math.inf


def fits(num_bytes: float, devices: Sequence[jax.Device]) -> bool:
    """Returns whether each device has room for this many bytes of examples and client states, and for rounds."""
    return num_bytes <= _STORED_FRACTION * free_bytes(devices)


def fits_on_host(tree: PyTree) -> bool:
    """Returns whether this machine has room for a copy of the arrays, and for rounds."""
    return size_in_bytes(tree) <= _STORED_FRACTION * free_bytes_of_host()


def size_in_bytes(tree: PyTree) -> int:
    """Returns the total bytes of all leaves, which are arrays or shapes."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def program_bytes(compile: Callable[[], jax.stages.Compiled]) -> float:
    """Returns the bytes that a program needs besides its arguments; infinite if its compiler reports too many."""
    try:
        stats = compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if not is_exhaustion(error):
            raise
        return math.inf
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


@contextlib.contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Raises a UserError with advice if memory of a device or of the machine is exhausted in its body."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_exhaustion(error):
            raise
        reason = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise UserError(
            f"out of memory ({reason}): lower engine.clients_at_once or training.batch_size, choose "
            "engine.storage=host, or a smaller network or image size"
        ) from error


def is_exhaustion(error: BaseException) -> bool:
    """Returns whether the error reports exhausted memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def fit(layout: Layout, needed: Callable[[Layout], float], free: float, beside: str) -> tuple[Layout, float]:
    """Returns a layout with as many clients at once as fit, and the bytes that its rounds need.

    Args:
        layout: the layout to start from; the number of clients at once is halved until the rounds fit.
        needed: returns the bytes of a layout's rounds on a device.
        free: the bytes that are free on a device.
        beside: describes the other arrays on the device, for the message.

    Raises:
        UserError: one client at a time does not fit.
    """
    while (bytes_needed := needed(layout)) > free:
        smaller = _smaller(layout.client_map, layout.cohort_size)
        if smaller is None:
            needed_gib, free_gib = bytes_needed / _GIB, max(free, 0) / _GIB
            raise UserError(
                f"a round with one client at a time needs {needed_gib:.2f} GiB on each device in addition to {beside}, "
                f"but {free_gib:.2f} GiB are free: choose a smaller batch_size, network or image size"
            )
        layout = layout._replace(client_map=smaller)
    return layout, bytes_needed


def _smaller(client_map: ClientMap, cohort_size: int) -> ClientMap | None:
    """Returns the client map with half as many clients at once; None if there is only one."""
    match client_map:
        case Sharded(num_devices, inner, on):
            smaller = _smaller(inner, -(-cohort_size // num_devices))
            return smaller and Sharded(num_devices, smaller, on)
        case Vectorized(on) if cohort_size > 1:
            return Chunked(-(-cohort_size // 2), on)
        case Chunked(clients, on) if clients > 1:
            return Chunked(clients // 2, on)
    return None
