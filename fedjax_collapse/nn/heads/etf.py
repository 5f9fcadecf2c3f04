"""FedETF's head: a trained projector and scale around a fixed simplex of classifiers.

    logits = s f / ||f|| @ M,   f = features @ kernel + bias   [batch, projector_dim],   M: ``simplex.py``

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
Classifier" (ICCV 2023). As in the released ResNets the projector has as many outputs as there are classes; the paper
has M in the dimensions of the features, which is ``projector_dim=d``, and so has the released CNN (64). Projector and s
are the head's params: they are averaged, decayed and get momentum as any others, ``private="head"`` keeps them at the
client, ``freeze="head"`` leaves them as they begin. ``features`` of a network, of which spectra and regularizers are,
come before the projector.

A feature vector of length 0 has no gradient, where the released code's grows to 1e12.
"""

import flax.linen as nn
import jax

from fedjax_collapse.core.options import Natural, Positive, Seed
from fedjax_collapse.nn.heads.simplex import Simplex
from fedjax_collapse.nn.layers import Dense


class ETF(nn.Module):
    """Scaled cosines of projected features with the corners of a simplex.

    ``projector_dim``: outputs of the projector, None for as many as classes, 0 for no projector. ``scale``: the initial
    s, in the released code 1 for ResNets and 10 for its CNN. ``seed``: of M.
    """

    num_classes: int
    projector_dim: Natural | None = None
    scale: Positive = 1.0
    seed: Seed = 0

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        dim = self.num_classes if self.projector_dim is None else self.projector_dim
        projected = Dense(dim)(features) if dim else features
        scale = self.param("scale", nn.initializers.constant(self.scale), ())
        return scale * Simplex(self.num_classes, seed=self.seed)(projected)
