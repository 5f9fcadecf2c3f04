"""Natural clients: the persons who wrote, took or posted the examples, by the names that a data set has for them."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.cache import Arrays
from fedjax_collapse.data.reading.tables.tabular import numbered
from fedjax_collapse.data.reading.untrusted import is_unicode

Client = str | int
Part = tuple[Sequence[Client], np.ndarray, np.ndarray]  # client, image and label of each example


def fields_of(path: str | Path, train: Part, test: Part) -> Arrays:
    """Returns the fields of ``Source`` from the examples of both parts, which know their clients.

    Raises:
        UserError: if images of the parts differ in shape, or a label is not one of training.
    """
    (clients, images, labels), (test_clients, test_images, test_labels) = train, test
    if images.shape[1:] != test_images.shape[1:]:
        raise UserError(f"{path}: training inputs are {images.shape[1:]}, test inputs {test_images.shape[1:]}")
    names = numbered(path, labels)
    if (largest := test_labels.max()) >= len(names):
        raise UserError(f"{path}: test label {largest} is none of the {len(names)} classes of training")
    arrays = dict(images=images, labels=labels, test_images=test_images, test_labels=test_labels)
    return arrays | number_clients(clients, test_clients) | {"class_names": np.array(names)}


def check_client(where: str, client: object) -> None:
    """Raises UserError unless a value is a client's name, of whole characters, or number."""
    if not isinstance(client, (str, int)) or isinstance(client, bool) or client == "" or not is_unicode(str(client)):
        raise UserError(
            f"{where} has client {client!r:.40}, expected a name or a number; correct it, or remove the row"
        )


def number_clients(train: Sequence[Client], test: Sequence[Client] | None) -> dict[str, np.ndarray]:
    """Returns ``owners`` and ``test_owners`` [examples], indices into ``client_names``; the latter only if known.

    Clients with training examples come first, in the order of their names (numbers by value); then those who are only
    tested.
    """
    known = _ordered(set(train))
    known += _ordered(set(test or ()) - set(train))
    number = {client: row for row, client in enumerate(known)}
    parts = {"owners": train} if test is None else {"owners": train, "test_owners": test}
    owners = {key: np.array([number[client] for client in part], np.int32) for key, part in parts.items()}
    return owners | {"client_names": np.array(list(map(str, known)), str)}


def hold_out(
    path: str | Path, clients: Sequence[Client], classes: Sequence[Client], test_fraction: float, seed: int
) -> np.ndarray:
    """Returns a mask of ``floor(test_fraction * n)`` random examples of every client with ``n`` examples.

    If no client is known, it is of every class with ``n`` examples, which a warning says.

    Raises:
        UserError: if none would be held out.
    """
    of_each = "each client's examples" if clients else "each class" if len(set(classes)) > 1 else "all examples"
    is_test = held_out_of_owners(number_clients(clients or classes, None)["owners"], test_fraction, seed)
    if not is_test.any():
        raise UserError(
            f"{path}: it has no test part, and test_fraction {test_fraction:g} of {of_each} is none; raise "
            "data.test_fraction"
        )
    if not clients:
        warnings.warn(f"{path}: there is no test part; {test_fraction:g} of {of_each} are held out", stacklevel=2)
    return is_test


def held_out_of_owners(owners: np.ndarray, test_fraction: float, seed: int) -> np.ndarray:
    """Returns the mask for clients by their numbers, whatever the order of these."""
    order = np.lexsort((np.random.default_rng(seed).random(len(owners)), owners))
    sizes = np.bincount(owners)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.empty(len(owners), bool)
    is_test[order] = places < np.repeat(np.floor(test_fraction * sizes + 1e-9), sizes)
    return is_test


def _ordered(clients):
    return sorted(clients, key=lambda client: (isinstance(client, str), client))
