"""FedProx's term: the distance to the model that the server sent.

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), eq. 2.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses.norms import root
from fedjax_collapse.losses.shapes import Value


def proximal_distance(params: PyTree, reference: PyTree, squared: bool = True) -> Value:
    """Returns half the squared Euclidean distance between two trees of params: ``1/2 sum (w - w0)^2`` over all entries.

    ``reference`` is a constant; the gradient is ``w - w0``. ``squared=False`` returns half the distance, not squared,
    as in the FedBN repository; its gradient is 0 at distance 0.
    """
    reference = jax.lax.stop_gradient(reference)
    squares = jax.tree.map(lambda w, w0: jnp.sum((w - w0) ** 2), params, reference)
    square = sum(jax.tree.leaves(squares))
    return jnp.asarray(0.5 * (square if squared else root(square)))
