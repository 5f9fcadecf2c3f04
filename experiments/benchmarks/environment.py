"""On what machine, and with which versions, figures were measured."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from experiments.machine import num_cores


def environment() -> dict[str, Any]:
    """The machine and the versions; a version is None if the package is not installed."""
    versions = {package: _version(package) for package in ("jax", "torch", "pfl", "flwr", "ray")}
    machine = {"device": _cpu(), "cores": num_cores(), "python": platform.python_version()}
    return machine | versions | {"platform": platform.platform()}


def available_memory() -> int | None:
    """Bytes of memory that processes can still have, None where the system does not say."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu():
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []
