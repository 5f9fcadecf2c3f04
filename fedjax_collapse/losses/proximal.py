"""FedProx's term: stay near the model that the server sent.

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), eq. 2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_collapse.records import PyTree


def proximal_distance(params: PyTree, reference: PyTree) -> Float[Array, ""]:
    """Half the squared Euclidean distance between two trees of parameters: ``1/2 sum (w - w0)^2`` over all entries.

    ``reference`` is a constant; the gradient is ``w - w0``. The FedBN repository's FedProx does not square the norm.
    """
    reference = jax.lax.stop_gradient(reference)
    squares = jax.tree.map(lambda w, w0: jnp.sum((w - w0) ** 2), params, reference)
    return jnp.asarray(0.5 * sum(jax.tree.leaves(squares)))
