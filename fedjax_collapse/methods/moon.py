"""MOON: the features of a row should agree with the server's model rather than with the client's previous one.

    loss = cross-entropy - strength * log( exp(s_g/t) / (exp(s_g/t) + exp(s_p/t)) ),   s: cosines, t: temperature

Li et al., "Model-Contrastive Federated Learning" (CVPR 2021): t = 0.5, strengths 0.001 to 10. The server's and the
previous model run in evaluation mode. The released code compares the output of a projection head that feeds the
classifier; here that is ``features`` of a network with a ``projector``. By default any network will do;
``needs_projector=True`` refuses one without.
FedDecorr's code of MOON never uses its temperature: to reproduce it, set 1.

A client that was never in a cohort has no previous model, and the codes disagree on what then happens. By default it is
the model just received: the loss is the constant ln 2 and its gradient exactly 0. ``mask`` trains alike but logs 0.
``random_init`` (FedDecorr's code) compares with a network of random weights. Ours is the run's initial model with the
entries of every leaf shuffled, which for independent entries is another draw of the initialisation; the codes draw one
for every client. ``random_later`` (MOON's and FedUV's code) does so from the second round on, and the first one has no
contrast.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core.options import NonNegative, Positive, option
from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.losses import model_contrastive
from fedjax_collapse.methods.base import FinishView, LocalView, Regularizer, Term
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining


class Previous(NamedTuple):
    """A client's local model at the end of its last round; not its own as long as it had none."""

    variables: Variables
    is_own: jax.Array  # bool


@struct.dataclass
class MOON(Regularizer):
    """Contrast of the batch's features with those of the server's and the client's previous model."""

    strength: NonNegative = 1.0
    temperature: Positive = 0.5
    first_round: str = option("received", choices=("received", "random_init", "random_later", "mask"))
    needs_projector: bool = option(False)

    def check_with(self, training: LocalTraining, private: str, model: Model) -> None:
        if self.needs_projector and getattr(model.module, "projector", "none") == "none":
            name = type(model.module).__name__
            raise UserError(f"MOON: network {name} has no projector; set network.projector, or needs_projector=False")

    def init_memory(self, variables: Variables, shapes: Outputs) -> Previous:
        del shapes
        if self.first_round.startswith("random"):
            variables = Variables(_shuffle_entries(variables.params), variables.batch_stats)
        return Previous(variables, jnp.zeros((), bool))

    def frozen(self, server: Variables, shared: PyTree, memory: Previous) -> dict[str, Variables]:
        del shared
        return {"server": server, "previous": memory.variables}

    def penalty(self, view: LocalView) -> dict[str, Term]:
        server, previous = view.frozen["server"].features, view.frozen["previous"].features
        value = model_contrastive(view.outputs.features, server, previous, view.batch.mask, self.temperature)
        if self.first_round != "random_init":  # a constant where nothing is compared: no rounding leaves a gradient
            is_compared = view.round > 0 if self.first_round == "random_later" else view.memory.is_own
            value = jnp.where(is_compared, value, math.log(2) if self.first_round == "received" else 0.0)
        return {"contrastive": Term(self.strength, value)}

    def finish(self, view: FinishView) -> tuple[Previous, PyTree]:
        return Previous(view.trained, jnp.ones((), bool)), ()


def _shuffle_entries(params):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    shuffled = [
        jax.random.permutation(k, leaf.ravel()).reshape(leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shuffled)
