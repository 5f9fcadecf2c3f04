"""FedDBE: a private vector absorbs the bias of a client's features, whose mean is pulled to a common one.

    logits = head(z + b)                                               b: private, trained, 0 at first
    r <- (1 - momentum) sg(r) + momentum mean_n z_n                    in each step; 0 at the start of a round
    loss = CE + strength * mean_d (r_d - rbar_d)^2 / 2                 sg: no gradient flows

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space" (NeurIPS 2023). rbar is fixed
before the first round: every client trains the initial model as in a round, but without b and the second term; rbar is
the mean of their last r, weighted by size, and the models are discarded. Only ``momentum`` times the gradient of the
second term reaches z. The network has the head ``nn.heads.Shifted``. Clients predict with their b; the server's model
has b = 0.

The defaults are those of the authors' script for a CNN on Fashion-MNIST. PFLlib's defaults are momentum 0.1 and
strength 0, which is FedDBE without its second term.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, LocalView, Method, RoundView, Term
from fedjax_collapse.nn.heads import Shifted
from fedjax_collapse.schema.options import NonNegative, Share


class FedDBE(Method):
    """A private shift of the features, and a common mean for them.

    Args:
        strength: factor kappa of the squared distance between the means.
        momentum: weight mu of a batch in the running mean; also scales the second term's gradient.
    """

    not_sent = ("shared/*",)
    needs = (Shifted,)
    private = "head/shift"
    when_measured = "start"

    strength: NonNegative = 50.0
    momentum: Share = 1.0

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        features = shapes.features
        return jnp.zeros(features.shape[1:], features.dtype), jnp.zeros((), bool)  # rbar, and whether it is known

    def measure(self, view: FinishView) -> PyTree:
        freeze = f"{view.training.frozen_part()}+{self.private}"
        _, mean = view.train(view.server, carried=True, freeze=freeze)
        return view.client.size * mean, view.client.size

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        total, size = measured
        return total / jnp.maximum(size, 1), size > 0

    def init_carry(self, view: RoundView) -> jax.Array:
        mean, _ = view.shared
        return jnp.zeros_like(mean)

    def carry(self, view: LocalView) -> jax.Array:
        mask = view.batch.mask[:, None]
        of_batch = jnp.sum(jnp.where(mask, view.outputs.features, 0), axis=0) / jnp.maximum(jnp.sum(mask), 1)
        return (1 - self.momentum) * view.carry + self.momentum * of_batch

    def penalty(self, view: LocalView) -> dict[str, Term]:
        mean, is_known = view.shared
        distance = jnp.mean((self.carry(view) - mean) ** 2) / 2
        return {"distance": Term(self.strength, jnp.where(is_known, distance, 0))}
