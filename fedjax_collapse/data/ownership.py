"""The table of rows that each client owns, built from a partition and read by rounds."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from fedjax_collapse.core.records import Ownership, UserError
from fedjax_collapse.data.arrays import as_array
from fedjax_collapse.data.partition import Partition
from fedjax_collapse.data.store import Store
from fedjax_collapse.schema.options import Count, check_value

_MAX_OWNERS = 2  # of one example, as in ``partition.partially_disjoint``
_MAX_CLIENTS = 10_000_000  # stops at a partition that never ends


def ownership(partition: Partition, num_examples: int, capacity: int | None = None) -> Ownership:
    """Returns the table of a partition with ``capacity`` columns, by default the size of the largest client.

    Raises:
        UserError: if the partition is not one of ``num_examples`` examples, or if the capacity is too small or far too
            large.
    """
    check_value("federation: capacity", capacity, Count | None)
    partition = owned(partition, most=_MAX_CLIENTS)
    sizes = np.array([len(rows) for rows in partition], np.int32)
    if not len(sizes) or not sizes.min():
        raise UserError(f"partition: every client needs at least one example, got sizes {sizes.tolist()}")
    every = np.concatenate(partition)
    if every.min() < 0 or every.max() >= num_examples:
        raise UserError(f"partition: index {every.max()} or {every.min()} is outside the {num_examples} examples")
    capacity = sizes.max() if capacity is None else capacity
    if capacity < sizes.max():
        raise UserError(
            f"federation: capacity {capacity} is less than the {sizes.max()} examples of the largest client"
        )
    if capacity > max(_MAX_OWNERS * num_examples, sizes.max()):
        raise UserError(f"federation: capacity {capacity} is more than a client can own of {num_examples} examples")
    return as_table(partition, capacity)


def owned(partition: Partition, most: int) -> list[np.ndarray]:
    """Returns an array of indices for each client.

    Raises:
        UserError: if a client's indices are not integers in one dimension, or if there are more than ``most`` clients.
    """
    is_one = isinstance(partition, (str, bytes, Mapping)) or getattr(partition, "ndim", 1) == 0
    if is_one or not isinstance(partition, Iterable):
        raise UserError(f"partition: {type(partition).__name__}, expected for each client the indices of its examples")
    arrays = []
    for client, rows in enumerate(partition):
        if client == most:
            raise UserError(f"partition: more than {most} clients, use fewer")
        rows = as_array(f"partition: client {client}", rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise UserError(
                f"partition: client {client} has {rows.dtype}{list(rows.shape)}; expected integers in one dimension"
            )
        arrays.append(rows)
    return arrays


def as_table(parts: Sequence[np.ndarray], capacity: int) -> Ownership:
    """Returns the rows of all clients, padded to ``capacity`` columns."""
    rows = np.zeros((len(parts), capacity), np.int32)
    for client, owned in enumerate(parts):
        rows[client, : len(owned)] = owned
    return Ownership(*jax.device_put((rows, np.array([len(owned) for owned in parts], np.int32))))


def rows_of(table: Ownership) -> list[np.ndarray]:
    """Returns the rows of each client, without padding."""
    if isinstance(table.rows, Store):
        firsts = table.rows.offsets[:-1].tolist()
        return [np.arange(first, first + size) for first, size in zip(firsts, table.sizes.tolist(), strict=True)]
    rows, sizes = map(np.asarray, table)
    return [own[:size] for own, size in zip(rows, sizes, strict=True)]


def rows_in_proportion(of_class: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Selects as many rows as possible in proportion to ``counts``, at least one of the most frequent class."""
    scale = min((len(rows) / count for rows, count in zip(of_class, counts, strict=True) if count), default=0)
    sizes_of_class = np.floor(scale * counts + 1e-9).astype(int)
    sizes_of_class[counts.argmax()] = max(sizes_of_class[counts.argmax()], 1)
    return np.sort(np.concatenate([rows[:count] for rows, count in zip(of_class, sizes_of_class, strict=True)]))
