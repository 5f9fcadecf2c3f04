"""Several processes that run one program: what one of them knows, the others are told.

``jax.distributed.initialize`` makes processes one program. Each makes the same calls in the same order; the first alone
reads and writes a run's folder, which need not be on a disk that the others see. One process by itself tells nobody.
"""

import contextlib
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_collapse.records import UserError

T = TypeVar("T")
_HEAD, _PIECE = 2**12, 2**24  # bytes that are sent at once: of every message, and of the rest of a long one
_NUMBER = 8  # bytes of a message's length


def is_first() -> bool:
    """Whether this process is the one that reads and writes."""
    return jax.process_index() == 0


def of_all(value: T) -> list[T]:
    """Every process's value, in their order; small ones, of less than 4 KiB."""
    if jax.process_count() == 1:
        return [value]
    rows = multihost_utils.process_allgather(_padded(pickle.dumps(value), _HEAD))
    return [pickle.loads(row.tobytes()) for row in rows]


def of_first(make: Callable[[], T]) -> T:
    """What ``make`` returns in the first process, the only one that calls it and, while it runs, the only one there is.

    Raises:
        UserError: in the other processes, whatever it raised in the first, which raises it as it is.
    """
    if jax.process_count() == 1:
        return make()
    raised, message = None, b""
    if is_first():
        try:
            with _alone():
                message = pickle.dumps((make(), None))
        except Exception as error:
            raised, message = error, pickle.dumps((None, str(error)))
    value, problem = pickle.loads(_sent_by_first(message))
    if raised is not None:
        raise raised
    if problem is not None:
        raise UserError(f"process 0: {problem}")
    return value


@contextlib.contextmanager
def _alone():
    """Orbax waits for all processes in whatever it does (its ``active_processes`` notwithstanding) if JAX has some."""
    count = jax.process_count
    jax.process_count = lambda: 1
    try:
        yield
    finally:
        jax.process_count = count


@contextlib.contextmanager
def within_first(context: contextlib.AbstractContextManager) -> Iterator[None]:
    """The context in the first process; the others go on when it has been entered. Errors as of ``of_first``."""
    with contextlib.ExitStack() as stack:
        of_first(lambda: stack.enter_context(context))
        yield


def check_alike(what: Callable[[], Mapping[str, Any]]) -> None:
    """Raises UserError if not all processes return the same, of things by name whose ``repr`` tells them apart."""
    if jax.process_count() == 1:
        return
    digests = of_all({name: hashlib.sha256(repr(value).encode()).digest() for name, value in what().items()})
    for process, own in enumerate(digests):
        names = [name for name in own if own[name] != digests[0].get(name)]
        if names:
            raise UserError(
                f"process {process} has another {' and another '.join(names)} than process 0: start all processes with "
                "the same command, on the same code and data"
            )


def _sent_by_first(message: bytes) -> bytes:
    """The first process's message, in all; those of the others are ignored."""
    message = len(message).to_bytes(_NUMBER, "little") + message
    head = _send(message[:_HEAD], _HEAD)
    end = _NUMBER + int.from_bytes(head[:_NUMBER], "little")
    rest = [_send(message[start : start + _PIECE], _PIECE) for start in range(_HEAD, end, _PIECE)]
    return b"".join([head, *rest])[_NUMBER:end]


def _send(part, size):
    return multihost_utils.broadcast_one_to_all(_padded(part, size)).tobytes()


def _padded(content, size):
    padded = np.zeros(size, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return padded
