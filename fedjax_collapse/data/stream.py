"""A data set that is read client by client, in bounded memory; ``streams.py`` has those of sources."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.clients.natural_clients import Client, number_clients
from fedjax_collapse.data.reading.tables.tabular import numbered
from fedjax_collapse.data.sources import normalisations


class ClientExamples(NamedTuple):
    """Examples of one client, at least one."""

    client: Client | None  # None if it is not known, of test examples
    inputs: np.ndarray
    labels: np.ndarray


class Stream(NamedTuple):
    """A data set, read client by client.

    ``train`` returns an iterator over all clients in an order that is always the same, without the first ones;
    ``test`` one over the test examples, of which a client may have several portions.
    """

    where: str  # for messages
    train: Callable[[int], Iterator[ClientExamples]]
    test: Callable[[], Iterator[ClientExamples]]
    num_clients: int | None = None  # if it is known, for what is shown
    class_names: tuple[str, ...] | None = None  # None for 0 to the largest label
    task: str = "classification"
    normalisation: str | tuple = ""  # of images by name, or mean and standard deviation; empty for none


def class_names_of(stream: Stream) -> tuple[str, ...]:
    """Returns the names of the classes; where they are numbers, all training labels are read for them.

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
    """Returns the normalisation of the inputs; two None for none."""
    if isinstance(stream.normalisation, tuple):
        return stream.normalisation
    return normalisations.mean_and_std(stream.normalisation, inputs.shape[-1]) if stream.normalisation else (None, None)


def gather(stream: Stream) -> Arrays:
    """Reads the fields of ``Source``.

    Raises:
        UserError: if there are no test examples, or if one of them has none of the classes; as in ``class_names_of``.
    """
    arrays: Arrays = {"class_names": np.array(class_names_of(stream), str)}
    clients = []
    for prefix, part in (("", list(stream.train(0))), ("test_", list(stream.test()))):
        if not part:
            raise UserError(f"{stream.where}: it has no {'test' if prefix else 'training'} examples; fetch it again")
        arrays[f"{prefix}images"] = np.concatenate([examples.inputs for examples in part])
        arrays[f"{prefix}labels"] = np.concatenate([examples.labels for examples in part])
        clients.append([examples.client for examples in part for _ in examples.labels])
    train, test = clients
    if arrays["test_labels"].ndim == 1 and (largest := arrays["test_labels"].max()) >= len(arrays["class_names"]):
        raise UserError(f"{stream.where}: test label {largest} is none of the {len(arrays['class_names'])} classes")
    return arrays | ({} if train[0] is None else number_clients(train, None if test[0] is None else test))
