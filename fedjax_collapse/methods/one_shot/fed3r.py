"""Fed3R: a classifier by ridge regression on the features of a network that is not trained, from one upload.

    clients   A_k = sum z z^T,   b_k = sum z y^T,   z = (f, 1) the features and a 1, y the one-hot label
    server    W = (lambda I + sum_k A_k)^-1 sum_k b_k,   then each class's weights and bias divided by |w_c|

Fani et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers" (ICML 2024). ``lambda`` also
acts on the bias; w_c are the weights of class c without its bias. All clients report once, before the first round, on
the initial network in evaluation mode, so that W depends neither on the partition nor on who takes part later. In the
paper the clients of each round report, until all have. With ``finetune`` the rounds train from this classifier, the
paper's Fed3R+FT: the whole network, or with ``training.freeze="body"`` only the classifier, with ``"head"`` only the
network below it.

Here the bias is eliminated first, which gives the same W and rounds less where the mean m of the N features is large:
with a = N / (N + lambda), weights solve ``(sum f f^T - a N m m^T + lambda I) W = sum f y^T - a m n^T``, and the bias is
``(n - N W^T m) / (N + lambda)``.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.methods.one_shot._closed_form import ClosedForm, Sums, inverse_times, times
from fedjax_collapse.schema.options import Positive, option


class Fed3R(ClosedForm):
    """Ridge regression on the features of all clients.

    Args:
        ridge: factor lambda; also acts on the bias.
        normalize: whether each class's weights have length 1, as in the released code.
        finetune: whether clients then train the network, the paper's Fed3R+FT (only its classifier with
            ``training.freeze="body"``, only the rest with ``"head"``).
    """

    ridge: Positive = 0.01
    normalize: bool = option(True)
    finetune: bool = option(False)

    def solve(self, sums: Sums) -> tuple[jax.Array, jax.Array]:
        size, mean, products = sums.centred()
        whole, rest = size / (size + self.ridge), self.ridge / (size + self.ridge)
        right = (sums.features - whole * jnp.outer(sums.counts, mean)).T
        kernel = inverse_times(products + rest * size * jnp.outer(mean, mean), right, self.ridge)
        bias = (sums.counts - size * times(mean[None], kernel)[0]) / (size + self.ridge)
        if self.normalize:
            length = jnp.linalg.norm(kernel, axis=0)
            length = jnp.where(length > 0, length, 1)
            kernel, bias = kernel / length, bias / length
        return kernel, bias
