"""The projector and the predictor of self-supervised learning, in the place of a classifier.

    h = projector(features);  p = predictor(h);  both Linear, BatchNorm, ReLU, Linear

``features`` are the encoder's, on which probes and ranks are measured. The sizes of the first layers are those of
federated codes for images of 32 x 32 pixels: ``hidden`` 4096 and ``dim`` 2048 in EasyFL (Zhuang et al., ICCV 2021),
2048 and 512 in FedU2's code (Liao et al., CVPR 2024). SimSiam's for ImageNet has three layers and ends in BatchNorm.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.nn.layers import BatchNorm, Dense
from fedjax_collapse.schema.options import Count


class Siamese(nn.Module):
    """Projections and predictions of projections, [batch, 2, dim], in the place of logits.

    Attributes:
        hidden: width of the hidden layers.
        dim: dimension of projections and predictions.
        predictor: whether there is one; otherwise predictions are the projections.
    """

    num_classes: int
    hidden: Count = 2048
    dim: Count = 512
    predictor: bool = True

    @nn.compact
    def __call__(self, features: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        def two_layers(inputs):
            hidden = jax.nn.relu(BatchNorm()(Dense(self.hidden)(inputs), mask, train))
            return Dense(self.dim)(hidden)

        projections = two_layers(features)
        return jnp.stack([projections, two_layers(projections) if self.predictor else projections], axis=1)
