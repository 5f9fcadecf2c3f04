"""FedExP: the server extrapolates, the farther the more the clients' updates point apart.

    w <- w + eta D,   D = sum_i p_i D_i,   eta = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + M eps)))

with D_i the update of params that client i sends, p_i its weight and M the number of clients whose updates arrive.
Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023). With ``variant="paper"``
eps is not multiplied by M, as in the paper; the released code does so. Evaluated is the mean of the last two models, as
published, or the ``last``; of BatchNorm's running statistics, which are averaged plainly, always the last.

``eps`` is the published one of CIFAR (0.1 for EMNIST). The released code decays the learning rate by 0.998 a round and
``eps`` by its square (``eps_decay=0.998**2``), the first round included; here neither decays unless one says so. The
code released with FedVLS takes norms over the whole state, so that its eta is always 1.

Norms are of what is sent, after all methods have changed it. D must be its mean, so FedExP comes before other methods
that change the server's update, which then get eta D, as a server optimizer does. Each client sends one number more.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core.options import Positive, Share, option
from fedjax_collapse.core.records import Outputs, PyTree, Scalar, UserError, Variables
from fedjax_collapse.methods.base import FinishView, Method
from fedjax_collapse.nn.model import Model


class Kept(NamedTuple):
    """What the server keeps."""

    previous: PyTree  # params before the last round; those after it if it was the first
    rounds: jax.Array  # with the one that is under way


@struct.dataclass
class FedExP(Method):
    """Extrapolation of the server's step."""

    eps: Positive = 1e-3
    eps_decay: Share = 1.0
    variant: str = option("official", choices=("official", "paper"))
    evaluate: str = option("average", choices=("average", "last"))

    def check_among(self, methods: Mapping[str, Method]) -> None:
        name, first = next((name, method) for name, method in methods.items() if method.has("aggregate"))
        if first is not self:
            raise UserError(f"FedExP: {name} changes the server's update before it; expected FedExP first")

    def init_shared(self, variables: Variables, shapes: Outputs) -> Kept:
        return Kept(variables.params, jnp.zeros(()))

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, (view.client.weight * _squared_norm(view.sent), jnp.ones(()))

    def combine(self, shared: Kept, report: PyTree) -> Kept:
        return shared._replace(rounds=shared.rounds + 1)

    def aggregate(self, update: PyTree, shared: Kept, report: PyTree) -> PyTree:
        squared_norms, count = report
        eps = self.eps * self.eps_decay**shared.rounds
        eta = extrapolation(squared_norms, update, eps * count if self.variant == "official" else eps)
        return jax.tree.map(lambda leaf: eta * leaf, update)

    def after_round(self, shared: Kept, before: Variables, after: Variables, measured: PyTree) -> Kept:
        previous = jax.tree.map(lambda w, new: jnp.where(shared.rounds > 1, w, new), before.params, after.params)
        return shared._replace(previous=previous)

    def evaluated(self, variables: Variables, shared: Kept, model: Model) -> Variables:
        if self.evaluate == "last":
            return variables
        mean = jax.tree.map(lambda new, old: (new + old) / 2, variables.params, shared.previous)
        return variables._replace(params=mean)


def extrapolation(squared_norms: jax.Array, mean: PyTree, eps: Scalar) -> jax.Array:
    """``max(1, squared_norms / (2 (||mean||^2 + eps)))``; ``squared_norms``: the weighted mean of those of updates."""
    return jnp.maximum(1, squared_norms / (2 * (_squared_norm(mean) + eps)))


def _squared_norm(tree):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))
