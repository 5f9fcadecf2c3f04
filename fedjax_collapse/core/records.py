"""The shared vocabulary: what examples, a batch, a network's output, a client and the server are.

Everything that crosses a module boundary inside a round is one of these records. They are written for **one**
client; the client axis exists only in the engine and in aggregation.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Float

PyTree = Any
Key = jax.Array
Scalar = float | Float[Array, ""]  # a hyper-parameter: a number, traced inside compiled code


class UserError(ValueError):
    """A wrong input of the user's: one line that names the thing, what was expected and what to do."""


class Damaged(UserError):
    """A file that differs from what was written, or is missing; an earlier one may do."""


class Examples(NamedTuple):
    """Inputs and labels of any shape and type, with the constants that normalise the inputs.

    Images are uint8 (or float32) with [height, width, channels], class labels int32 without a shape of their own. On
    the device; or on the host, as NumPy arrays, where they are too many for it and parts of them are sent.
    """

    inputs: jax.Array | np.ndarray  # [examples, ...]
    labels: jax.Array | np.ndarray  # [examples, ...]
    mean: jax.Array | None  # [channels], the inputs' last axis, in their units; None for inputs that stay as they are
    std: jax.Array | None  # [channels] likewise
    identities: jax.Array | None = None  # [examples] rows in the whole data set; None where this is the whole


class Ownership(NamedTuple):
    """Who owns which examples."""

    rows: jax.Array  # [clients, capacity] int32 into the examples; padded
    sizes: jax.Array  # [clients] int32


class Batch(NamedTuple):
    """One minibatch of one client; ``mask`` is False on padding rows, which must not influence anything."""

    inputs: jax.Array  # [batch, ...], normalised
    labels: jax.Array  # [batch, ...]
    mask: jax.Array  # [batch], bool


class Outputs(NamedTuple):
    """What every network returns: ``features`` is the input of the classifier, the representation under study."""

    features: jax.Array  # [batch, features]
    logits: jax.Array  # [batch, classes]; of another task than classification its predictions, [batch, ...]
    levels: tuple[jax.Array, ...] = ()  # each [batch, channels], on the way to the features; empty unless asked for


class Variables(NamedTuple):
    """A network's state: what is trained by gradient, and the running statistics of BatchNorm."""

    params: PyTree
    batch_stats: PyTree


class Server(NamedTuple):
    """What the server keeps between rounds."""

    variables: Variables
    shared: dict[str, PyTree]  # per method: what it keeps here and sends to every client
    optimizer: PyTree  # state of the server optimizer


OPTIMIZER = "training.optimizer"  # the name, in a client's memory, of the state of its local optimizer


class ClientState(NamedTuple):
    """What ONE client keeps between its rounds."""

    memory: dict[str, PyTree]  # per method; and ``OPTIMIZER``'s, where ``LocalTraining.momentum_reset`` is False
    private: dict[str, jax.Array]  # what of the network never leaves the client, by path


@struct.dataclass
class Drawn:
    """A client that was drawn into a round, before its rows and its state are looked up."""

    id: jax.Array  # int32 identity; also where its state is stored
    size: jax.Array  # number of true rows; 0 for a client that only pads a chunk
    weight: jax.Array  # aggregation weight, sums to 1 over those of the cohort whose upload counts, 0 of others
    key: Key  # of this client in this round
    num_clients: jax.Array  # of the federation, in the cohort or not
    mean_size: jax.Array  # mean number of true rows over all clients of the federation
    budget: jax.Array | None = None  # the share of its local steps that it takes; None is all of them
    arrives: jax.Array | None = None  # whether its upload reaches the server; None is of all

    @property
    def share(self) -> jax.Array:
        """``K N_i / N``: its size over the mean size; 1 if all clients are equally large."""
        return self.size / self.mean_size

    @property
    def is_counted(self) -> jax.Array:
        """Whether the server counts what it sends: that arrives, and the client does not only pad."""
        return self.id < self.num_clients if self.arrives is None else self.arrives

    def with_data(self, rows: jax.Array, state: ClientState) -> "Client":
        """The client with its rows and its state."""
        return Client(**vars(self), rows=rows, state=state)


@struct.dataclass(kw_only=True)
class Client(Drawn):
    """Everything that one client has in one round."""

    rows: jax.Array  # [capacity] int32, rows of the examples that it owns; padded
    state: ClientState


class Trained(NamedTuple):
    """The result of one client's local training."""

    variables: Variables
    steps: jax.Array  # number of optimizer steps taken
    learning_rate: jax.Array  # of this round
    metrics: dict[str, jax.Array]  # mean over the examples seen: loss and score of the task, each term by name
    optimizer: PyTree = ()  # the last state of the local optimizer


MEASURED = "measured/"  # before the name of a measurement and of its number, in the rows
EPOCH = "epoch/"  # before the number of an epoch and the name of what is a metric of it alone


def of_rounds(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the metrics that are of whole rounds, not of one of their epochs."""
    return {name: value for name, value in metrics.items() if not name.startswith(EPOCH)}


def losses_of(metrics: Mapping[str, Any], score: str) -> dict[str, Any]:
    """Those of whole rounds without the task's ``score``, which is no loss and may be undefined though all is well."""
    return {name: value for name, value in of_rounds(metrics).items() if name != score}
