"""FedFomo: each client weighs the models of others by how much better they are on its own validation examples.

    q_n = (L(w) - L(w_n)) / (|w_n - w| + 1e-5),     a_n = max(q_n, 0) / sum_m max(q_m, 0)
    w  <- w + sum_n a_n (w_n - w),                  unchanged if no q_n is positive; then w is trained

Zhang et al., "Personalized Federated Learning with First Order Model Optimization" (ICLR 2021). w is the client's own
model, and L the task's loss on its validation examples: the last ones, a fraction ``validation`` rounded down, held out
from training. Without any, a client never mixes. Own tests score the mixture; the stage ``trained`` is the model after
training, which PFLlib scores.

The server adds q_n to P_kn, the score of model n for client k, and sends client k the models with the M largest P_kn,
ties broken at random. They are chosen one by one, each with probability epsilon at random instead; in round t epsilon
is ``explore - t explore_decay``. Only models whose last upload arrived are sent. BatchNorm's running statistics are
mixed like params, and are not in the norm.

In PFLlib (``variant="pfllib"``) w in these equations is the model at the start of the client's last training. The
client's own, trained model is one of the M if its P_kk, at first 1, is large enough, and is used if no q_n is positive.
PFLlib does not explore (``explore=0``). Unlike this library it also ranks clients that have not trained, and sends the
initial model for them; its validation loss is the mean of the batches' means. The released code also compares with the
model at the start of the last training, always with the own model among the others, divides by 1-norms, adds to P the
q_n divided by their sum, lowers epsilon in each local epoch, and sends models of the last cohort only.

The server stores M models for every client, on the device.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import ClientView, DispatchView, FinishView, Method, Setup
from fedjax_collapse.schema.options import Count, Fraction, Interval, NonNegative, option


class Offers(NamedTuple):
    """The stored state of a client; models by path."""

    models: dict[str, jax.Array]  # each [models, ...], received by the client
    ids: jax.Array  # [models] their clients; the number of clients for none
    gains: jax.Array  # [models], q_n of the models received last
    begun: dict[str, jax.Array]  # the model at the start of its last training, if the variant needs it
    scores: jax.Array  # [clients], P_kn
    is_known: jax.Array  # bool, whether the server has the client's model


class FedFomo(Method):
    """Mixtures of the models that are best on the client's validation examples.

    Args:
        models: largest number M of models that a client receives.
        validation: fraction of the client's examples, the last ones, held out from its training; rounded down.
        explore: probability epsilon of a random model.
        explore_decay: subtracted from epsilon in every round, until it is 0.
        variant: with ``pfllib`` w is the model at the start of the last training, and the client's own trained model,
            with score 1 at first, may be sent.
    """

    dispatch_reads = ("private/*", "memory/gains")
    dispatch_makes = ("memory/models/*", "memory/ids")
    dispatch_keeps = ("memory/scores", "memory/is_known")
    private = "all"

    models: Count = option(5)
    validation: Annotated[float, Interval(0, 1, "()")] = 0.2
    explore: Fraction = 0.3
    explore_decay: NonNegative = 0.05
    variant: str = option("paper", choices=("paper", "pfllib"))

    def init_memory(self, variables: Variables, shapes: Outputs, setup: Setup) -> Offers:
        own, num_clients = masks.by_path(variables), setup.num_clients
        return Offers(
            models=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.models, *leaf.shape)), own),
            ids=jnp.full(self.models, num_clients),
            gains=jnp.zeros(self.models),
            begun=own if self.variant == "pfllib" else {},
            scores=jnp.zeros(num_clients),
            is_known=jnp.zeros((), bool),
        )

    def receive(self, view: ClientView) -> tuple[Variables, Offers]:
        own, offers = view.server, view.memory
        base, models = masks.replace(own, offers.begun), masks.replace(own, offers.models)
        loss = _validation_loss(view, base)

        def gain(model):
            distance = optax.tree.norm(jax.tree.map(jnp.subtract, model.params, base.params))
            return (loss - _validation_loss(view, model)) / (distance + 1e-5)

        gains = jnp.where(offers.ids < view.client.num_clients, jax.lax.map(gain, models), 0)
        positive = jnp.maximum(gains, 0)
        total = jnp.sum(positive)
        weights = positive / jnp.where(total > 0, total, 1)

        def mix(own, models):
            mixed = jnp.tensordot(weights.astype(own.dtype), models, 1, precision="highest")
            return jnp.where(total > 0, mixed, own)

        start = jax.tree.map(mix, own, models)
        begun = masks.by_path(start) if offers.begun else {}
        return start, offers._replace(gains=gains.astype(offers.gains.dtype), begun=begun)

    def finish(self, view: FinishView) -> tuple[Offers, PyTree]:
        return view.memory._replace(is_known=jnp.zeros((), bool)), ()

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], Offers]:
        offers, num_clients = view.memory, len(view.arrived)
        clients, is_known = jnp.arange(num_clients), offers.is_known | view.arrived
        gains = jnp.where(view.arrived[:, None], offers.gains, 0)
        scores = offers.scores.at[clients[:, None], offers.ids].add(gains, mode="drop")
        ranked, is_own = scores, jnp.eye(num_clients, dtype=bool)
        offered = jnp.broadcast_to(is_known, is_own.shape)
        if self.variant == "pfllib":
            ranked = scores + is_own
        else:
            offered &= ~is_own
        epsilon = self.explore - self.explore_decay * (view.round + 1)
        ids = jax.vmap(self._choose, (0, 0, 0, None))(ranked, offered, jax.random.split(view.key, num_clients), epsilon)
        models = {path: leaf.at[ids].get(mode="clip") for path, leaf in view.private.items()}
        return view.private, offers._replace(models=models, ids=ids, scores=scores, is_known=is_known)

    def _choose(self, scores, offered, key, epsilon):
        """Returns the clients [models] whose models a client receives; ``offered`` [clients] may be chosen."""
        key_explores, key_random, key_ties = jax.random.split(key, 3)
        explores = jax.random.uniform(key_explores, self.models) < epsilon
        at_random = jax.random.uniform(key_random, scores.shape)
        ranks = jnp.argsort(jnp.lexsort((jax.random.uniform(key_ties, scores.shape), scores)))
        ids = []
        for slot in range(self.models):
            value = jnp.where(offered, jnp.where(explores[slot], at_random, ranks), -1)
            ids.append(jnp.where(jnp.any(offered), jnp.argmax(value), len(scores)))
            offered &= jnp.arange(len(scores)) != ids[-1]
        return jnp.stack(ids)


def _validation_loss(view, variables):
    """Returns the mean loss of a model on the client's validation examples; 0 if there are none."""

    def add(total, batch):
        outputs, _ = view.model.apply(variables, batch, train=False)
        return total + view.model.task.loss(outputs, batch) * jnp.sum(batch.mask)

    held_out = view.client.held_out
    return view.over_batches(add, jnp.zeros(()), view.client.size, held_out) / jnp.maximum(held_out, 1)
