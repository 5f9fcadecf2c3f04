"""The hyper-parameters of a client's local training, and what follows from them alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_collapse import selection
from fedjax_collapse.data.augment import Augmentation
from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.records import Batch, Outputs, Scalar, UserError, Variables
from fedjax_collapse.regularizers.base import check_options, option


def classification(outputs: Outputs, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the true rows: the task of all papers."""
    return cross_entropy(outputs.logits, batch.labels, batch.mask)


@struct.dataclass
class LocalTraining:
    """Hyper-parameters of a client's local training: SGD as in PyTorch, its momentum starting at zero every round.

    ``g = gradient + weight_decay params; buffer <- momentum buffer + g; params <- params - learning_rate buffer``.
    Weight decay acts on all params, biases and BatchNorm scales included.

    ``task_loss``: what the regularizers' terms are added to.
    ``augmentation``: of every training image in every epoch, in raw pixel units (``data/augment.py``); None is none.
    ``clip_norm``: largest norm of the gradient over all params, as ``torch.nn.utils.clip_grad_norm_``; None is none.
    ``drop_last``: leave out an epoch's last partial batch. A client with fewer examples than a batch then takes no
    step and uploads what it got.
    ``schedule``: of the learning rate over rounds t = 0, 1, ...: ``cosine`` is times ``(1 + cos(pi t /
    schedule_rounds)) / 2``, ``decay`` is times ``schedule_factor^t``.
    ``freeze``: the part of the network that keeps its initial value, at clients and server (``selection.py``);
    ``head_at_server`` is the released code of FedUV's "Freeze", whose clients train the head and then throw it away.
    """

    epochs: int = 1
    batch_size: int = option(32)
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    task_loss: Callable[[Outputs, Batch], jax.Array] = option(classification)
    augmentation: Augmentation | None = option(None)
    clip_norm: float | None = None
    drop_last: bool = option(False)
    schedule: str = option("constant", choices=("constant", "cosine", "decay"))
    schedule_rounds: int = 100
    schedule_factor: float = 0.998
    freeze: str = option("none", choices=("none", "head", "head_at_server"))

    def check(self) -> None:
        """Raises UserError for values that make no sense."""
        check_options(self)
        for name, least in (("epochs", 1), ("batch_size", 1), ("momentum", 0), ("weight_decay", 0)):
            if getattr(self, name) < least:
                raise UserError(f"local training: {name} {getattr(self, name)} is too small, expected >= {least}")
        if not self.learning_rate > 0:
            raise UserError(f"local training: learning_rate {self.learning_rate} is not positive")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"local training: clip_norm {self.clip_norm} is not positive; None is no clipping")
        if self.schedule == "cosine" and self.schedule_rounds < 1:
            raise UserError(f"local training: schedule_rounds {self.schedule_rounds} is too small, expected >= 1")
        if self.schedule == "decay" and not self.schedule_factor > 0:
            raise UserError(f"local training: schedule_factor {self.schedule_factor} is not positive")

    def untrained(self, variables: Variables, at_server: bool = False) -> Variables:
        """The part of the network that clients, or the server, never change."""
        name = {"head_at_server": "head" if at_server else "none"}.get(self.freeze, self.freeze)
        return selection.part(name, variables)

    def optimizer(self, round: Scalar = 0) -> optax.GradientTransformation:
        sgd = optax.sgd(self.learning_rate_in(round), self.momentum)
        return optax.chain(optax.add_decayed_weights(self.weight_decay), sgd)

    def learning_rate_in(self, round: Scalar) -> Scalar:
        """The learning rate of a round."""
        if self.schedule == "cosine":
            return self.learning_rate * (1 + jnp.cos(jnp.pi * round / self.schedule_rounds)) / 2
        if self.schedule == "decay":
            return self.learning_rate * self.schedule_factor**round
        return self.learning_rate

    def steps_per_epoch(self, size: jax.Array) -> jax.Array:
        return (size if self.drop_last else size + self.batch_size - 1) // self.batch_size

    def examples_per_epoch(self, size: jax.Array) -> jax.Array:
        """How many of a client's examples it sees in an epoch."""
        return self.steps_per_epoch(size) * self.batch_size if self.drop_last else size
