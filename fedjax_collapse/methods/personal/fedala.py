"""FedALA: each client mixes its last model into the received model, with weights that it learns.

    theta  = l + (g - l) W                               in ``part``; as received, g, elsewhere
    W     <- clip(W - rate * dL/dtheta * (g - l), 0, 1)  for each batch

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning" (AAAI 2023). Local training
starts from theta, and own tests score theta. l is the client's model after its last local training, at first the
initial model. W has one weight for each param of the part, starts at 1 and is stored. When g and l first differ, W is
trained for at least 11 epochs, until the standard deviation of the last 10 epochs' losses (of each epoch's last batch)
is below ``threshold``; later for one epoch. If g equals l in the part, W does not change. Batches are of a window of
the client's examples, in their order, which is drawn once a round. L is the loss of the task, without the terms of
other methods.

BatchNorm's running statistics are not mixed: they are those received, or the client's with ``private="batch_norm"``,
as in PFLlib, where they never leave a client. While W is trained, BatchNorm uses the statistics of the batch, and its
running ones do not change, as in the released code; dropout is off.

Here only clients that train store W and l. In PFLlib all clients mix in every round, and one that is not drawn
replaces l by theta. The released code compares g and l in the network's first array only, and its number of epochs has
no limit; its default threshold is 0.1. Its option ``-p`` counts arrays: 2 is the last layer with its bias, which the
paper calls 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.loops import differing_with
from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.methods.base import ClientView, FinishView, Method, Setup
from fedjax_collapse.schema.options import Count, Part, Positive, Share, option

_COMPARED = 10  # losses


class Mixing(NamedTuple):
    """A client's memory; params of the part by path."""

    weights: dict[str, jax.Array]  # of the received params, W
    last: dict[str, jax.Array]  # the client's own at the end of its last local training, l
    has_settled: jax.Array  # whether W was trained before, bool


class FedALA(Method):
    """Local training that starts from a learned mixture of the received and the client's last model.

    Args:
        part: mixed part of the network; the paper's p = 1 is the head, larger p add layers before it, such as
            ``head+Dense_1``.
        rate: learning rate of W.
        share: fraction of the client's examples that train W.
        threshold: standard deviation of the losses, in nats, below which W's first training ends; 0.1 in the released
            code.
        max_epochs: largest number of epochs of that training, unlimited in the released code.
    """

    part: Part = option("head")
    rate: Positive = 1.0
    share: Share = 0.8
    threshold: Positive = 0.01
    max_epochs: Count = 100

    @property
    def remembered(self) -> str:
        return self.part

    def check_with(self, setup: Setup) -> None:
        fixed = masks.union(setup.model.mask(setup.private), setup.model.mask(setup.training.frozen_part())).params
        mixed = masks.select(masks.invert(fixed), setup.model.mask(self.part).params)
        if not any(mixed.values()):
            raise UserError(
                f"FedALA: part {self.part!r} has no params that the server changes, expected one that is neither "
                f"private nor frozen"
            )

    def init_memory(self, variables: dict[str, jax.Array], shapes: Outputs) -> Mixing:
        return Mixing(jax.tree.map(jnp.ones_like, variables), variables, jnp.zeros((), bool))

    def receive(self, view: ClientView) -> tuple[Variables, Mixing]:
        weights, last, has_settled = view.memory
        received = masks.select(view.model.mask(self.part).params, view.server.params)
        gaps = jax.tree.map(jnp.subtract, received, last)
        differs = jnp.any(jnp.stack([jnp.any(gap != 0) for gap in gaps.values()]))
        owned = view.client.size
        size = jnp.clip(jnp.floor(self.share * owned + 1e-3).astype(owned.dtype), 1, owned)
        first = jax.random.randint(view.key, (), 0, owned - size + 1, owned.dtype)

        def mixture(weights):
            own = jax.tree.map(lambda l, gap, weight: l + gap * weight, last, gaps, weights)  # noqa: E741
            return view.server._replace(params=masks.replace(view.server.params, own))

        def loss(weights, batch):
            return view.model.task.loss(view.model.apply(mixture(weights), batch, train=True)[0], batch)

        def step(carry, batch):
            weights, _ = carry
            value, gradient = jax.value_and_grad(loss)(weights, batch)
            return jax.tree.map(lambda w, g: jnp.clip(w - self.rate * g, 0, 1), weights, gradient), value

        def continues(carry):
            epoch, _, losses = carry
            is_settled = (epoch > _COMPARED) & (jnp.std(losses) < self.threshold)
            return differs & ((epoch == 0) | ~(has_settled | is_settled | (epoch >= self.max_epochs)))

        def run_epoch(carry):
            epoch, weights, losses = carry
            weights, value = view.over_batches(step, (weights, losses[0]), first, size)
            return epoch + 1, weights, losses.at[epoch % _COMPARED].set(value)

        start = differing_with(size, (jnp.zeros((), int), weights, jnp.zeros(_COMPARED)))
        _, weights, _ = jax.lax.while_loop(continues, run_epoch, start)
        return mixture(weights), Mixing(weights, last, has_settled | differs)

    def finish(self, view: FinishView) -> tuple[Mixing, PyTree]:
        return view.memory._replace(last=masks.select(view.model.mask(self.part).params, view.trained.params)), ()
