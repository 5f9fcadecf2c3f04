"""The machine and the versions with which figures were measured."""

import platform
from pathlib import Path
from typing import Any

from experiments.machine import gpus, num_cores, versions


def environment(device: str = "cpu") -> dict[str, Any]:
    """Returns the machine, the precision of matrix products, and versions; None for a package that is not installed."""
    cpu = _field("/proc/cpuinfo", "model name") or platform.machine()
    name, products = (cpu, "float32") if device == "cpu" else (", ".join(gpus()), "TF32 of float32")
    machine = {"device": name, "products": products, "cores": num_cores(), "python": platform.python_version()}
    return machine | versions(("jax", "torch", "pfl", "flwr", "ray")) | {"platform": platform.platform()}


def _field(path, name):
    """Returns the first value of this name in a file of ``name: value``; None if there is none."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
