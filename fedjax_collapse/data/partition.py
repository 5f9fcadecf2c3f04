"""Partitions: who owns which example, as pure functions of labels and a seed.

Every partition returns one int array of example indices per client, in random order; together they cover every example
exactly once.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from fedjax_collapse.records import UserError

Labels = Int[np.ndarray, " examples"]
Partition = Sequence[np.ndarray]


def iid(labels: Labels, num_clients: int, seed: int = 0) -> Partition:
    """A random permutation cut into ``num_clients`` parts whose sizes differ by at most one.

    Raises:
        UserError: fewer examples than clients, or no client.
    """
    _check_num_clients(labels, num_clients, min_size=1)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)


def dirichlet(
    labels: Labels,
    num_clients: int,
    alpha: float,
    seed: int = 0,
    min_size: int = 10,
    balance: bool = True,
    max_tries: int = 1000,
) -> Partition:
    """Label skew: every class is divided over the clients by a draw from Dir(alpha, ..., alpha).

    The routine of NIID-Bench that MOON, FedDecorr, FedMR and FedUV use. With ``balance``, a client that already holds
    its even share of all examples gets no part of the next class (not in the papers' text, but essential at small
    alpha). The draw is repeated until every client holds ``min_size`` examples. Unlike the released routine, what is
    left of a class by rounding goes to a client that takes part in its division, not always to the last one.

    Raises:
        UserError: alpha is not positive, more clients than examples allow, or ``max_tries`` draws were not enough.
    """
    if not alpha > 0:
        raise UserError(
            f"partition: alpha {alpha:g} is not positive; small is heterogeneous, use iid for alpha = infinity"
        )
    _check_num_clients(labels, num_clients, max(min_size, 1))
    rng = np.random.default_rng(seed)
    for _ in range(max_tries):
        parts = _draw_dirichlet(labels, num_clients, alpha, balance, rng)
        if parts is not None and min(map(len, parts)) >= min_size:
            return [rng.permutation(part) for part in parts]
    raise UserError(
        f"partition: no draw of {max_tries} gave each of {num_clients} clients {min_size} of {len(labels)} examples at "
        f"alpha {alpha:g}; raise alpha, lower min_size, or use fewer clients"
    )


def _draw_dirichlet(labels, num_clients, alpha, balance, rng):
    """One draw, or None if a class found no client that may take it."""
    parts = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if balance:
            shares *= [sum(map(len, part)) < len(labels) / num_clients for part in parts]
        if not shares.sum() > 0:  # also when all shares underflow at very small alpha
            return None
        bounds = np.cumsum(shares / shares.sum())
        bounds[np.flatnonzero(shares)[-1] :] = 1  # float error must not leave a row to a client without a share
        for part, rows_of_part in zip(parts, np.split(rows, (bounds[:-1] * len(rows)).astype(int)), strict=True):
            part.append(rows_of_part)
    return [np.concatenate(part) for part in parts]


def _check_num_clients(labels, num_clients, min_size):
    if num_clients < 1:
        raise UserError(f"clients: {num_clients} is too small, expected >= 1")
    if num_clients * min_size > len(labels):
        raise UserError(
            f"clients: {num_clients} clients with at least {min_size} examples each need {num_clients * min_size}, "
            f"but there are {len(labels)}; use at most {len(labels) // min_size} clients"
        )
