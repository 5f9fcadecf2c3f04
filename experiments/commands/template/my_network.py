"""A network with one hidden layer, whose outputs are the features."""

import flax.linen as nn

from fedjax_collapse import Outputs


class MyNetwork(nn.Module):
    """Features [batch, width] and logits; ``mask`` [batch] is False on rows that only fill up a batch."""

    num_classes: int
    width: int = 64

    @nn.compact
    def __call__(self, images, mask, train):
        features = nn.relu(nn.Dense(self.width)(images.reshape(len(images), -1)))
        return Outputs(features, nn.Dense(self.num_classes, name="head")(features))
