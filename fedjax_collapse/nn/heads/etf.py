"""FedETF's head: a trained projector and scale around a fixed simplex classifier.

    logits = s f / ||f|| @ M,   f = features @ kernel + bias   [batch, projector_dim],   M: ``simplex.py``

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
Classifier" (ICCV 2023). As in the released ResNets, the projector has as many outputs as there are classes. In the
paper and in the released CNN (64), M has the dimensions of the features, ``projector_dim=d``. Projector and s are
params of the head like any others; with ``private="head"`` they stay at the client, and with ``freeze="head"`` they do
not change. The ``features`` of a network, which spectra and regularizers use, come before the projector.

A feature vector of norm 0 has no gradient; in the released code it grows to 1e12.
"""

import flax.linen as nn
import jax

from fedjax_collapse.nn.heads.simplex import Simplex
from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.schema.options import Natural, Positive, Seed


class ETF(nn.Module):
    """Scaled cosines of projected features with the vertices of a simplex.

    Attributes:
        num_classes: number of classes.
        projector_dim: number of outputs of the projector; None is the number of classes, 0 no projector.
        scale: initial s: in the released code 1 for ResNets, 10 for its CNN.
        seed: seed of M.
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
