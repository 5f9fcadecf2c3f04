"""Partitions: functions of labels and a seed, which return the examples of each client.

A partition is an int array of example indices for each client, in random order; together they have every example once.
Exceptions: ``domain`` with truncation, ``given``, ``pachinko`` and ``from_file`` may omit examples, and
``partially_disjoint`` with ``double_pass`` assigns them twice. PFLlib's partitions, ``pfllib_...``, are meant for
training and test examples together (``own_tests="split"``). Their random numbers are not PFLlib's.

Shared arguments:

Args:
    labels: the class of each example.
    num_clients: the number of clients.
    alpha: concentration of the Dirichlet distribution; small is heterogeneous.
    seed: seed of the draw.
    min_size: fewest examples of a client; the draw is repeated until each has them.
    max_tries: most draws before an error.
    classes_per_client: number of classes that each client holds.
    owners: the natural client of each example, an integer from 0.
    path: FLamby's file ``train_test_split``, or the JSON file of indices.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Int

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import class_holders
from fedjax_collapse.data.class_holders import Concentration, Labels, check_num_clients, rows_by_class
from fedjax_collapse.data.class_holders import Partition as Partition
from fedjax_collapse.data.reading import index_file
from fedjax_collapse.schema.options import Count, Fraction, Natural, Seed, checked

PATHOLOGICAL = ("balanced", "niid", "sequential", "shards")
_BATCH, _TEST = 10, 0.25  # PFLlib's, which its least number of examples depends on
# partitions that use only the number of labels
WITHOUT_CLASSES = ("iid", "quantity", "domain", "given", "dirichlet_of_owners", "from_file")


@checked
def iid(labels: Labels, num_clients: int, seed: Seed = 0) -> Partition:
    """A random permutation divided into ``num_clients`` parts whose sizes differ by at most one.

    Raises:
        UserError: if there are fewer examples than clients, or no clients.
    """
    check_num_clients(labels, num_clients, min_size=1)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)


@checked
def dirichlet(
    labels: Labels,
    num_clients: int,
    alpha: Concentration,
    seed: Seed = 0,
    min_size: Natural = 10,
    balance: bool = True,
    max_tries: Count = 1000,
) -> Partition:
    """Label skew: each class is divided among the clients by a draw from Dir(alpha, ..., alpha).

    This is NIID-Bench's routine, which MOON, FedDecorr, FedMR and FedUV use, with one difference: the remainder of a
    class due to rounding goes to a client with a part of that class, not always to the last client.

    Args:
        balance: whether a client that holds an equal share of all examples gets no part of the next class (not in the
            papers' text, but essential at small alpha).

    Raises:
        UserError: if alpha is not positive, if there are too many clients for the examples, or if ``max_tries`` draws
            were not enough.

    Examples:
        >>> parts = partition.dirichlet(np.arange(1000) % 10, num_clients=5, alpha=0.5)
        >>> len(parts), sum(map(len, parts))  # the rows of each client
        (5, 1000)
    """
    return class_holders.divide_classes(labels, num_clients, alpha, seed, min_size, balance, max_tries)


@checked
def dirichlet_per_client(labels: Labels, num_clients: int, alpha: Concentration, seed: Seed = 0) -> Partition:
    """Label skew at equal sizes: each client draws a class prior from Dir(alpha, ..., alpha) over the classes.

    This is the routine of FedDyn and FedDC. In random order, clients draw a class from their prior, among classes with
    examples left, and take one of its examples; sizes differ by at most one. If the prior has no weight on these
    classes, the client draws from the remaining examples. The released routine redraws instead, and may never
    terminate.

    Raises:
        UserError: if alpha is not positive, or if there are more clients than examples.
    """
    check_num_clients(labels, num_clients, min_size=1)
    rng = np.random.default_rng(seed)
    rows_of_class = [rng.permutation(rows) for rows in rows_by_class(labels)]
    left = np.array([len(rows) for rows in rows_of_class])
    priors = rng.dirichlet(np.full(len(left), alpha), num_clients)
    parts = [[] for _ in range(num_clients)]
    for client in rng.permutation(np.arange(len(labels)) % num_clients):
        bounds = np.cumsum(priors[client] * (left > 0))
        label = class_holders.take(bounds if bounds[-1] > 0 else np.cumsum(left), left, rng)
        parts[client].append(rows_of_class[label][left[label]])
    return [np.array(part) for part in parts]


@checked
def pathological(
    labels: Labels,
    num_clients: int,
    classes_per_client: int,
    seed: Seed = 0,
    method: Annotated[str, PATHOLOGICAL] = "balanced",
    max_tries: Count = 1000,
) -> Partition:
    """Label skew: each client holds a few classes; each class is divided evenly among its holders.

    FedDecorr's second table uses this setting; its text and code do not specify the assignment of classes.

    Args:
        method: ``balanced`` (numbers of holders per class differ by at most one), ``niid`` (NIID-Bench: class i and
            random others for client i, redrawn until all classes have a holder), ``sequential`` (FedMR, see
            ``partially_disjoint``), or ``shards`` (McMahan et al.: ``classes_per_client`` random equal shards of the
            examples sorted by class, so that the number of classes is approximate).

    Raises:
        UserError: if the clients have too few slots for all classes, if a class has fewer examples than holders, or if
            ``max_tries`` draws left a class without a holder.
    """
    check_num_clients(labels, num_clients, min_size=1)
    rng = np.random.default_rng(seed)
    if method == "shards":
        return class_holders.draw_shards(labels, num_clients, classes_per_client, rng)
    rows_of_class = rows_by_class(labels)
    class_holders.check_room(num_clients, len(rows_of_class), classes_per_client)
    assign = getattr(class_holders, method)
    for _ in range(max_tries):
        holds = assign(num_clients, len(rows_of_class), classes_per_client, rng)
        if holds.any(axis=0).all():
            return class_holders.split_among(rows_of_class, holds, rng)
    raise UserError(
        f"partition: no draw of {max_tries} gave each of {len(rows_of_class)} classes a holder among {num_clients} "
        f"clients with {classes_per_client} classes each; use method='balanced' or more classes per client"
    )


@checked
def partially_disjoint(
    labels: Labels, num_clients: int, classes_per_client: int, seed: Seed = 0, double_pass: bool = False
) -> Partition:
    """FedMR's partially class-disjoint data PρCς: ρ clients with ς classes each; ς = all classes is IID.

    Clients are filled in order with the classes 0, 1, 2, ... until each class has a holder; the remaining slots are
    filled with random classes that the client does not hold. Each class is divided evenly among its holders, so sizes
    differ.

    Args:
        double_pass: whether each class is divided twice, as in the released code: each example has two owners, or
            counts twice at one, which leaks data between clients.

    Raises:
        UserError: if the clients have too few slots for all classes, or if a class has fewer examples than holders.
    """
    rows_of_class = rows_by_class(labels)
    if classes_per_client == len(rows_of_class):
        return iid(labels, num_clients, seed)
    check_num_clients(labels, num_clients, min_size=1)
    class_holders.check_room(num_clients, len(rows_of_class), classes_per_client)
    rng = np.random.default_rng(seed)
    holds = class_holders.sequential(num_clients, len(rows_of_class), classes_per_client, rng)
    passes = [class_holders.split_among(rows_of_class, holds, rng) for _ in range(1 + double_pass)]
    return [np.concatenate(parts) for parts in zip(*passes, strict=True)]


@checked
def quantity(
    labels: Labels,
    num_clients: int,
    alpha: Concentration,
    seed: Seed = 0,
    min_size: Natural = 10,
    max_tries: Count = 1000,
) -> Partition:
    """Quantity skew: a random permutation, with sizes drawn from Dir(alpha, ..., alpha) (NIID-Bench).

    Raises:
        UserError: if alpha is not positive, if there are too many clients for the examples, or if ``max_tries`` draws
            were not enough.
    """
    rng = np.random.default_rng(seed)

    def draw():
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(shares).all():  # all underflow at very small alpha
            return None
        bounds = np.rint(np.cumsum(shares)[:-1] * len(labels)).astype(int)
        is_enough = np.diff(bounds, prepend=0, append=len(labels)).min() >= min_size
        return np.split(rng.permutation(len(labels)), bounds) if is_enough else None

    return class_holders.draw_until(draw, labels, num_clients, alpha, min_size, max_tries)


@checked
def domain(
    labels: Labels, num_clients: int, domains: Int[np.ndarray, " rows"], seed: Seed = 0, truncation: Fraction = 0.0
) -> Partition:
    """Feature shift: one client per domain; ``domains`` are the domains of the examples, integers from 0.

    Args:
        truncation: every client has ``floor(truncation * size of the smallest domain)`` random examples; the others
            have no owner, as in FedBN's experiments (0.5 for Office-Caltech10, 0.05 for DomainNet). 0 assigns all.

    Raises:
        UserError: if the number of clients is not the number of domains, or if a client would have no examples.
    """
    _check_given(labels, "domains", domains)
    sizes = np.bincount(domains)
    if num_clients != len(sizes):
        raise UserError(f"clients: {num_clients} clients but {len(sizes)} domains; use clients={len(sizes)}")
    kept = int(truncation * sizes.min()) if truncation else None
    if not sizes.min() or kept == 0:
        raise UserError(
            f"partition: domains of {', '.join(map(str, sizes))} examples leave a client without any; every domain "
            f"needs examples, and truncation {truncation:g} needs {1 / truncation if truncation else 1:.0f} of them"
        )
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.flatnonzero(domains == client))[:kept] for client in range(num_clients)]


@checked
def from_file(labels: Labels, num_clients: int, path: str | Path, seed: Seed = 0, repeated: bool = False) -> Partition:
    """A partition from a JSON file: a list with one list of example indices per client, independent of the seed.

    The file may also hold an object with a list for each client; its keys are the clients' numbers, from 0, or names.
    Examples that are not listed have no owner.

    Args:
        repeated: whether an example may be listed more than once.

    Raises:
        UserError: if the file is not such a list, is for other data or another number of clients, or lists an example
            twice.
    """
    parts = index_file.read_indices(path, len(labels), repeated)
    if len(parts) != num_clients:
        raise UserError(f"clients: {num_clients} clients but {len(parts)} in {path}; use clients={len(parts)}")
    return parts


@checked
def isic2019(labels: Labels, num_clients: int, path: str | Path, seed: Seed = 0) -> Partition:
    """The six centres of FLamby's ISIC2019, from its ``train_test_split`` file: one client per centre.

    The examples are the training images in the order of that file; this is checked by their labels.

    Raises:
        UserError: if it is another file, if the labels are not the labels of its training images, or if there are not
            six clients.
    """
    _, targets, centers = map(np.array, zip(*index_file.read_isic2019(path, "train"), strict=True))
    if not np.array_equal(targets, labels):
        raise UserError(
            f"{path}: its {len(targets)} training images are not the {len(labels)} examples of the data; "
            f"expected them in the order of the file"
        )
    return domain(labels, num_clients, centers, seed)


@checked
def given(
    labels: Labels,
    num_clients: int,
    owners: Int[np.ndarray, " rows"],
    seed: Seed = 0,
    min_size: Count = 1,
    draw: bool = False,
) -> Partition:
    """The clients of the data source: natural clients, or the clients of ``pfllib``.

    Independent of the seed, except for ``draw``.

    Args:
        min_size: fewest examples of a client; smaller clients are left out.
        draw: whether to draw ``num_clients`` of the clients, in their order, if there are more.

    Raises:
        UserError: if an example has no owner, or if the number of clients differs.
    """
    _check_given(labels, "owners", owners)
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

    It is ``dirichlet`` with natural clients instead of classes. At small alpha almost all examples of a person are at
    one client, which is a group of persons.

    Args:
        balance: whether a client that holds an equal share of all examples gets none of the next person's.

    Raises:
        UserError: as in ``dirichlet``; if an example has no owner.
    """
    _check_given(labels, "owners", owners)
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

    Each client draws a prior over coarse classes from Dir(alpha), and for each of them a prior over its classes from
    Dir(fine_alpha). It draws a coarse class, then one of its classes, then an example without replacement. Priors are
    renormalised over classes with examples left. TFF has 500 clients of 100 examples, and 100 clients of the test part.

    Args:
        coarse_labels: the class above the class of each example, such as 20 of CIFAR-100.
        fine_alpha: concentration of the distribution over the classes below a coarse class.
        size: examples of a client; 0 is an equal part, rounded down. Other examples have no owner.

    Raises:
        UserError: if a class has two coarse classes, or if there are too few examples.
    """
    _check_given(labels, "coarse labels", coarse_labels)
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
    rows_of_class, parts = [rng.permutation(rows) for rows in rows_of_class], []
    left = np.array([len(rows) for rows in rows_of_class])
    for _ in range(num_clients):
        prior, below = rng.dirichlet(np.full(above.max() + 1, alpha)), rng.gamma(fine_alpha, size=len(left))
        bounds, own = None, []
        for _ in range(size):
            if bounds is None:
                bounds = np.cumsum(class_holders.tree_weights(prior, below, above, left))
            label = class_holders.take(bounds, left, rng)
            own.append(rows_of_class[label][left[label]])
            if not left[label]:
                bounds = None
        parts.append(np.array(own))
    return parts


def _check_given(labels, what, values):
    if len(values) != len(labels) or values.min(initial=0) < 0:
        raise UserError(f"partition: {len(labels)} examples need as many {what}, integers from 0, got {len(values)}")


@checked
def pfllib_dir(
    labels: Labels,
    num_clients: int,
    alpha: Concentration,
    seed: Seed = 0,
    min_size: Natural | None = None,
    max_tries: Count = 10_000,
) -> Partition:
    """Label skew: PFLlib's ``dir``, which is ``dirichlet`` with ``balance`` and a larger least size.

    PFLlib has alpha 0.1, and no limit of draws: 20 clients of the 1,797 digits took 427.

    Args:
        min_size: fewest examples of a client; the draw is repeated until each has them. None is PFLlib's rule, the
            smaller of 40 and half of an equal share.

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

    Classes are assigned in order, so that the first clients share the first classes; a client takes a contiguous part
    of a class. PFLlib has 2 of 10 classes, 10 of 100 and 20 of 200; all classes are its ``iid``.

    Args:
        balance: whether a class is divided evenly; otherwise, for m examples per holder, sizes are uniform from m / 10
            to m, at least PFLlib's least size over the number of classes, and the last holder takes the rest.

    Raises:
        UserError: if a class would have no client, or too few examples for its clients.
    """
    check_num_clients(labels, num_clients, min_size=1)
    rng, rows_of_class = np.random.default_rng(seed), rows_by_class(labels)
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

    The classes are redrawn until each has at least half of the mean number of clients, and at least one; then the
    division is redrawn until every client has ``min_size`` examples. PFLlib has no limit of draws.

    Raises:
        UserError: if alpha is not positive, or if ``max_tries`` draws were not enough.
    """
    check_num_clients(labels, num_clients, max(min_size, 1))
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
    """Returns the numbers of examples, out of ``count`` of a class, of all holders but the last."""
    even = count / holders
    low, high = (even, even + 1) if balance else (max(even / 10, least), even)
    low, high = max(int(low), 1), int(high)
    if holders > 1 and low >= high:
        raise UserError(
            f"partition pfllib_pat: class {label} has {count} examples for {holders} clients that take at least {low} "
            f"each; use fewer clients or classes per client, or balance=True"
        )
    return rng.integers(low, high, holders - 1)
