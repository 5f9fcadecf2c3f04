"""FedFomo: each client weighs the models of others by how much better they are on its own validation examples.

    q_n = (L(w) - L(w_n)) / (|w_n - w| + 1e-5),     a_n = max(q_n, 0) / sum_m max(q_m, 0)
    w  <- w + sum_n a_n (w_n - w),                  as received if no q_n is positive; then w is trained

Zhang et al., "Personalized Federated Learning with First Order Model Optimization" (ICLR 2021). L is the task's loss on
the client's last examples, a share ``validation`` of them rounded down, on which it is not trained; w is its own model.
Own tests score the mixture. The server adds q_n to what it knows of client n for the client, P_kn, and sends the models
with the M largest P_kn, ties broken at random; each of them, with probability epsilon, is a random one of the others
instead. epsilon decreases by ``explore_decay`` in every round. The server sends models of clients whose last upload
arrived. BatchNorm's running statistics are mixed like params, and are not in the norm.

The released code subtracts epsilon's decay for each local epoch, always evaluates the client's own model among the
others, and compares them with the client's model at an earlier epoch of its last training. In PFLlib
(``variant="pfllib"``) w in these equations is the model at the start of the client's last training; P is the identity
at first and the client's own, trained model is one of the M, which is also used if no q_n is positive; there is no
epsilon (``explore=0``). The server stores M + 1 models for every client, on the device.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import Count, Fraction, Interval, NonNegative, option
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import ClientView, DispatchView, FinishView, Method


class Offers(NamedTuple):
    """What is stored for a client; models by path."""

    models: dict[str, jax.Array]  # each [models, ...], of others
    ids: jax.Array  # [models] whose they are; the number of clients where there is none
    gains: jax.Array  # [models], q_n of the models that it received last
    begun: dict[str, jax.Array]  # the model at the start of its last training, if the variant needs it
    scores: jax.Array  # [clients], at the server: P_kn
    is_known: jax.Array  # bool, whether the server has the client's model


@struct.dataclass
class FedFomo(Method):
    """Mixtures of the models that are best on the client's validation examples.

    Args:
        models: number of models that a client receives, the paper's M; fewer if there are fewer other clients.
        validation: share of the client's examples, the last ones, that are not trained on.
        explore: probability epsilon that a model is a random one.
        explore_decay: subtracted from epsilon in every round.
        variant: the ``paper``, or what PFLlib compares with and sends (``pfllib``).
    """

    private = "all"

    models: Count = option(5)
    validation: Annotated[float, Interval(0, 1, "()")] = 0.2
    explore: Fraction = 0.3
    explore_decay: NonNegative = 0.05
    variant: str = option("paper", choices=("paper", "pfllib"))

    def init_memory_among(self, variables: Variables, shapes: Outputs, num_clients: int) -> Offers:
        own = masks.by_path(variables)
        return Offers(
            models=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.models, *leaf.shape)), own),
            ids=jnp.full(self.models, num_clients, jnp.int32),
            gains=jnp.zeros(self.models),
            begun=own if self.variant == "pfllib" else {},
            scores=jnp.zeros(num_clients),
            is_known=jnp.zeros((), bool),
        )

    def held_out(self, size: jax.Array) -> jax.Array:
        return jnp.floor(self.validation * size + 1e-3).astype(size.dtype)

    def receive(self, view: ClientView) -> tuple[Variables, Offers]:
        own, offers = view.server, view.memory
        base = masks.replace(own, offers.begun)
        models = jax.tree.unflatten(jax.tree.structure(own), [offers.models[path] for path in masks.by_path(own)])
        losses = jax.lax.map(lambda model: _loss(view, model), models)
        squares = jax.tree.map(
            lambda w, all: jnp.sum((all - w) ** 2, axis=range(1, all.ndim)), base.params, models.params
        )
        gains = gains_of(_loss(view, base), losses, jnp.sqrt(sum(jax.tree.leaves(squares))))
        gains = jnp.where((offers.ids < view.client.num_clients) & (view.held_out > 0), gains, 0)
        weights = shares_of(gains)

        def mix(own, base, all):
            mixed = base + jnp.tensordot(weights.astype(all.dtype), all - base, 1, precision="highest")
            return jnp.where(jnp.any(gains > 0), mixed, own)

        start = jax.tree.map(mix, own, base, models)
        begun = {path: leaf for path, leaf in masks.by_path(start).items() if path in offers.begun}
        return start, offers._replace(gains=gains.astype(offers.gains.dtype), begun=begun)

    def finish(self, view: FinishView) -> tuple[Offers, PyTree]:
        return view.memory._replace(is_known=jnp.zeros((), bool)), ()

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], Offers]:
        offers, arrived, count = view.memory, view.arrived, len(view.arrived)
        itself, is_known = jnp.eye(count, dtype=bool), offers.is_known | arrived
        added = jnp.zeros_like(offers.scores).at[jnp.arange(count)[:, None], offers.ids].add(offers.gains, mode="drop")
        scores = offers.scores + jnp.where(arrived[:, None], added, 0)
        ranked, left = scores, jnp.broadcast_to(is_known, scores.shape)
        if self.variant == "pfllib":
            ranked = scores + itself
        else:
            left &= ~itself
        explores, ranks = self._draw(view, ranked)
        ids = []
        for slot in range(self.models):
            rank = jnp.where(left, jnp.where(explores[:, slot, None], *ranks), count)
            best = jnp.where(jnp.any(left, axis=1), jnp.argmin(rank, axis=1), count)
            left &= best[:, None] != jnp.arange(count)
            ids.append(best.astype(offers.ids.dtype))
        ids = jnp.stack(ids, axis=1)
        models = jax.tree.map(lambda leaf: leaf.at[ids].get(mode="clip"), view.private)
        return view.private, offers._replace(models=models, ids=ids, scores=scores, is_known=is_known)

    def _draw(self, view, scores):
        """Returns which models [clients, models] are random ones, and random ranks and those by score [clients, n]."""
        key_explores, key_random, key_ties = jax.random.split(view.key, 3)
        epsilon = jnp.maximum(self.explore - self.explore_decay * (view.round + 1), 0)
        explores = jax.random.uniform(key_explores, (len(scores), self.models)) < epsilon
        by_chance = jnp.argsort(jax.random.uniform(key_random, scores.shape), axis=1)
        by_score = jnp.lexsort((jax.random.uniform(key_ties, scores.shape), -scores), axis=1)
        return explores, (jnp.argsort(by_chance, axis=1), jnp.argsort(by_score, axis=1))


def gains_of(own: jax.Array, losses: jax.Array, distances: jax.Array) -> jax.Array:
    """Returns q [models], how much lower the losses are than one's own, per distance of the params."""
    return (own - losses) / (distances + 1e-5)


def shares_of(gains: jax.Array) -> jax.Array:
    """Returns the weights [models] of the models in the mixture; zeros if none is better."""
    positive = jnp.maximum(gains, 0)
    total = jnp.sum(positive)
    return positive / jnp.where(total > 0, total, 1)


def _loss(view, variables):
    """Returns the mean loss of a model on the client's validation examples."""

    def add(total, batch):
        outputs, _ = view.model.apply(variables, batch, train=False)
        return total + view.model.task.loss(outputs, batch) * jnp.sum(batch.mask)

    total = view.over_batches(add, jnp.zeros(()), view.client.size, view.held_out)
    return total / jnp.maximum(view.held_out, 1)
