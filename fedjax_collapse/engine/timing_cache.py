"""Numbers that are measured once on a machine, such as timings, stored in the user's cache folder."""

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
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.schema.describe import describe


def cached_numbers(
    kind: str, device: jax.Device, key: Any, measure: Callable[[], Mapping[str, float]]
) -> dict[str, float]:
    """Returns the numbers of ``measure()`` by name, from the cache if it has them for this key and machine.

    If there are several processes, all of them measure at the same time and use the numbers of the first.
    """
    numbers = load_numbers(kind, device, key)
    if numbers is None:
        numbers = processes.all_gather(measure())[0]
        store_numbers(kind, device, key, numbers)
    return numbers


@processes.in_first_process
def load_numbers(kind: str, device: jax.Device, key: Any) -> dict[str, float] | None:
    """Returns the numbers stored for this key and machine; None if there are none or the file is damaged.

    The machine is the device's kind, the version of JAX, ``XLA_FLAGS`` and the precision of matrix products.
    """
    path, what = _place(kind, device, key)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        numbers = {str(name): float(value) for name, value in content["numbers"].items()}
        return numbers if numbers and content["sha256"] == _hash([what, numbers]) else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def store_numbers(kind: str, device: jax.Device, key: Any, numbers: Mapping[str, float]) -> None:
    """Stores the numbers for ``load_numbers``; warns if the cache cannot be written."""
    path, what = _place(kind, device, key)
    try:
        make_cache(path.parent)
        write_json(path, {**what, "numbers": numbers, "sha256": _hash([what, numbers])})
    except OSError as error:
        warnings.warn(
            f"{path}: {kind} are not saved ({error.strerror}); set XDG_CACHE_HOME to a folder with room", stacklevel=2
        )


def _place(kind, device, key):
    """Returns the file of the numbers, and its key."""
    what = {"machine": _machine(device), "key": describe(key)}
    return cache_folder(kind) / f"{_hash(what)}.json", what


def _hash(what):
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _machine(device):
    """Returns JAX's version and flags, and the device's kind; of a CPU its model name, as JAX says "cpu"."""
    info, kind = Path("/proc/cpuinfo"), device.device_kind
    if device.platform == "cpu" and info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        kind = next((line for line in lines if line.startswith("model name")), kind)
    return [jax.__version__, kind, jax.config.jax_default_matmul_precision, os.environ.get("XLA_FLAGS", "")]
