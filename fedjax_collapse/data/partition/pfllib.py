"""PFLlib's partitions of a pool of all examples, by its data generators; ``partition.py`` has them among its own.

They are meant for training and test examples together (``own_tests="split"``): every client is then tested on a part of
its own. Random numbers are NumPy's with our seeds, so that the draw is another one than PFLlib's. Arguments are as in
``partition.py``.

Args:
    labels: the class of each example.
    num_clients: the number of clients.
    alpha: concentration of the Dirichlet distribution; small is heterogeneous.
    seed: seed of the draw.
    min_size: fewest examples of a client; the draw is repeated until each has them.
    max_tries: the most draws before it is an error.
    classes_per_client: number of classes that each client holds.
"""

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import class_holders
from fedjax_collapse.data.class_holders import Concentration, Labels, Partition
from fedjax_collapse.schema.options import Count, Natural, Seed, checked

_BATCH, _TEST = 10, 0.25  # PFLlib's, which its least number of examples depends on


@checked
def pfllib_dir(
    labels: Labels,
    num_clients: int,
    alpha: Concentration,
    seed: Seed = 0,
    min_size: Natural | None = None,
    max_tries: Count = 10_000,
) -> Partition:
    """Label skew: PFLlib's ``dir``, which is ``dirichlet`` with the limit of an even share and a larger least size.

    PFLlib has alpha 0.1, and draws without an end: 427 times for 20 clients of the 1,797 digits.

    Args:
        min_size: fewest examples of a client; the whole draw is repeated until each has them. None is PFLlib's rule,
            the smaller of 40 and half of an even share.

    Raises:
        UserError: as in ``dirichlet``.
    """
    least = _least(labels, num_clients) if min_size is None else min_size
    return class_holders.divide_classes(labels, num_clients, alpha, seed, least, True, max_tries)


@checked
def pfllib_pat(
    labels: Labels, num_clients: int, classes_per_client: int = 2, seed: Seed = 0, balance: bool = False
) -> Partition:
    """Label skew: PFLlib's ``pat``: each class goes to the first ``clients * classes_per_client / classes`` with room.

    Classes are handed out in order, so that clients 0, 1, ... share the first ones; a client takes a contiguous part of
    a class. PFLlib has 2 of 10 classes, 10 of 100 and 20 of 200; all classes are its ``iid``.

    Args:
        balance: whether a class is divided evenly; otherwise its m examples per holder become uniform sizes from
            m / 10 to m, at least PFLlib's least size over the number of classes, and the last holder takes the rest.

    Raises:
        UserError: if a class would have no client, or too few examples for its clients.
    """
    class_holders.check_num_clients(labels, num_clients, min_size=1)
    rng, rows_of_class = np.random.default_rng(seed), class_holders.rows_by_class(labels)
    num_classes = len(rows_of_class)
    class_holders.check_room(num_clients, num_classes, classes_per_client)
    holders = -(-num_clients * classes_per_client // num_classes)
    room, parts = np.full(num_clients, classes_per_client), [[] for _ in range(num_clients)]
    least = 0 if balance else _least(labels, num_clients) / num_classes
    for label, rows in enumerate(rows_of_class):
        chosen = np.flatnonzero(room)[:holders]
        if not len(chosen):
            raise UserError(
                f"partition pfllib_pat: classes {label} to {num_classes - 1} find no client with room, as {holders} "
                f"clients hold each earlier one; make clients * classes_per_client ({num_clients} * "
                f"{classes_per_client}) a multiple of the {num_classes} classes"
            )
        sizes = _sizes(label, len(rows), len(chosen), least, balance, rng)
        for client, part in zip(chosen, np.split(rows, np.cumsum(sizes)), strict=True):
            parts[client].append(part)
        room[chosen] -= 1
    return [rng.permutation(np.concatenate(part)) for part in parts]


@checked
def pfllib_exdir(
    labels: Labels,
    num_clients: int,
    alpha: Concentration,
    classes_per_client: int = 2,
    seed: Seed = 0,
    min_size: Natural = 10,
    max_tries: Count = 10_000,
) -> Partition:
    """Label skew: PFLlib's ``exdir``: each client draws some classes; Dir(alpha) divides a class among its clients.

    The classes are redrawn until each has half of its even number of clients, at least one; then the division is
    redrawn until every client has ``min_size`` examples, without a limit of its size. PFLlib draws without an end.

    Raises:
        UserError: if alpha is not positive, or if ``max_tries`` draws were not enough.
    """
    class_holders.check_num_clients(labels, num_clients, max(min_size, 1))
    num_classes = len(np.unique(labels))
    class_holders.check_room(num_clients, num_classes, classes_per_client)
    rng = np.random.default_rng(seed)
    least = max(classes_per_client * num_clients // num_classes // 2, 1)
    for _ in range(max_tries):
        holds = np.argsort(rng.random((num_clients, num_classes)), axis=1) < classes_per_client
        if holds.sum(axis=0).min() >= least:
            return class_holders.divide_classes(labels, num_clients, alpha, rng, min_size, False, max_tries, holds)
    raise UserError(
        f"partition pfllib_exdir: no draw of {max_tries} gave each of {num_classes} classes {least} of {num_clients} "
        f"clients with {classes_per_client} classes each; raise classes_per_client or the number of clients"
    )


def _least(labels, num_clients):
    """Returns the fewest examples that PFLlib gives a client."""
    return int(min(_BATCH / _TEST, len(labels) / (2 * max(num_clients, 1))))


def _sizes(label, count, holders, least, balance, rng):
    """Returns how many of the ``count`` examples of a class its holders but the last take."""
    even = count / holders
    low, high = (even, even + 1) if balance else (max(even / 10, least), even)
    low, high = max(int(low), 1), int(high)
    if holders > 1 and low >= high:
        raise UserError(
            f"partition pfllib_pat: class {label} has {count} examples for {holders} clients that take at least {low} "
            f"each; use fewer clients or classes per client, or balance=True"
        )
    return rng.integers(low, high, holders - 1)
