"""Natural clients: the persons who wrote, took or posted the examples, by their names in a data set."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.untrusted import is_unicode

Client = str | int


def check_client(where: str, client: object) -> None:
    """Raises UserError unless a value is a valid name, or a number, of a client."""
    if not isinstance(client, (str, int)) or isinstance(client, bool) or client == "" or not is_unicode(str(client)):
        raise UserError(
            f"{where} has client {client!r:.40}, expected a name or a number; correct it, or remove the row"
        )


def number_clients(train: Sequence[Client], test: Sequence[Client] | None = None) -> dict[str, np.ndarray]:
    """Returns ``owners`` and ``test_owners`` [examples], indices into ``client_names``, for the parts with known
    clients.

    The clients of a part are unknown if the part, or its first client, is None.

    Clients with training examples come first, in the order of their names (numbers by value), then clients with test
    examples only.
    """
    parts = {"owners": train, "test_owners": test}
    parts = {key: part for key, part in parts.items() if part is not None and part[0] is not None}
    if "owners" not in parts:
        return {}
    known = _ordered(set(train))
    known += _ordered(set(parts.get("test_owners", ())) - set(train))
    number = {client: row for row, client in enumerate(known)}
    owners = {key: np.array([number[client] for client in part], np.int32) for key, part in parts.items()}
    return owners | {"client_names": np.array(list(map(str, known)), str)}


def hold_out(
    path: str | Path, clients: Sequence[Client], classes: Sequence[Client], test_fraction: float, seed: int
) -> np.ndarray:
    """Returns a mask of ``floor(test_fraction * n)`` random examples of every client with ``n`` examples.

    If clients are unknown, examples are drawn from every class instead, with a warning.

    Raises:
        UserError: if no example would be held out.
    """
    of_each = "each client's examples" if clients else "each class" if len(set(classes)) > 1 else "all examples"
    is_test = held_out_of_owners(number_clients(clients or classes)["owners"], test_fraction, seed)
    if not is_test.any():
        raise UserError(
            f"{path}: it has no test part, and test_fraction {test_fraction:g} of {of_each} is none; raise "
            "data.test_fraction"
        )
    if not clients:
        warnings.warn(f"{path}: there is no test part; {test_fraction:g} of {of_each} are held out", stacklevel=2)
    return is_test


def held_out_of_owners(owners: np.ndarray, test_fraction: float, seed: int) -> np.ndarray:
    """Returns the mask of ``hold_out`` for clients given by number, in any order."""
    order = np.lexsort((np.random.default_rng(seed).random(len(owners)), owners))
    sizes = np.bincount(owners)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.empty(len(owners), bool)
    is_test[order] = places < np.repeat(np.floor(test_fraction * sizes + 1e-9), sizes)
    return is_test


def _ordered(clients):
    return sorted(clients, key=lambda client: (isinstance(client, str), client))
