"""The shared vocabulary: what a batch, a network's output, a model and a local step are.

Everything that crosses a module boundary inside a round is one of these records. They are written for **one**
client; the client axis exists only in the engine and in aggregation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

PyTree = Any
Key = jax.Array
Scalar = float | Float[Array, ""]  # a hyper-parameter: a number, traced inside compiled code


class UserError(ValueError):
    """A wrong input of the user's: one line that names the thing, what was expected and what to do."""


class Examples(NamedTuple):
    """Images and labels, with the constants that turn raw pixels into network inputs.

    On the device; or on the host, as NumPy arrays, where they are too many for it and parts of them are sent.
    """

    images: jax.Array | np.ndarray  # [examples, height, width, channels], uint8 (or float32)
    labels: jax.Array | np.ndarray  # [examples], int32
    mean: jax.Array  # [channels], in raw pixel units
    std: jax.Array  # [channels], in raw pixel units
    identities: jax.Array | None = None  # [examples] rows in the whole data set; None where this is the whole


class Ownership(NamedTuple):
    """Who owns which examples."""

    rows: jax.Array  # [clients, capacity] int32 into the examples; padded
    sizes: jax.Array  # [clients] int32


class Batch(NamedTuple):
    """One minibatch of one client; ``mask`` is False on padding rows, which must not influence anything."""

    images: jax.Array  # [batch, height, width, channels], float, normalised
    labels: jax.Array  # [batch], int32
    mask: jax.Array  # [batch], bool


class Outputs(NamedTuple):
    """What every network returns: ``features`` is the input of the classifier, the representation under study."""

    features: jax.Array  # [batch, features]
    logits: jax.Array  # [batch, classes]


class Variables(NamedTuple):
    """A network's state: what is trained by gradient, and the running statistics of BatchNorm."""

    params: PyTree
    batch_stats: PyTree


class Server(NamedTuple):
    """What the server keeps between rounds."""

    variables: Variables
    shared: dict[str, PyTree]  # per regularizer
    extra: PyTree  # the algorithm's own


class ClientState(NamedTuple):
    """What ONE client keeps between its rounds."""

    memory: dict[str, PyTree]  # per regularizer
    extra: PyTree  # the algorithm's own
    private: dict[str, jax.Array]  # what of the network never leaves the client, by path


class Client(NamedTuple):
    """All that is one client's in one round."""

    id: jax.Array  # int32 identity; also where its state is stored
    rows: jax.Array  # [capacity] int32, rows of the examples that it owns; padded
    size: jax.Array  # number of true rows; 0 for a client that only pads a chunk
    weight: jax.Array  # aggregation weight, sums to 1 over the cohort
    state: ClientState
    key: Key  # of this client in this round
    num_clients: jax.Array  # of the federation, in the cohort or not
    mean_size: jax.Array  # mean number of true rows over all clients of the federation

    @property
    def share(self) -> jax.Array:
        """``K N_i / N``: its size over the mean size; 1 if all clients are equally large."""
        return self.size / self.mean_size


class Trained(NamedTuple):
    """The result of one client's local training."""

    variables: Variables
    steps: jax.Array  # number of optimizer steps taken
    learning_rate: jax.Array  # of this round
    metrics: dict[str, jax.Array]  # mean over the examples seen: loss of the task, accuracy and each term by name


class LocalView(NamedTuple):
    """All that a loss term may look at, in one step of one client."""

    params: PyTree  # being trained
    outputs: Outputs  # of this batch, in training mode
    batch: Batch
    server: Variables  # what the server sent at the start of the round
    shared: PyTree  # the regularizer's own broadcast (prototypes, ...)
    memory: PyTree  # the regularizer's own memory at this client
    round: jax.Array  # 0 in the first round
    class_counts: jax.Array  # [classes] int32, examples of each class that the client owns
    frozen: dict[str, Outputs]  # of this batch, of the models that the regularizer asked for
    key: Key  # of this step


@dataclasses.dataclass(frozen=True)
class Model:
    """A Linen network and the shape of its input, as two pure functions.

    The module is called as ``module(images, mask, train)`` and returns ``Outputs``; ``mask`` marks the true rows,
    for layers that look across the batch. Two models of equal modules are equal, so nothing recompiles for them.
    Of larger images it sees the middle: what an augmentation has not cropped (``data/augment.py``).
    ``reinitialize``: what to make of the module's own initial variables, such as ``selection.orthogonal_head``.
    """

    module: flax.linen.Module
    image_shape: tuple[int, int, int]  # height, width, channels
    reinitialize: Callable[[Variables, Key], Variables] | None = None

    def init(self, key: Key) -> Variables:
        """Initial variables; compiled, because eager initialisation is many times slower."""
        return (_draw if isinstance(key, jax.core.Tracer) else _draw_compiled)(self, key)

    def output_shapes(self, variables: Variables) -> Outputs:
        """Shapes and dtypes of features [1, d] and logits [1, classes]."""
        images = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
        batch = Batch(images, jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1,), bool))
        return jax.eval_shape(lambda v, b: self.apply(v, b, train=False)[0], variables, batch)

    def apply(self, variables: Variables, batch: Batch, train: bool, key: Key | None = None) -> tuple[Outputs, PyTree]:
        """Outputs and the new running statistics (unchanged unless ``train``); without a key nothing is dropped out.

        Raises:
            UserError: the images are smaller than ``image_shape``.
        """
        images, rngs = _middle(batch.images, *self.image_shape[:2]), None if key is None else {"dropout": key}
        outputs, updated = self.module.apply(
            variables._asdict(), images, batch.mask, train=train, mutable=["batch_stats"], rngs=rngs
        )
        return outputs, updated.get("batch_stats", variables.batch_stats)

    def batch_statistics(self, variables: Variables, batch: Batch) -> PyTree:
        """What the layers with running statistics measure in this batch, in training mode.

        A batch moves running statistics linearly, by a share that is the layer's own: from starts at 0 and at 1 one
        sees both the share and the measurement. The two passes are one to the compiler.
        """

        def moved_from(value):
            start = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), variables.batch_stats)
            return self.apply(Variables(variables.params, start), batch, train=True)[1]

        return jax.tree.map(lambda zero, one: zero / (1 - (one - zero)), moved_from(0), moved_from(1))


def _middle(images, height, width):
    """That much of the images' middle, rounded as by torchvision's CenterCrop."""
    have = images.shape[1:3]
    if have == (height, width):
        return images
    if have[0] < height or have[1] < width:
        raise UserError(f"images of {have[0]} x {have[1]} pixels: the model expects at least {height} x {width}")
    top, left = round((have[0] - height) / 2), round((have[1] - width) / 2)
    return images[:, top : top + height, left : left + width]


def _draw(model, key):
    images = jnp.zeros((1, *model.image_shape))
    variables = model.module.init(key, images, jnp.ones(1, bool), train=False)
    variables = Variables(variables["params"], variables.get("batch_stats", {}))
    return variables if model.reinitialize is None else model.reinitialize(variables, jax.random.fold_in(key, 1))


# one draw a layer is much code that runs once: to optimise it would take ten times as long as all the rest
_draw_compiled = jax.jit(_draw, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
