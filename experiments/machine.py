"""The machine that experiments run on."""

import contextlib
import os
import subprocess
from collections.abc import Collection, Iterator
from importlib import metadata


def num_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(cores())


def versions(packages: Collection[str]) -> dict[str, str | None]:
    """Returns the versions of these packages; None for one that is not installed."""
    installed = {package: [*metadata.distributions(name=package)] for package in packages}
    return {package: found[0].version if found else None for package, found in installed.items()}


def cores() -> list[int]:
    """Returns the system's numbers of these cores."""
    return sorted(os.sched_getaffinity(0)) if can_pin() else list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Returns whether processes can be pinned to cores."""
    return hasattr(os, "sched_setaffinity")


def gpus() -> list[str]:
    """Returns the names of the NVIDIA GPUs that the driver reports, without starting JAX."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


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
