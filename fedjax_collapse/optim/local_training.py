"""The hyper-parameters of a client's local training, and quantities computed from them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, Scalar, UserError
from fedjax_collapse.data.augment import Augmentation
from fedjax_collapse.optim.optimizers import check_optimizer, check_schedule
from fedjax_collapse.schema.options import Count, Decay, Natural, NonNegative, Part, Positive, check_fields, option
from fedjax_collapse.schema.user_code import check_signature

_MOST_STEPS = 2**31  # in a round; the limit of 32 bits


@struct.dataclass
class Phase:
    """Some epochs in which one part of the network is trained and the rest stays fixed."""

    part: Part = option("all")  # in the syntax of ``core/masks.py``
    epochs: Positive = 1


@struct.dataclass
class LocalTraining:
    """Hyper-parameters of a client's local training: by default SGD as in PyTorch.

    ``g = gradient + weight_decay params; buffer <- momentum buffer + g; params <- params - learning_rate buffer``.
    Weight decay acts on all params, including biases and BatchNorm scales.

    Args:
        epochs: passes over the client's data; a fraction is rounded up to whole steps.
        batch_size: examples in a batch.
        learning_rate: the clients' learning rate, in all rounds unless there is a ``schedule``.
        momentum: momentum of SGD; 0 with an ``optimizer``. None is 0 without a buffer; a run replaces 0 by None, so
            methods see None in ``view.training``.
        weight_decay: factor of the params that is added to the gradient, also with an ``optimizer``.
        steps: number of steps of every client, instead of ``epochs``.
        phases: phases instead of ``epochs``, one after the other, each for a part of the network and with a fresh
            optimizer (FedRep: head, then body). In a config: ``(("head", 10), ("body", 1))``.
        optimizer: a ``jax.tree_util.Partial`` of an optax constructor with an argument ``learning_rate``, such as
            ``Partial(optax.adam, b1=0.5)``, instead of SGD; in a config ``dict(name="adam", b1=0.5)``. Its numbers are
            traced; ``options.constructor`` also takes other arguments, such as ``nesterov=True``.
        task_loss: a function of ``LocalView`` that replaces the task's loss; methods add their terms.
        augmentation: a function of every training image in every epoch, in raw pixel units (``data/augment``), or None;
            in a config the name of a preset, or ``my_module:function``.
        clip_norm: largest norm of the gradient over all params, as in ``torch.nn.utils.clip_grad_norm_``; None does not
            clip.
        drop_last: whether to leave out an epoch's last partial batch. A client with less than one batch takes no step
            and uploads the model that it received.
        schedule: a ``jax.tree_util.Partial`` of a function of the round that multiplies the learning rate, such as
            ``Partial(schedules.cosine, rounds=100)`` or ``Partial(optax.linear_schedule(1.0, 0.1, 50))``; None is
            constant. In a config: ``dict(name="cosine")``.
        freeze: the part of the network that stays as initialised, at clients and server (``core/masks.py``).
            ``head_at_server`` is FedUV's released "Freeze": clients train the head and then discard it.
        logged_epochs: number of first epochs of a round whose metrics are also logged one by one, as
            ``epoch/<e>/<metric>`` [rounds, clients] in ``clients.npz``; NaN for epochs that a client does not take.
        momentum_reset: whether momentum starts at zero in every round. If False, each client resumes its last momentum,
            or its state of ``optimizer``, as in code with one optimizer per client.

    Examples:
        >>> sgd = LocalTraining(epochs=5, batch_size=64, learning_rate=0.01, momentum=0.9)
        >>> adam = LocalTraining(steps=20, optimizer=jax.tree_util.Partial(optax.adam, b1=0.5))
        >>> head_first = LocalTraining(phases=(Phase("head", 10), Phase("body", 1)))
    """

    epochs: Positive = 1
    batch_size: Count = option(32)
    learning_rate: Positive = 0.01
    momentum: Decay | None = 0.0
    weight_decay: NonNegative = 0.0
    steps: Count | None = None
    phases: tuple[Phase, ...] = ()
    optimizer: jax.tree_util.Partial | None = None
    task_loss: Callable[[Any], jax.Array] | None = option(None)
    augmentation: Augmentation | None = option(None)
    clip_norm: Positive | None = None
    drop_last: bool = option(False)
    schedule: jax.tree_util.Partial | None = None
    freeze: Part = option("none")
    logged_epochs: Natural = option(0)
    momentum_reset: bool = option(True)

    def check(self) -> None:
        """Raises UserError for invalid values."""
        check_fields(self)
        for phase in self.phases:
            check_fields(phase)
        if self.steps is not None and self.phases:
            raise UserError("LocalTraining: steps and phases are given; expected one of them")
        if self.optimizer is not None and self.momentum:
            raise UserError(
                f"LocalTraining: momentum {self.momentum:g} is of SGD; give the optimizer its own, or momentum=0"
            )
        if not self.momentum_reset and self.phases:
            raise UserError(
                "LocalTraining: momentum_reset=False and phases are given; each phase has a fresh optimizer"
            )
        if not self.momentum_reset and self.optimizer is None and not self.momentum:
            raise UserError(
                "LocalTraining: momentum_reset=False, but momentum is 0; set momentum or momentum_reset=True"
            )
        if self.optimizer is not None:
            check_optimizer("LocalTraining: optimizer", self.optimizer, learning_rate=0.1)
        if self.task_loss is not None:
            check_signature("LocalTraining: task_loss", self.task_loss, "view")
        if self.schedule is not None:
            check_schedule("LocalTraining: schedule", self.schedule)

    def check_sizes(self, sizes: np.ndarray) -> None:
        """Raises UserError if no client takes a step, or if one takes too many steps to count.

        Args:
            sizes: [clients] number of examples of each client.
        """
        if self.drop_last and max(sizes) < self.batch_size:
            raise UserError(
                f"LocalTraining: drop_last leaves no client a batch: batch_size {self.batch_size} is more than the "
                f"{max(sizes)} examples of the largest; lower it"
            )

        per_epoch = -(-int(max(sizes)) // self.batch_size)
        for name, epochs in [("epochs", self.epochs), *(("phases", phase.epochs) for phase in self.phases)]:
            if float(epochs) * per_epoch >= _MOST_STEPS:
                raise UserError(
                    f"LocalTraining: {name} {float(epochs):g}: the largest client would take "
                    f"{float(epochs) * per_epoch:.3g} steps in a round, expected less than {_MOST_STEPS}"
                )

    def frozen_part(self, at_server: bool = False) -> str:
        """Returns the part of the network that clients, or the server, never change."""
        return self.freeze.replace("head_at_server", "head" if at_server else "none")

    def make_optimizer(self, round: Scalar = 0) -> optax.GradientTransformation:
        """Returns the local optimizer of a round."""
        rate = self.learning_rate_in(round)
        inner = optax.sgd(rate, self.momentum) if self.optimizer is None else self.optimizer(learning_rate=rate)
        return optax.chain(optax.add_decayed_weights(self.weight_decay), inner)

    def clip(self, gradient: PyTree, not_trained: PyTree) -> PyTree:
        """Returns the gradient, clipped to ``clip_norm``; params in the mask ``not_trained`` do not count."""
        if self.clip_norm is None:
            return gradient
        scale = jnp.minimum(self.clip_norm / (optax.tree.norm(masks.zero(not_trained, gradient)) + 1e-6), 1)
        return jax.tree.map(lambda g: scale * g, gradient)

    def learning_rate_in(self, round: Scalar) -> Scalar:
        """Returns the learning rate of a round."""
        return self.learning_rate if self.schedule is None else self.learning_rate * self.schedule(round)

    def steps_per_epoch(self, size: jax.Array) -> jax.Array:
        """Returns the number of batches of a client with ``size`` examples, in the type of ``size``."""
        return divide(size if self.drop_last else size + self.batch_size - 1, self.batch_size)

    def phase_steps(self, size: jax.Array, budget: jax.Array | None = None) -> list[tuple[str, jax.Array]]:
        """Returns the part that is trained in each phase, and the number of steps.

        Args:
            size: the client's number of examples.
            budget: the fraction of all steps that the client takes; None is all.
        """
        per_epoch = self.steps_per_epoch(size)
        if self.steps is not None:
            whole = [("all", jnp.where(per_epoch > 0, self.steps, 0))]
        else:
            phases = self.phases or (Phase(epochs=self.epochs),)
            whole = [(phase.part, _whole(phase.epochs * per_epoch, per_epoch.dtype)) for phase in phases]
        return whole if budget is None else _within(budget, whole)

    def mean_client_steps(self, mean_size: jax.Array) -> jax.Array:
        """Returns the steps of a client with the mean number of examples, which need not be an integer."""
        batches = mean_size / self.batch_size
        per_epoch = jnp.floor(batches) if self.drop_last else jnp.ceil(batches)
        if self.steps is not None:
            return jnp.where(per_epoch > 0, self.steps, 0)
        return sum(phase.epochs for phase in self.phases) * per_epoch if self.phases else self.epochs * per_epoch

    def examples_in(self, steps: jax.Array, size: jax.Array) -> jax.Array:
        """Returns the number of examples that a client of this size has seen after ``steps`` steps of a phase."""
        per_epoch = self.steps_per_epoch(size)
        seen = per_epoch * self.batch_size if self.drop_last else size
        divisor = per_epoch + (per_epoch == 0)
        whole = divide(steps, divisor)
        return whole * seen + (steps - whole * divisor) * self.batch_size


def divide(count: jax.Array, by: jax.Array | int) -> jax.Array:
    """Returns a non-negative count divided by another, rounded down; one operation in a compiled program."""
    return jax.lax.div(count, jnp.asarray(by, count.dtype)) if isinstance(count, jax.Array) else count // by


def _within(budget, phases):
    """Truncates the phases to the budgeted fraction of all their steps, at least one step."""
    total = sum(steps for _, steps in phases)
    left = jnp.minimum(jnp.maximum(jnp.floor(budget * total + 1e-3).astype(total.dtype), 1), total)
    granted = []
    for part, steps in phases:
        granted.append((part, jnp.minimum(steps, left)))
        left = left - granted[-1][1]
    return granted


def _whole(steps, dtype):
    """Rounds the steps up to an integer, tolerating fractions of epochs that are slightly larger in floats."""
    is_whole = jnp.issubdtype(jnp.result_type(steps), jnp.integer)
    return (steps if is_whole else jnp.ceil(steps - 1e-3)).astype(dtype)
