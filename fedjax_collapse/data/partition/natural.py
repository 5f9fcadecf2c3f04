"""Partitions of data with natural clients, and Pachinko allocation; ``partition.py`` has them among its own.

Arguments are as in ``partition.py``.

Args:
    labels: the class of each example.
    num_clients: the number of clients.
    alpha: concentration of the Dirichlet distribution; small is heterogeneous.
    seed: seed of the draw.
    owners: the natural client of each example, an integer from 0.
    min_size: fewest examples of a client; the draw is repeated until each has them.
    max_tries: the most draws before it is an error.
"""

import numpy as np
from jaxtyping import Int

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import class_holders
from fedjax_collapse.data.class_holders import Concentration, Labels, Partition, check_num_clients, rows_by_class
from fedjax_collapse.schema.options import Count, Natural, Seed, checked


@checked
def given(
    labels: Labels,
    num_clients: int,
    owners: Int[np.ndarray, " rows"],
    seed: Seed = 0,
    min_size: Count = 1,
    draw: bool = False,
) -> Partition:
    """The clients among which the data source is divided already: the natural ones, or those of ``pfllib``.

    Independent of the seed, except for ``draw``.

    Args:
        min_size: fewest examples of a client; clients with fewer, and their examples, are left out.
        draw: whether to draw ``num_clients`` of them, if there are more, which keep their order.

    Raises:
        UserError: if there is not an owner for each example, or if it is another number of clients.
    """
    _check_owners(labels, owners)
    parts = [rows for rows in rows_by_class(owners) if len(rows) >= min_size]
    count = len(parts)
    if draw and 0 < num_clients < count:
        return [parts[i] for i in np.sort(np.random.default_rng(seed).choice(count, num_clients, replace=False))]
    if num_clients != count:
        least = f" with at least {min_size} examples" if min_size > 1 else ""
        drawn = f", or partition.draw=True for {num_clients} random ones" if 0 < num_clients < count else ""
        raise UserError(f"clients: {num_clients} clients but {count} in the data{least}; use clients={count}{drawn}")
    return parts


@checked
def dirichlet_of_owners(
    labels: Labels,
    num_clients: int,
    owners: Int[np.ndarray, " rows"],
    alpha: Concentration,
    seed: Seed = 0,
    min_size: Natural = 10,
    balance: bool = True,
    max_tries: Count = 1000,
) -> Partition:
    """Skew of persons: the examples of each natural client are divided among the clients by a draw from Dir(alpha).

    It is ``dirichlet`` with natural clients in place of classes. At small alpha almost all of a person's examples are
    at one client, so that a client is a group of persons.

    Args:
        balance: whether a client that already holds an equal share of all examples gets none of the next person's.

    Raises:
        UserError: as in ``dirichlet``; if there is not an owner for each example.
    """
    _check_owners(labels, owners)
    return class_holders.divide_classes(owners, num_clients, alpha, seed, min_size, balance, max_tries)


@checked
def pachinko(
    labels: Labels,
    num_clients: int,
    coarse_labels: Int[np.ndarray, " rows"],
    alpha: Concentration = 0.1,
    fine_alpha: Concentration = 10.0,
    size: Natural = 0,
    seed: Seed = 0,
) -> Partition:
    """Label skew over two levels of classes: Pachinko allocation, as TensorFlow Federated divides CIFAR-100.

    Each client draws a prior over coarse classes from Dir(alpha), and one over the classes below each from
    Dir(fine_alpha). It draws a coarse class, then a class below it, and takes one of its examples, without replacement.
    A class without examples left no longer counts, and the others below its coarse class are weighted up. TFF has 500
    clients of 100 examples, and 100 clients of the test part.

    Args:
        coarse_labels: the class above the class of each example, such as 20 of CIFAR-100.
        fine_alpha: concentration of the distribution over the classes below a coarse one.
        size: examples of a client; 0 is an equal part, rounded down. Other examples have no owner.

    Raises:
        UserError: if a class is below two coarse ones, or if there are too few examples.
    """
    if len(coarse_labels) != len(labels):
        raise UserError(f"partition: {len(labels)} examples need as many coarse labels, got {len(coarse_labels)}")
    check_num_clients(labels, num_clients, max(size, 1))
    rows_of_class, (_, coarse) = rows_by_class(labels), np.unique(coarse_labels, return_inverse=True)
    for rows in rows_of_class:
        if len(np.unique(coarse[rows])) > 1:
            raise UserError(
                f"partition: class {labels[rows[0]]} is below several coarse classes, such as "
                f"{', '.join(map(str, np.unique(coarse_labels[rows])[:2]))}; expected one"
            )
    above = coarse[[rows[0] for rows in rows_of_class]]
    size, rng = size or len(labels) // num_clients, np.random.default_rng(seed)
    return class_holders.take_by_tree(rows_of_class, above, num_clients, size, alpha, fine_alpha, rng)


def _check_owners(labels, owners):
    if len(owners) != len(labels) or owners.min(initial=0) < 0:
        raise UserError(f"partition: {len(labels)} examples need as many owners, integers from 0, got {len(owners)}")
