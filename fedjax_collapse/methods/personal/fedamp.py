"""FedAMP: each client trains close to a mixture of all clients' models, in which similar models weigh more.

    client  minimises  F_k(w) + strength / (2 alpha) * sum (w - u_k)^2,     from its own model w_k
    server  u_k <- w_k + sum_{j != k} xi_kj (w_j - w_k),     xi_kj = alpha / sigma * exp(-|w_k - w_j|^2 / sigma)

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data" (AAAI 2021). There is no global model: own
tests score w_k. u_k contains params, and starts at the initial model. If a client's last upload was lost, the server
does not know its model: the model is in no mixture, and the client keeps u_k. The sum of xi can exceed 1, unless alpha
/ sigma times the number of other clients is at most 1; sigma is of the order of the squared distances of models, which
grow with the network.

The defaults are PFLlib's, as useful values depend on the network. PFLlib's term, computed from detached tensors, has no
gradient, and its norm is not squared (``variant="pfllib"``): its clients train alone for any lambda. Its mixtures
contain the last cohort's models only. The server stores every client's model and mixture; distances come from inner
products, which need no more memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.losses import proximal_distance
from fedjax_collapse.methods.base import DispatchView, FinishView, LocalView, Method, Term
from fedjax_collapse.schema.options import NonNegative, Positive, option


class Cloud(NamedTuple):
    """The stored state of a client."""

    mixture: dict[str, jax.Array]  # params by path, the paper's u_k
    is_known: jax.Array  # bool, whether the server has the client's model


class FedAMP(Method):
    """Attentive message passing between the clients' models.

    Args:
        strength: factor lambda of the squared distance.
        alpha: step size alpha_k of the server; also divides the strength.
        sigma: squared distance at which a weight is 1 / e of the largest; choose the order of the models' distances,
            which grow with the network.
        variant: term of the ``paper``, or PFLlib's without gradient (``pfllib``), which is local training.
    """

    dispatch_reads = ("private/params/*",)
    dispatch_makes = ("memory/mixture/*",)
    dispatch_keeps = ("memory/is_known",)
    private = "all"

    strength: NonNegative = 1.0
    alpha: Positive = 1.0
    sigma: Positive = 1.0
    variant: str = option("paper", choices=("paper", "pfllib"))

    def init_memory(self, variables: Variables, shapes: Outputs) -> Cloud:
        return Cloud(_by_path(variables.params), jnp.zeros((), bool))

    def penalty(self, view: LocalView) -> dict[str, Term]:
        params, is_squared = _by_path(view.params), self.variant == "paper"
        if not is_squared:
            params = jax.lax.stop_gradient(params)
        distance = proximal_distance(params, view.memory.mixture, is_squared)
        return {"proximal": Term(self.strength / self.alpha, distance)}

    def finish(self, view: FinishView) -> tuple[Cloud, PyTree]:
        return view.memory._replace(is_known=jnp.zeros((), bool)), ()

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], Cloud]:
        is_known = view.memory.is_known | view.arrived
        models = {path: view.private[path] for path in view.memory.mixture}
        weights = self.alpha / self.sigma * jnp.exp(-_squared_distances(models) / self.sigma)
        weights = jnp.where(is_known & ~jnp.eye(len(is_known), dtype=bool), weights, 0)
        weights += jnp.diag(1 - jnp.sum(weights, axis=1))

        def mix(own, before):
            mixed = jnp.tensordot(weights.astype(own.dtype), own, 1, precision="highest")
            return jax.vmap(jnp.where)(is_known, mixed, before)

        return view.private, Cloud(jax.tree.map(mix, models, view.memory.mixture), is_known)


def _by_path(params):
    """Returns params by path as private parts are."""
    return masks.by_path(Variables(params, {}))


def _squared_distances(models):
    """Returns the squared distances [clients, clients] of all params; inner products around the mean round little."""
    rows = [jnp.reshape(leaf - jnp.mean(leaf, axis=0), (len(leaf), -1)) for leaf in models.values()]
    gram = sum(jnp.matmul(row, row.T, precision="highest") for row in rows)
    squares = jnp.diag(gram)
    return jnp.maximum(squares[:, None] + squares - 2 * gram, 0)
