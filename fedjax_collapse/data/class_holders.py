"""Assignment of classes to clients, and of their examples.

``balanced``, ``niid`` and ``sequential`` return [clients, classes] bool: True if the client holds the class.
``divide_classes`` draws from Dirichlet distributions, and ``take`` draws classes by weights.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Int

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import Interval

Labels = Int[np.ndarray, " examples"]
Partition = Sequence[np.ndarray]

Concentration = Annotated[float, Interval(0, ends="(]", advice="small is heterogeneous, use iid for alpha = infinity")]


def rows_by_class(labels: Labels) -> list[np.ndarray]:
    """Returns the rows of each class that occurs, in their order."""
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1]) if len(sizes) else []


def check_num_clients(labels: Labels, num_clients: int, min_size: int) -> None:
    """Raises UserError if there are no clients, or fewer than ``min_size`` examples for each."""
    if num_clients < 1:
        raise UserError(f"clients: {num_clients} is too small, expected >= 1")
    if num_clients * min_size > len(labels):
        raise UserError(
            f"clients: {num_clients} clients with at least {min_size} examples each need {num_clients * min_size}, "
            f"but there are {len(labels)}; use at most {len(labels) // min_size} clients"
        )


def balanced(num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Each client in turn takes the classes that lack most holders; numbers of holders differ by at most one."""
    quota, remainder = divmod(num_clients * classes_per_client, num_classes)
    lacking = np.full(num_classes, quota)
    lacking[rng.permutation(num_classes)[:remainder]] += 1
    holds = np.zeros((num_clients, num_classes), bool)
    for row in holds:
        order = np.lexsort((rng.random(num_classes), -lacking))  # ties are broken at random
        row[order[:classes_per_client]] = True
        lacking -= row
    return holds


def niid(num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.Generator) -> np.ndarray:
    """NIID-Bench: client i holds class i (modulo the number of classes); its other classes are drawn uniformly.

    With fewer clients than classes, some classes may have no holder.
    """
    order = rng.random((num_clients, num_classes))
    clients = np.arange(num_clients)
    order[clients, clients % num_classes] = -1
    return _smallest(order, classes_per_client)


