"""MOON: pull the features of each row towards the server's model and away from the client's previous model.

    loss = cross-entropy - strength * log( exp(s_g/t) / (exp(s_g/t) + exp(s_p/t)) ),   s: cosines, t: temperature

Li et al., "Model-Contrastive Federated Learning" (CVPR 2021): t = 0.5, strengths 0.001 to 10. The server's and the
previous model run in evaluation mode. The released code compares the outputs of a projection head that feeds the
classifier; here these are the ``features`` of a network with a ``projector``. By default any network is accepted;
``needs_projector=True`` rejects one without a projector. FedDecorr's code of MOON never uses its temperature: set 1 to
reproduce it.

A client that was never in a cohort has no previous model, and codes use different ones instead. By default it is the
received model: the loss is the constant ln 2 and its gradient exactly 0. ``mask`` trains in the same way but logs 0.
``random_init`` (FedDecorr's code) compares with a network of random weights: here the run's initial model with the
entries of each leaf shuffled, which for independent entries is another draw of the initialisation; the codes draw a
separate one for each client. ``random_later`` (MOON's and FedUV's code) does so from the second round on, without a
contrast in the first round.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.losses import model_contrastive
from fedjax_collapse.methods.base import FinishView, LocalView, Regularizer, Setup, Term
from fedjax_collapse.schema.options import NonNegative, Positive, option


class Previous(NamedTuple):
    """A client's local model at the end of its last round; before its first round, a substitute."""

    variables: Variables
    is_own: jax.Array  # bool, False for the substitute


class MOON(Regularizer):
    """Contrast of the batch's features with the features of the server's and of the client's previous model.

    Args:
        strength: factor mu of the contrast; 0.001 to 10 in the paper.
        temperature: temperature t of the contrast; 0.5 as published.
        first_round: in place of the previous model before a client's first round: the ``received`` model, with gradient
            exactly 0 (``mask`` also logs 0), or a random network (``random_init``, FedDecorr's code; ``random_later``,
            from the second round on, MOON's and FedUV's code).
        needs_projector: whether to reject a network without a projector, which the released code has.
    """

    strength: NonNegative = 1.0
    temperature: Positive = 0.5
    first_round: str = option("received", choices=("received", "random_init", "random_later", "mask"))
    needs_projector: bool = option(False)

    @property
    def stores_common(self) -> bool:
        return self.first_round.startswith("random")

    def check_with(self, setup: Setup) -> None:
        if self.needs_projector and getattr(setup.model.module, "projector", "none") == "none":
            name = type(setup.model.module).__name__
            raise UserError(f"MOON: network {name} has no projector; set network.projector, or needs_projector=False")

    def init_memory(self, variables: Variables, shapes: Outputs) -> Previous:
        if self.first_round.startswith("random"):
            variables = Variables(_shuffle_entries(variables.params), variables.batch_stats)
        return Previous(variables, jnp.zeros((), bool))

    def frozen(self, server: Variables, shared: PyTree, memory: Previous) -> dict[str, Variables]:
        return {"server": server, "previous": memory.variables}

    def penalty(self, view: LocalView) -> dict[str, Term]:
        server, previous = view.frozen["server"].features, view.frozen["previous"].features
        value = model_contrastive(view.outputs.features, server, previous, view.batch.mask, self.temperature)
        if self.first_round != "random_init":  # a constant, so that rounding leaves no gradient
            is_compared = view.round > 0 if self.first_round == "random_later" else view.memory.is_own
            value = jnp.where(is_compared, value, math.log(2) if self.first_round == "received" else 0.0)
        return {"contrastive": Term(self.strength, value)}

    def finish(self, view: FinishView) -> tuple[Previous, PyTree]:
        return Previous(view.trained, jnp.ones((), bool)), ()


def _shuffle_entries(params):
    keys = optax.tree.split_key_like(jax.random.key(0), params)
    return jax.tree.map(lambda p, key: jax.random.permutation(key, p.ravel()).reshape(p.shape), params, keys)
