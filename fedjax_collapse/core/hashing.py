"""Hashes of arrays, which show whether two runs had the same data."""

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_collapse.core.checksums import as_bytes


def digest(tree: Any) -> str:
    """Returns the SHA-256 of all arrays of a tree, including their types and shapes."""
    sha = hashlib.sha256()
    for array in map(np.asarray, jax.tree.leaves(tree)):
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(as_bytes(array))
    return sha.hexdigest()


_digests: dict[tuple[int, ...], tuple[list, str]] = {}


def digest_once(arrays: Sequence[Any]) -> str:
    """Returns the hash of immutable arrays, computed once for all federations that share them."""
    key = tuple(map(id, arrays))
    cached = _digests.get(key)
    if cached is None or any(reference() is not array for reference, array in zip(cached[0], arrays, strict=True)):
        _digests[key] = cached = list(map(weakref.ref, arrays)), digest(arrays)
    return cached[1]
