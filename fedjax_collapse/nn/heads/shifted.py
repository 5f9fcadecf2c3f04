"""FedDBE's classifier: a linear head on features that each client shifts.

    logits = (features + shift) @ kernel + bias

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space" (NeurIPS 2023). The shift starts
at 0 and is trained like other params; the method ``FedDBE`` leaves it, ``head/shift``, at the client. The ``features``
of a network, which spectra and regularizers use, come before the shift.
"""

import flax.linen as nn
import jax

from fedjax_collapse.nn.heads.linear import as_linear


class Shifted(nn.Module):
    """Logits of the shifted features.

    Attributes:
        use_bias: whether the logits have a bias.
    """

    num_classes: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        return as_linear(self, features + self.param("shift", nn.initializers.zeros, features.shape[1:]))
