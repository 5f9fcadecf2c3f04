"""Communication between several processes that run one program.

``jax.distributed.initialize`` connects the processes, which all make the same calls in the same order. Only the first
process reads and writes a run's folder, and sends the results to the others, which need not see its disk. A single
process communicates nothing.
"""

import contextlib
import functools
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_collapse.core._jax_compat import as_single_process
from fedjax_collapse.core.records import UserError

T, P = TypeVar("T"), ParamSpec("P")
_HEAD, _PIECE = 2**12, 2**24  # bytes sent at once: the start of every message, and each piece of the rest
_NUMBER = 8  # bytes that hold a message's length
_SUCCEEDED, _FAILED = b"+", b"-"  # the first byte of a message


def is_first() -> bool:
    """Returns whether this process is the first, which reads and writes files."""
    return jax.process_index() == 0


def is_multiprocess() -> bool:
    """Returns whether there are several processes. A single process starts no devices for this."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def connect() -> None:
    """Opens the connections between processes; called in all of them once they have started.

    Otherwise a CPU opens them at the first sum over its devices, and waits at most 30 seconds for processes that are
    still reading data or compiling. An open connection has no such limit.
    """
    if is_multiprocess():
        all_gather(0)
        in_first_process(lambda: 0)()
        devices = jax.devices()
        mesh = jax.make_mesh((len(devices),), ("all",), axis_types=(AxisType.Auto,), devices=devices)
        dealt = NamedSharding(mesh, PartitionSpec("all"))
        ones = jax.make_array_from_callback((len(devices),), dealt, np.ones(len(devices), np.float32).__getitem__)
        jax.block_until_ready(jax.jit(jnp.sum)(ones))


def all_gather(value: T) -> list[T]:
    """Returns the values of all processes, in their order. Each is JSON of less than 4 KiB."""
    if not is_multiprocess():
        return [value]
    rows = multihost_utils.process_allgather(_padded(json.dumps(value).encode(), _HEAD))
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]


def in_first_process(function: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that all processes call together: the first one computes the value, and all return it.

    Meanwhile ``jax.process_count()`` is 1 in the first process. The value is sent to the others as a pickle. If the
    function raises an exception, the first process raises it, and the others a UserError.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        if not is_multiprocess():
            return function(*arguments, **options)
        value, raised, message = None, None, b""
        if is_first():
            try:
                with as_single_process():
                    value = function(*arguments, **options)
                    message = _SUCCEEDED + pickle.dumps(value)
            except Exception as error:
                raised, message = error, _FAILED + str(error).encode()
        message = _broadcast(message)
        if raised is not None:
            raise raised
        if message.startswith(_FAILED):
            raise UserError(f"process 0: {message[1:].decode()}")
        return value if is_first() else pickle.loads(message[1:])

    return call


@contextlib.contextmanager
def within_first(context: contextlib.AbstractContextManager[T]) -> Iterator[T | None]:
    """Enters the context in the first process, then continues in all; the others receive None.

    For errors, see ``in_first_process``.
    """
    with contextlib.ExitStack() as stack:
        entered = []
        in_first_process(lambda: entered.append(stack.enter_context(context)))()
        yield next(iter(entered), None)


def check_alike(what: Callable[[], Mapping[str, Any]]) -> None:
    """Checks that all processes return the same values, compared by name and by their ``repr``.

    Raises:
        UserError: a process has other values than the first process.
    """
    if not is_multiprocess():
        return
    digests = all_gather({name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in what().items()})
    for process, found in enumerate(digests):
        names = [name for name in found if found[name] != digests[0].get(name)]
        if names:
            raise UserError(
                f"process {process} has another {' and another '.join(names)} than process 0: start all processes with "
                "the same command, on the same code and data"
            )


def _broadcast(message):
    """Returns the message of the first process in all of them; the messages of the others are ignored."""
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
