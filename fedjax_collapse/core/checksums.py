"""Checksums of examples on disk, by XXH3: it is faster than memory, and misses one random change in 2^64.

They do not protect from someone who changes both data and checksums.
"""

from collections.abc import Sequence

import numpy as np
import xxhash

SIZE = 16  # bytes of a checksum


def checksum(parts: Sequence[memoryview | bytes], seed: int = 0) -> bytes:
    """Returns the checksum of one or more pieces of bytes, in this order."""
    for part in parts[:-1]:
        seed = xxhash.xxh3_64_intdigest(part, seed)
    return xxhash.xxh3_128_digest(parts[-1], seed)


def checksums(
    first: memoryview, second: memoryview, begins: Sequence[int], ends: Sequence[int], starts: Sequence[int],
    stops: Sequence[int],
) -> bytes:  # fmt: skip
    """Returns the checksums of each ``first[begin:end]`` with ``second[start:stop]``, one after another."""
    of_first, of_both = xxhash.xxh3_64_intdigest, xxhash.xxh3_128_digest
    bounds = zip(begins, ends, starts, stops, strict=True)
    return b"".join([of_both(second[start:stop], of_first(first[begin:end])) for begin, end, start, stop in bounds])


def as_bytes(array: np.ndarray) -> memoryview:
    """Returns the bytes of an array, without a copy if it is contiguous."""
    array = np.ascontiguousarray(array)
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
