"""FedProx: keep local training close to the model that the server sent.

    loss = cross-entropy + strength / 2 * sum (w - w_server)^2        over params, not BatchNorm's running statistics

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), eq. 2. The authors' code adds the term in
the optimizer's step, which is equivalent for plain SGD; here it is part of the loss, so it enters momentum. In
FedDecorr's released code the term is always 0 (the distance of the local model to itself), which is strength 0 here.
The FedBN repository uses ``strength / 2 * sqrt(sum (w - w_server)^2)`` and omits it in the first round:
``squared=False``.
"""

import jax.numpy as jnp

from fedjax_collapse.losses import proximal_distance
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, option


class FedProx(Regularizer):
    """Half the squared distance between the local and the server's params.

    Args:
        strength: factor mu of the squared distance.
        squared: False takes the distance itself, and omits it in the first round, as FedBN's code does.
    """

    strength: NonNegative = 0.01
    squared: bool = option(True)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        value = proximal_distance(view.params, view.server.params, self.squared)
        value = value if self.squared else jnp.where(view.round == 0, 0, value)
        return {"proximal": Term(self.strength, value)}
