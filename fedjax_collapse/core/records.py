"""Shared records: examples, batches, network outputs, clients and the server.

Everything that crosses a module boundary inside a round is one of these records. They describe **one** client; the
client axis exists only in the engine and in aggregation.
"""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Float

PyTree = Any
Key = jax.Array
Scalar = float | Float[Array, ""]  # a hyper-parameter: a number, traced inside compiled code


class UserError(ValueError):
    """Invalid input from the user. The one-line message names the value, the expected values and a remedy."""


def check_choice(what: str, value: Any, choices: Iterable[Any]) -> None:
    """Raises UserError if the value is not among the choices."""
    if value not in choices:
        raise UserError(f"{what} {value!r}: expected one of {', '.join(map(str, choices))}")


class Damaged(UserError):
    """A file is missing or its content has changed since it was written; an earlier version may still be readable."""


def installed(module: str, extra: str, what: str) -> Any:
    """Returns a module that an extra of this package installs.

    Raises:
        UserError: it is not installed; ``what`` says why it is needed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f'{what}: pip install "fedjax_collapse[{extra}]"') from None


def in_one_line(record: Any) -> str:
    """Returns the ``__repr__`` of a record on one line: arrays by type and shape, trees by their number of arrays."""
    fields = (f"{name}={_in_short(getattr(record, name))}" for name in type(record).__annotations__)
    return f"{type(record).__name__}({', '.join(fields)})"


def _in_short(value):
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"{value.dtype}{list(value.shape)}"
    arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, (jax.Array, np.ndarray))]
    if not arrays or type(value).__repr__ is in_one_line:
        return " ".join(repr(value).split())
    return f"<{len(arrays)} array{'s' * (len(arrays) > 1)} of {sum(array.size for array in arrays):,} numbers>"


class Examples(NamedTuple):
    """Inputs and labels of any shape and type, with the constants that normalise the inputs.

    Images are uint8 (or float32) of shape [height, width, channels]; class labels are int32 scalars. The arrays are on
    the device. If they do not fit, they are NumPy arrays on the host, and each round sends the examples that it needs.
    """

    inputs: jax.Array | np.ndarray  # [examples, ...]
    labels: jax.Array | np.ndarray  # [examples, ...]
    mean: jax.Array | None  # [channels], the inputs' last axis, in their units; None if inputs are not normalised
    std: jax.Array | None  # [channels], likewise
    identities: jax.Array | None = None  # [examples] rows in the whole data set; None if this is the whole data set
    pad: jax.Array | None = None  # the label that is no target, of labels [examples, length]: one for each token

    __repr__ = in_one_line


class Ownership(NamedTuple):
    """The rows of the examples that each client owns."""

    rows: jax.Array  # [clients, capacity] int32 into the examples; padded. Of a store, the ``Store``
    sizes: jax.Array  # [clients] int32

    __repr__ = in_one_line


class Batch(NamedTuple):
    """One minibatch of one client. ``mask`` is False on padding rows, which must not affect any result.

    If every token of a sequence has a label, a row is a token: except for the inputs, ``batch`` is then sequences times
    length, and ``mask`` is also False where there is no target. With ``places``, rows are only the tokens at these
    places (``data.batches.cut_tokens``).
    """

    inputs: jax.Array  # [batch, ...], normalised; of tokens [sequences, length]
    labels: jax.Array  # [batch, ...]
    mask: jax.Array  # [batch], bool
    places: jax.Array | None = None  # [batch] of the rows among all tokens, or their number for padding; None: of all
    views: tuple[jax.Array, ...] = ()  # the same examples, augmented again, each like ``inputs``; by ``Task.views``

    __repr__ = in_one_line


class Outputs(NamedTuple):
    """The outputs of a network. ``features``, the inputs of the classifier, are the representation under study."""

    features: jax.Array  # [batch, features]
    logits: jax.Array  # [batch, classes]; for tasks other than classification the predictions, [batch, ...]
    levels: tuple[jax.Array, ...] = ()  # intermediate representations, each [batch, channels]; empty unless requested
    views: tuple["Outputs", ...] = ()  # on each of the batch's ``views``

    __repr__ = in_one_line


class Variables(NamedTuple):
    """A network's state: the trained parameters, and the running statistics of BatchNorm."""

    params: PyTree
    batch_stats: PyTree

    __repr__ = in_one_line


