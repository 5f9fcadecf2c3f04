"""On what machine, and with which versions, figures were measured."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from experiments.machine import num_cores


def environment() -> dict[str, Any]:
    """The machine and the versions; a version is None if the package is not installed."""
    versions = {package: _version(package) for package in ("jax", "torch")}
    machine = {"device": _cpu(), "cores": num_cores(), "python": platform.python_version()}
    return machine | versions | {"platform": platform.platform()}


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
