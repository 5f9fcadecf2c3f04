"""AFL: the clients' least squares on features of a network that is not trained, and their exact aggregation.

    clients   C_k = X_k^T X_k + gamma I,   W_k = C_k^-1 X_k^T Y_k,   X_k the features, Y_k the one-hot labels
    server    C = sum_k C_k,   W = C^-1 sum_k C_k W_k
    cleaned   W <- W + K gamma (C - K gamma I)^-1 W

He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models" (CVPR 2025). There is
no bias. As C_k W_k = X_k^T Y_k, clients here send this sum, of the same size as W_k. Then W is
``(X^T X + K gamma I)^-1 X^T Y`` with the examples of all K clients. The cleaned W is ``(X^T X)^-1 X^T Y`` for any
gamma: least squares, the default here. With ``gamma`` W is not cleaned, and depends on the number of clients, but on
nothing else of the partition. All clients report once, before the first round, on the initial network in evaluation
mode.

The released code computes in float64; here sums are in float32, unless JAX's default is float64. If features are
linearly dependent, W is the smallest solution.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.methods.one_shot._closed_form import ClosedForm, Sums, inverse_times
from fedjax_collapse.schema.options import NonNegative, option


class AFL(ClosedForm):
    """Least squares on the features of all clients, without bias.

    Args:
        gamma: added to the diagonal by each client and not removed, so that W depends on the number of clients; 0 is
            the cleaned W.
        finetune: whether clients then train the network.
    """

    gamma: NonNegative = 0.0
    finetune: bool = option(False)

    def solve(self, sums: Sums) -> tuple[jax.Array, jax.Array]:
        kernel = inverse_times(sums.products, sums.features.T, sums.clients * self.gamma)
        return kernel, jnp.zeros_like(sums.counts)
