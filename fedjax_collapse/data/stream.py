"""A data set that is read client by client, in bounded memory; ``collect`` reads it into memory."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.listings import reason_of
from fedjax_collapse.data.reading.natural_clients import Client, check_client, number_clients
from fedjax_collapse.data.reading.tables.tabular import numbered
from fedjax_collapse.data.sources import normalisations


class ClientExamples(NamedTuple):
    """Examples of one client, at least one."""

    client: Client | None  # None if it is not known, of test examples
    inputs: np.ndarray
    labels: np.ndarray
    rows: list[int] | None = None  # the places of the examples in their file, if they are known


class Stream(NamedTuple):
    """A data set, read client by client.

    ``train(first)`` returns an iterator over the clients from position ``first`` on, in a fixed order; ``test`` returns
    an iterator over the test examples, in which a client may occur several times.
    """

    where: str  # for messages
    train: Callable[[int], Iterator[ClientExamples]]
    test: Callable[[], Iterator[ClientExamples]]
    num_clients: int | None = None  # for progress, if known
    class_names: tuple[str, ...] | None = None  # None for 0 to the largest label
    task: str = "classification"
    normalisation: str | tuple = ""  # of images by name, or mean and standard deviation; empty for none
    by_row: bool = False  # whether ``collect`` has the examples in the order of their ``rows``
    are_named: bool = True  # whether clients have names, and not numbers only


def class_names_of(stream: Stream) -> tuple[str, ...]:
    """Returns the names of the classes. If they are numbers, all training labels are read.

    Raises:
        UserError: as in ``numbered``.
    """
    if stream.class_names is not None:
        return stream.class_names
    largest, rows = 0, 0
    for examples in stream.train(0):
        largest, rows = max(largest, int(examples.labels.max())), rows + len(examples.labels)
    return tuple(numbered(stream.where, np.append(largest, np.zeros(rows - 1, int))))


def mean_and_std_of(stream: Stream, inputs: np.ndarray) -> tuple[float | tuple, float | tuple] | tuple[None, None]:
    """Returns mean and standard deviation of the inputs; two None for none."""
    if isinstance(stream.normalisation, tuple):
        return stream.normalisation
    return normalisations.mean_and_std(stream.normalisation, inputs.shape[-1]) if stream.normalisation else (None, None)


def check_shape(expected: tuple[int, ...], inputs: np.ndarray) -> None:
    """Raises ValueError if inputs differ in shape from the first ones."""
    if inputs.shape[1:] != expected:
        raise ValueError(f"inputs of {inputs.shape[1:]}, but the first ones are {expected}")


def encoded(
    clients: Iterable[tuple[str, str, Any]], read: Callable[[Any], tuple], first: int, hint: str
) -> Iterator[ClientExamples]:
    """Yields clients from position ``first`` on, with the inputs and labels, or also rows, of ``read(content)``.

    Args:
        clients: the place of each client, for messages, its name, and its content.
        read: raises an exception if the content is not as expected.
        first: a position.
        hint: ends the messages.

    Raises:
        UserError: a client cannot be read, or its inputs have another shape than the first client's.
    """
    shape = None
    for where, client, content in itertools.islice(clients, first, None):
        check_client(f"{where}: it", client)
        try:
            inputs, labels, *rows = read(content)
            if len(inputs) != len(labels) or not len(inputs):
                raise ValueError(f"{len(inputs)} inputs for {len(labels)} labels")
            check_shape(shape := shape or inputs.shape[1:], inputs)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UserError(f"{where}: user {client}: {reason_of(error)}; {hint}") from None
        yield ClientExamples(client, inputs, labels, *rows)


def collect(stream: Stream) -> Arrays:
    """Reads all clients; returns the fields of ``Source``, without a normalisation by name.

    Raises:
        UserError: if a part has no examples, if inputs of the parts differ in shape, or if the class of a test example
            does not exist; as in ``numbered``.
    """
    arrays: Arrays = {"task": np.array(stream.task)}
    clients = []
    for prefix in ("", "test_"):
        part = list(stream.test() if prefix else stream.train(0))
        if not part:
            raise UserError(f"{stream.where}: it has no {'test' if prefix else 'training'} examples; fetch it again")
        owners = [examples.client for examples in part for _ in examples.labels]
        inputs, labels = (np.concatenate(each) for each in list(zip(*part, strict=True))[1:3])
        if stream.by_row:
            order = np.argsort(np.concatenate([examples.rows for examples in part]))
            owners, inputs, labels = [owners[row] for row in order], inputs[order], labels[order]
        arrays |= {f"{prefix}images": inputs, f"{prefix}labels": labels}
        clients.append(owners)
    shape, test_shape = (arrays[name].shape[1:] for name in ("images", "test_images"))
    if shape != test_shape:
        raise UserError(f"{stream.where}: training inputs are {shape}, test inputs {test_shape}")
    names = numbered(stream.where, arrays["labels"]) if stream.class_names is None else stream.class_names
    arrays["class_names"] = np.array(names, str)
    if arrays["test_labels"].ndim == 1 and (largest := arrays["test_labels"].max()) >= len(names):
        raise UserError(f"{stream.where}: test label {largest} is none of the {len(names)} classes of training")
    if isinstance(stream.normalisation, tuple):
        arrays |= dict(zip(("mean", "std"), map(np.array, stream.normalisation), strict=True))
    arrays |= number_clients(*clients)
    if not stream.are_named:
        del arrays["client_names"]
    return arrays
