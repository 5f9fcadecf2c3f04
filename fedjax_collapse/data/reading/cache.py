"""A cache of decoded or rendered arrays, each entry in one file that contains its SHA-256."""

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.hashing import digest

Arrays = dict[str, np.ndarray]
_DIGEST = "sha256"
_ABANDONED = 24 * 3600  # seconds after which a temporary file has no writer any more


def cached(name: str, key: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """Returns the arrays of ``make()``, read from the cache if it has an intact entry for ``key``.

    The arrays must depend on the key only. An entry is written to a temporary file and then renamed, so it is never
    incomplete, even if several processes write it. An entry that does not match its hash is recomputed.
    """
    of_key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    path = files.cache_folder("data") / f"{name}-{of_key[:16]}.npz"
    arrays = _read(path)
    if arrays is None:
        arrays = make()
        try:
            _write(path, arrays)
        except OSError as error:
            warnings.warn(f"{path}: not cached ({error}); set XDG_CACHE_HOME to a folder with room", stacklevel=2)
    return arrays


def _read(path):
    """Returns the arrays of an intact entry, else None."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return arrays if str(arrays.pop(_DIGEST)) == digest(sorted(arrays.items())) else None
    except Exception:  # for damaged files, zipfile and NumPy raise various exceptions
        return None


def _write(path, arrays):
    files.make_cache(path.parent)
    for leftover in path.parent.glob(".*.npz.*"):  # of a killed writer
        with contextlib.suppress(OSError):  # another process may have removed it
            if time.time() - leftover.stat().st_mtime > _ABANDONED:
                leftover.unlink()
    with files.shared(path) as file:
        np.savez(file, **{_DIGEST: np.array(digest(sorted(arrays.items())))}, **arrays)
