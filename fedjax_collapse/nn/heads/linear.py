"""The linear classifier: logits = features @ kernel + bias."""

import flax.linen as nn
import jax

from fedjax_collapse.nn.layers import Dense, torch_uniform


class Linear(nn.Module):
    """A ``Dense`` layer with the initialiser of its network's classifier (``Network.head_init``).

    Attributes:
        use_bias: whether the logits have a bias.
    """

    num_classes: int
    use_bias: bool = True

    def __call__(self, features: jax.Array) -> jax.Array:
        network = self.parent  # the layer belongs to the network, numbered after its other layers
        inits = network.head_init, network.head_bias_init
        return Dense(self.num_classes, self.use_bias, *inits, part="head", parent=network)(features)


def as_linear(head: nn.Module, features: jax.Array) -> jax.Array:
    """Returns logits with params of ``head`` itself, initialised as in ``Linear``, inside its compact method."""
    inits = (getattr(head.parent, f"head_{of}init", torch_uniform) for of in ("", "bias_"))
    layer = Dense(head.num_classes, head.use_bias, *inits)
    nn.share_scope(head, layer)
    return layer(features)
