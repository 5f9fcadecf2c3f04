"""The machine that experiments run on."""

import contextlib
import os
from collections.abc import Collection, Iterator


def num_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(cores())


def cores() -> list[int]:
    """Those, by the numbers that the system gives them."""
    return sorted(os.sched_getaffinity(0)) if can_pin() else list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether processes can be kept on some of the cores."""
    return hasattr(os, "sched_setaffinity")


@contextlib.contextmanager
def on_cores(chosen: Collection[int]) -> Iterator[None]:
    """Keeps this thread, and processes that it starts, on these cores, if there are any and that can be chosen."""
    if not chosen or not can_pin():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
