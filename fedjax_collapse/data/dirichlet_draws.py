"""Draws of partitions with label skew from Dirichlet distributions."""

from collections.abc import Sequence

import numpy as np


def divide_classes(
    rows_of_class: Sequence[np.ndarray],
    num_examples: int,
    num_clients: int,
    alpha: float,
    min_size: int,
    balance: bool,
    rng: np.random.Generator,
) -> list[np.ndarray] | None:
    """One draw, or None if no client may take a class, or if a client has fewer than ``min_size`` examples."""
    sizes, cuts = np.zeros(num_clients, int), []
    for rows in rows_of_class:
        rows = rng.permutation(rows)
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if balance:
            shares *= sizes < num_examples / num_clients
        if not shares.sum() > 0:  # also when all shares underflow at very small alpha
            return None
        bounds = np.cumsum(shares / shares.sum())
        bounds[np.flatnonzero(shares)[-1] :] = 1  # rounding must not assign a row to a client without a share
        bounds = (bounds[:-1] * len(rows)).astype(int)
        sizes += np.diff(bounds, prepend=0, append=len(rows))
        cuts.append((rows, bounds))
    if sizes.min() < min_size:
        return None
    return [np.concatenate(shares) for shares in zip(*(np.split(*cut) for cut in cuts), strict=True)]


def take_by_priors(
    rows_of_class: Sequence[np.ndarray], num_clients: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """The rows of each client, which in random order take one by one from classes drawn by their priors."""
    rows_of_class = [rng.permutation(rows) for rows in rows_of_class]
    left = np.array([len(rows) for rows in rows_of_class])
    priors = rng.dirichlet(np.full(len(left), alpha), num_clients)
    parts = [[] for _ in range(num_clients)]
    for client in rng.permutation(np.arange(sum(map(len, rows_of_class))) % num_clients):
        weights = priors[client] * (left > 0)
        bounds = np.cumsum(weights)
        if not bounds[-1] > 0:
            bounds = np.cumsum(left)
        draw = min(rng.random() * bounds[-1], np.nextafter(bounds[-1], 0))  # rounding must not reach the last bound
        label = np.searchsorted(bounds, draw, side="right")
        left[label] -= 1
        parts[client].append(rows_of_class[label][left[label]])
    return [np.array(part) for part in parts]