class Server(NamedTuple):
    """The server's state between rounds."""

    variables: Variables
    shared: dict[str, PyTree]  # per method: its state at the server, which every client receives
    optimizer: PyTree  # state of the server optimizer

    __repr__ = in_one_line


OPTIMIZER = "training.optimizer"  # the key of the local optimizer's state in a client's memory
TRAINED = "trained"  # the key of its model after its last round, and whether there was one; ``FedAvg.keep_trained``


class ClientState(NamedTuple):
    """The state of ONE client between its rounds."""

    memory: dict[str, PyTree]  # per method; perhaps also under ``OPTIMIZER`` and ``TRAINED``
    private: dict[str, jax.Array]  # by path, the parts of the network that never leave the client

    __repr__ = in_one_line


@struct.dataclass
class Drawn:
    """A client of the cohort without its rows and its state."""

    id: jax.Array  # int32 identity; also the index of its stored state
    size: jax.Array  # number of rows that it trains on, the first ones; 0 for a client that only pads a chunk
    weight: jax.Array  # aggregation weight; 0 if its upload does not count, else sums to 1, or is 1 / expected
    key: Key  # of this client in this round
    num_clients: jax.Array  # in the whole federation
    mean_size: jax.Array  # mean of the sizes of all clients of the federation
    budget: jax.Array | None = None  # the fraction of its local steps that it takes; None means all of them
    arrives: jax.Array | None = None  # whether its upload reaches the server; None means that every upload does
    held_out: jax.Array | None = None  # number of true rows after these, for validation; None: no method holds any out
    expected: jax.Array | None = None  # number of clients in a cohort; None unless uploads are weighted by it

    @property
    def relative_size(self) -> jax.Array:
        """``K N_i / N``: the client's size divided by the mean size; 1 if all clients are equally large."""
        return self.size / self.mean_size

    @property
    def is_counted(self) -> jax.Array:
        """Whether the server counts its upload: the upload arrives, and the client is not padding."""
        return self.id < self.num_clients if self.arrives is None else self.arrives

    def with_data(self, rows: jax.Array, state: ClientState) -> "Client":
        """Returns the client with its rows and its state."""
        return Client(**vars(self), rows=rows, state=state)


@struct.dataclass(kw_only=True)
class Client(Drawn):
    """The data, state and keys of one client in one round."""

    rows: jax.Array  # [capacity] int32, the rows of its examples; padded
    state: ClientState


class Trained(NamedTuple):
    """The result of one client's local training."""

    variables: Variables
    steps: jax.Array  # number of optimizer steps taken
    learning_rate: jax.Array  # of this round
    metrics: dict[str, jax.Array]  # means over the examples seen: the task's loss and score, each term by name
    carries: dict[str, PyTree]  # by method, its carry over the steps
    optimizer: PyTree = ()  # the final state of the local optimizer


MEASURED = "measured/"  # prefix of a measurement's values in the rows: measured/<measurement>/<value>
EPOCH = "epoch/"  # prefix of the metrics of a single epoch: epoch/<number>/<metric>


def of_rounds(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of whole rounds, without those of single epochs."""
    return {name: value for name, value in metrics.items() if not name.startswith(EPOCH)}


def losses_of(metrics: Mapping[str, Any], score: str) -> dict[str, Any]:
    """Returns the losses of whole rounds: all metrics but ``score``, which may be NaN in a valid run."""
    return {name: value for name, value in of_rounds(metrics).items() if name != score}
