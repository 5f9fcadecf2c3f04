"""Numbers that a machine makes once, such as timings, kept in the user's cache folder."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_collapse.core import processes
from fedjax_collapse.core.files import cache_folder, make_cache
from fedjax_collapse.storage.fingerprint import describe
from fedjax_collapse.storage.history import write_json


def remembered(kind: str, device: jax.Device, key: Any, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """The numbers of ``measure()`` by name, read from the cache if they are there for this key and machine.

    Several processes measure at the same time, and take the numbers of the first.
    """
    numbers = processes.broadcast_from_first(lambda: recalled(kind, device, key))
    if numbers is None:
        measured = {str(name): float(value) for name, value in measure().items()}
        numbers = processes.all_gather(measured)[0]
        remember(kind, device, key, numbers)
    return numbers


def recalled(kind: str, device: jax.Device, key: Any) -> dict[str, float] | None:
    """The numbers that were kept for this key and machine; None if there are none, or none that are as written.

    The machine is the device's kind, the version of JAX, ``XLA_FLAGS`` and the precision of its products.
    """
    path, what = _place(kind, device, key)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        numbers = {str(name): float(value) for name, value in content["numbers"].items()}
        return numbers if numbers and content["sha256"] == _hash([what, numbers]) else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def remember(kind: str, device: jax.Device, key: Any, numbers: Mapping[str, float]) -> None:
    """Keeps the numbers for ``recalled``; where the cache cannot be written, a warning says so."""
    path, what = _place(kind, device, key)
    try:
        make_cache(path.parent)
        write_json(path, {**what, "numbers": numbers, "sha256": _hash([what, numbers])})
    except OSError as error:
        warnings.warn(
            f"{path}: {kind} are not saved ({error.strerror}); set XDG_CACHE_HOME to a folder with room", stacklevel=2
        )


def _place(kind, device, key):
    """The file of the numbers, and what they are of."""
    what = {"machine": _machine(device), "key": describe(key)}
    return cache_folder(kind) / f"{_hash(what)}.json", what


def _hash(what):
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _machine(device):
    """What the speed depends on; of a CPU its model's name, as JAX says "cpu" of all."""
    info, kind = Path("/proc/cpuinfo"), device.device_kind
    if device.platform == "cpu" and info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        kind = next((line for line in lines if line.startswith("model name")), kind)
    return [jax.__version__, kind, jax.config.jax_default_matmul_precision, os.environ.get("XLA_FLAGS", "")]
