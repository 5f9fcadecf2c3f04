"""On what machine, and with which versions, figures were measured."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from experiments.study.machine import num_cores


def environment(device: str = "cpu") -> dict[str, Any]:
    """The machine, how exact products are on all sides, and the versions; None of a package that is not installed."""
    versions = {package: _version(package) for package in ("jax", "torch", "pfl", "flwr", "ray")}
    name, products = (_cpu(), "float32") if device == "cpu" else (", ".join(gpus()), "TF32 of float32")
    machine = {"device": name, "products": products, "cores": num_cores(), "python": platform.python_version()}
    return machine | versions | {"platform": platform.platform()}


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver knows of; asked without loading JAX or PyTorch."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
        )
    except OSError:
        return []
    return asked.stdout.splitlines() if asked.returncode == 0 else []


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
