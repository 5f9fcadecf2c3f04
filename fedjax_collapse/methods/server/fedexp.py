"""FedExP: the server extrapolates, by a larger factor the more the clients' updates differ in direction.

    w <- w + eta D,   D = sum_i p_i D_i,   eta = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + M eps)))

with D_i the update of params that client i sends, p_i its weight and M the number of clients whose updates arrive.
Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023). With ``variant="paper"``
eps is not multiplied by M, as in the paper; the released code multiplies it. As published, the mean of the last two
models is evaluated (``last``: only the last one); BatchNorm's running statistics, which are averaged without
extrapolation, are always the last.

``eps`` is the published value for CIFAR (0.1 for EMNIST). The released code decays the learning rate by 0.998 per round
and ``eps`` by its square (``eps_decay=0.998**2``), including the first round; here neither decays by default. The code
released with FedVLS takes norms over the whole state, so its eta is always 1.

Norms are of the sent updates, after the ``upload`` of all methods. D must be the mean of these updates, so FedExP comes
before other methods that change the server's update; these receive eta D, as a server optimizer does. Each client sends
one additional number.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import Outputs, PyTree, Scalar, Variables
from fedjax_collapse.methods.base import NEEDS_MEAN, Exclusion, FinishView, Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import Positive, Share, option


class Shared(NamedTuple):
    """State of the server."""

    previous: PyTree  # params before the last round; after the first round, the params after it
    rounds: jax.Array  # number of rounds, including the current one


class FedExP(Method):
    """Extrapolation of the server's update.

    Args:
        eps: epsilon; 1e-3 as published for CIFAR, 0.1 for EMNIST.
        eps_decay: factor of ``eps`` from round to round.
        variant: whether ``eps`` is multiplied by the number of clients (``official``) or not (``paper``).
        evaluate: evaluated model: the mean of the last two models (``average``, as published), or the ``last`` one.
    """

    not_sent = ("shared/*", "report/1")
    excludes = (
        Exclusion(("aggregate",), "{other} changes the server's update before {own}; put {own} first", is_earlier=True),
        *NEEDS_MEAN,
    )
    eps: Positive = 1e-3
    eps_decay: Share = 1.0
    variant: str = option("official", choices=("official", "paper"))
    evaluate: str = option("average", choices=("average", "last"))

    def init_shared(self, variables: Variables, shapes: Outputs) -> Shared:
        return Shared(variables.params, jnp.zeros(()))

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, (view.client.weight * optax.tree.norm(view.sent, squared=True), jnp.ones(()))

    def combine(self, shared: Shared, report: PyTree) -> Shared:
        return shared._replace(rounds=shared.rounds + 1)

    def aggregate(self, update: PyTree, shared: Shared, report: PyTree) -> PyTree:
        squared_norms, count = report
        eps = self.eps * self.eps_decay**shared.rounds
        eta = extrapolation(squared_norms, update, eps * count if self.variant == "official" else eps)
        return jax.tree.map(lambda leaf: eta * leaf, update)

    def after_round(self, shared: Shared, before: Variables, after: Variables, measured: PyTree) -> Shared:
        previous = jax.tree.map(lambda w, new: jnp.where(shared.rounds > 1, w, new), before.params, after.params)
        return shared._replace(previous=previous)

    def evaluated(self, variables: Variables, shared: Shared, model: Model) -> Variables:
        if self.evaluate == "last":
            return variables
        mean = jax.tree.map(lambda new, old: (new + old) / 2, variables.params, shared.previous)
        return variables._replace(params=mean)


def extrapolation(squared_norms: jax.Array, mean: PyTree, eps: Scalar) -> jax.Array:
    """Returns ``max(1, squared_norms / (2 (||mean||^2 + eps)))``.

    ``mean`` is the weighted mean of the updates, ``squared_norms`` the weighted mean of their squared norms.
    """
    return jnp.maximum(1, squared_norms / (2 * (optax.tree.norm(mean, squared=True) + eps)))
