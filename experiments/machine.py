"""The machine that experiments run on."""

import contextlib
import os
from collections.abc import Collection, Iterator


def num_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(cores())


def cores() -> list[int]:
    """Returns the system's numbers of these cores."""
    return sorted(os.sched_getaffinity(0)) if can_pin() else list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Returns whether processes can be pinned to cores."""
    return hasattr(os, "sched_setaffinity")


@contextlib.contextmanager
def on_cores(chosen: Collection[int]) -> Iterator[None]:
    """Pins this thread, and processes that it starts, to these cores, if there are any and the system allows it."""
    if not chosen or not can_pin():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
