"""What was once read or rendered, kept as arrays in one file that carries its own SHA-256."""

import contextlib
import hashlib
import json
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedjax_collapse.core.files import cache_folder, make_cache

Arrays = dict[str, np.ndarray]
_DIGEST = "sha256"
_ABANDONED = 24 * 3600  # seconds after which a file of a writer elsewhere is taken for that of a killed one


def cached(name: str, key: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The arrays of ``make()``, read from the cache if they are there for this ``key`` and whole.

    The key says all that the arrays depend on. An entry is written beside its place and then moved there, so it is
    never half written, also if several processes write it at once; one that does not match its hash is made again.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    path = cache_folder("data") / f"{name}-{digest[:16]}.npz"
    arrays = _read(path)
    if arrays is None:
        arrays = make()
        try:
            _write(path, arrays)
        except OSError as error:
            warnings.warn(f"{path}: not cached ({error}); set XDG_CACHE_HOME to a folder with room", stacklevel=2)
    return arrays


def _read(path):
    """The arrays of a whole entry, else None."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return arrays if str(arrays.pop(_DIGEST)) == _hash(arrays) else None
    except Exception:  # of a damaged file, zipfile and NumPy raise whatever they run into
        return None


def _write(path, arrays):
    make_cache(path.parent)
    own = f"{path.stem}.{socket.gethostname()}."
    _remove_leftovers(path.parent, own)
    temporary = path.with_name(f"{own}{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "xb") as file:
            np.savez(file, **{_DIGEST: np.array(_hash(arrays))}, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(folder, own):
    """Of writers that were killed: those of this entry on this machine, which are known to be dead, and old ones."""
    for left in folder.glob("*.tmp"):
        with contextlib.suppress(OSError):  # another process removes it, too
            is_dead = left.name.startswith(own) and not _is_running(int(left.name.split(".")[-3]))
            if is_dead or time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def _is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _hash(arrays):
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