def sequential(num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.Generator) -> np.ndarray:
    """FedMR: slots are filled with classes 0, 1, 2, ... until each has a holder, and then uniformly."""
    order = rng.random((num_clients, num_classes))
    slots = np.arange(min(num_classes, num_clients * classes_per_client))
    order[slots // classes_per_client, slots] = -1
    return _smallest(order, classes_per_client)


def split_among(rows_of_class: list[np.ndarray], holds: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns the rows of each client: each class is shuffled and divided evenly among its holders.

    Raises:
        UserError: if a class has fewer examples than holders.
    """
    parts = [[] for _ in holds]
    for label, rows in enumerate(rows_of_class):
        holders = np.flatnonzero(holds[:, label])
        if len(rows) < len(holders):
            raise UserError(
                f"partition: class {label} has {len(rows)} examples for {len(holders)} clients; use fewer clients or "
                f"fewer classes per client"
            )
        for client, share in zip(holders, np.array_split(rng.permutation(rows), len(holders)), strict=True):
            parts[client].append(share)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def draw_shards(
    labels: np.ndarray, num_clients: int, shards_per_client: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the rows of each client: random shards of the examples sorted by class.

    Raises:
        UserError: if there are fewer examples than shards, or no shards.
    """
    if shards_per_client < 1 or num_clients * shards_per_client > len(labels):
        raise UserError(
            f"partition: {num_clients} clients with {shards_per_client} shards each cannot be cut from {len(labels)} "
            f"examples; expected 1 to {len(labels) // num_clients} shards per client"
        )
    rows = rng.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    shards = np.array_split(rows, num_clients * shards_per_client)
    assigned = rng.permutation(len(shards)).reshape(num_clients, shards_per_client)
    return [rng.permutation(np.concatenate([shards[i] for i in own])) for own in assigned]


def check_room(num_clients: int, num_classes: int, classes_per_client: int) -> None:
    """Raises UserError if the clients have too few slots to hold all classes."""
    if not 1 <= classes_per_client <= num_classes:
        raise UserError(f"partition: {classes_per_client} classes per client, expected 1 to {num_classes}")
    if num_clients * classes_per_client < num_classes:
        raise UserError(
            f"partition: {num_clients} clients with {classes_per_client} classes each have room for "
            f"{num_clients * classes_per_client} of {num_classes} classes; use at least "
            f"{-(-num_classes // num_clients)} classes per client or {-(-num_classes // classes_per_client)} clients"
        )


def _smallest(order, count):
    """Returns a mask of the ``count`` smallest entries of each row."""
    return np.argsort(np.argsort(order, axis=1), axis=1) < count


def draw_until(
    draw: Callable[[], Partition | None], labels: Labels, num_clients: int, alpha: float, min_size: int, max_tries: int
) -> Partition:
    """Calls ``draw`` until it returns a partition instead of None, and returns the partition.

    Raises:
        UserError: if there are too few examples, or if ``max_tries`` draws were not enough.
    """
    check_num_clients(labels, num_clients, max(min_size, 1))
    for _ in range(max_tries):
        if (parts := draw()) is not None:
            return parts
    raise UserError(
        f"partition: no draw of {max_tries} gave each of {num_clients} clients {min_size} of {len(labels)} examples at "
        f"alpha {alpha:g}; raise alpha, lower min_size, or use fewer clients"
    )


def divide_classes(
    labels: Labels, num_clients: int, alpha: float, seed: int | np.random.Generator, min_size: int, balance: bool,
    max_tries: int, holds: np.ndarray | None = None,
) -> Partition:  # fmt: skip
    """Divides each class by Dir(alpha), and repeats this until every client has ``min_size`` examples, which are
    shuffled.

    ``balance`` leaves out clients that already have an equal share of all examples. ``holds`` [clients, classes] leaves
    out clients without the class.

    Raises:
        UserError: as in ``draw_until``.
    """
    rng, rows_of_class = np.random.default_rng(seed), rows_by_class(labels)

    def draw():
        sizes, cuts = np.zeros(num_clients, int), []
        for label, rows in enumerate(rows_of_class):
            rows = rng.permutation(rows)
            shares = rng.dirichlet(np.full(num_clients, alpha))
            if balance:
                shares *= sizes < len(labels) / num_clients
            if holds is not None:
                shares *= holds[:, label]
            if not shares.sum() > 0:  # also when all shares underflow at very small alpha
                return None
            bounds = np.cumsum(shares / shares.sum())
            bounds[np.flatnonzero(shares)[-1] :] = 1  # rounding must not assign a row to a client without a share
            bounds = (bounds[:-1] * len(rows)).astype(int)
            sizes += np.diff(bounds, prepend=0, append=len(rows))
            cuts.append((rows, bounds))
        if sizes.min() < min_size:
            return None
        return [rng.permutation(np.concatenate(own)) for own in zip(*(np.split(*cut) for cut in cuts), strict=True)]

    return draw_until(draw, labels, num_clients, alpha, min_size, max_tries)


def take(bounds: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> int:
    """Draws a class, with the differences of ``bounds`` as weights, and takes one of the examples that are ``left``."""
    draw = min(rng.random() * bounds[-1], np.nextafter(bounds[-1], 0))  # rounding must not reach the last bound
    label = np.searchsorted(bounds, draw, side="right")
    left[label] -= 1
    return label


def tree_weights(prior: np.ndarray, below: np.ndarray, coarse: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Returns weights [classes], 0 without examples left; their numbers ``left`` if the prior gives only zeros."""
    below = below * (left > 0)
    total = np.bincount(coarse, below, minlength=len(prior))[coarse]
    weights = prior[coarse] * np.divide(below, total, out=np.zeros(len(left)), where=total > 0)
    return weights if weights.sum() > 0 else left.astype(float)
