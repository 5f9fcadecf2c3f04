"""FedRoD's classifier: a generic linear head, whose logits the network returns, and a personal one for each client.

    logits = features @ kernel + bias;     FedRoD adds   features @ personal/kernel + personal/bias

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification" (ICLR 2022). Only the
method ``FedRoD`` uses the personal head, whose params, ``head/personal``, stay at the client.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.nn.heads.linear import as_linear


class TwoHeads(nn.Module):
    """Logits of the generic head.

    Attributes:
        use_bias: whether the logits have a bias.
        copied: whether the personal head starts as a copy of the generic one, as in PFLlib and FL-bench, which doubles
            the logits; otherwise it starts at 0 and does not change them.
    """

    num_classes: int
    use_bias: bool = True
    copied: bool = False

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        logits = as_linear(self, features)
        generic = {name: self.get_variable("params", name) for name in ("kernel", "bias")[: 1 + self.use_bias]}
        self.param("personal", lambda key: generic if self.copied else jax.tree.map(jnp.zeros_like, generic))
        return logits
