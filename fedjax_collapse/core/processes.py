"""Several processes that run one program: what one of them knows, the others are told.

``jax.distributed.initialize`` makes processes one program. Each makes the same calls in the same order; the first alone
reads and writes a run's folder, which need not be on a disk that the others see. One process by itself tells nobody.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_collapse.core._jax_compat import as_single_process
from fedjax_collapse.core.records import PyTree, UserError

T = TypeVar("T")
_HEAD, _PIECE = 2**12, 2**24  # bytes that are sent at once: of every message, and of the rest of a long one
_NUMBER = 8  # bytes of a message's length
_FINE, _FAILED = b"+", b"-"  # how a message begins


def is_first() -> bool:
    """Whether this process is the one that reads and writes."""
    return jax.process_index() == 0


def is_multiprocess() -> bool:
    """Whether there are others."""
    return jax.process_count() > 1


def connect() -> None:
    """Makes the connections over which processes send; called in all of them once they have started.

    Where a CPU makes one by itself, at the first sum over its devices, it waits no longer than 30 seconds for those of
    processes that are still reading data or compiling. Over one that is there it waits as long as it takes.
    """
    if is_multiprocess():
        all_gather(0)
        broadcast_from_first(lambda: 0)
        devices = jax.devices()
        mesh = jax.make_mesh((len(devices),), ("all",), axis_types=(AxisType.Auto,), devices=devices)
        dealt = NamedSharding(mesh, PartitionSpec("all"))
        ones = jax.make_array_from_callback((len(devices),), dealt, np.ones(len(devices), np.float32).__getitem__)
        jax.block_until_ready(jax.jit(jnp.sum)(ones))


def all_gather(value: T) -> list[T]:
    """Every process's value, in their order; JSON of less than 4 KiB."""
    if not is_multiprocess():
        return [value]
    rows = multihost_utils.process_allgather(_padded(json.dumps(value).encode(), _HEAD))
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]


def broadcast_from_first(make: Callable[[], T]) -> T:
    """What ``make`` returns in the first process, the only one that calls it and, while it runs, the only one there is.

    It has to be JSON, whose lists the others get where it has tuples.

    Raises:
        UserError: in the other processes, whatever it raised in the first, which raises it as it is.
    """
    if not is_multiprocess():
        return make()
    return json.loads(_sent_by_first(lambda: json.dumps(make()).encode()))


def broadcast_arrays(tree: PyTree) -> PyTree:
    """The arrays of the first process; the others have some of the same structure, shapes and types."""
    if not is_multiprocess():
        return tree
    leaves, structure = jax.tree.flatten(tree)
    message = io.BytesIO(_sent_by_first(lambda: _packed(leaves)))
    with np.load(message, allow_pickle=False) as sent:
        return structure.unflatten(_like(leaf, sent[f"arr_{i}"]) for i, leaf in enumerate(leaves))


def _packed(leaves):
    file = io.BytesIO()
    np.savez(file, *(jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves))
    return file.getvalue()


def _like(leaf, sent):
    """What was sent, in the type of the leaf: NumPy's files do not know all of them."""
    if _is_key(leaf):
        return jax.random.wrap_key_data(sent, impl=jax.random.key_impl(leaf))
    sent = sent.view(leaf.dtype) if sent.dtype.kind == "V" else sent
    return jnp.asarray(sent) if isinstance(leaf, jax.Array) else sent


def _is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@contextlib.contextmanager
def within_first(context: contextlib.AbstractContextManager[T]) -> Iterator[T | None]:
    """The context in the first process; the others, where it is None, continue when it has been entered.

    Errors are those of ``broadcast_from_first``.
    """
    with contextlib.ExitStack() as stack:
        entered = []
        broadcast_from_first(lambda: entered.append(stack.enter_context(context)))
        yield next(iter(entered), None)


def check_alike(what: Callable[[], Mapping[str, Any]]) -> None:
    """Raises UserError if not all processes return the same, of things by name whose ``repr`` tells them apart."""
    if jax.process_count() == 1:
        return
    digests = all_gather({name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in what().items()})
    for process, own in enumerate(digests):
        names = [name for name in own if own[name] != digests[0].get(name)]
        if names:
            raise UserError(
                f"process {process} has another {' and another '.join(names)} than process 0: start all processes with "
                "the same command, on the same code and data"
            )


def _sent_by_first(make: Callable[[], bytes]) -> bytes:
    """What ``make`` returns in the first process, in all. Errors are those of ``broadcast_from_first``."""
    raised, message = None, b""
    if is_first():
        try:
            with as_single_process():
                message = _FINE + make()
        except Exception as error:
            raised, message = error, _FAILED + str(error).encode()
    message = _broadcast(message)
    if raised is not None:
        raise raised
    if message.startswith(_FAILED):
        raise UserError(f"process 0: {message[1:].decode()}")
    return message[1:]


def _broadcast(message):
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
