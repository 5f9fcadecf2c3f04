"""FedCGS: a Gaussian classifier from the means and the common covariance of features of a network that is not trained.

    clients   counts n_c, sums of features of each class, sum f f^T
    server    W = mu S^-1,   b_c = - mu_c^T S^-1 mu_c / 2 + log(n_c / N),   mu_c the means, S the covariance

Guan et al., "Capture Global Feature Statistics for One-Shot Federated Learning" (AAAI 2025). S is the same for all
classes: Gaussians with a common covariance have linear boundaries. The released code takes the covariance of all
features, with divisor N - 1 (``covariance="total"``); a classifier of Gaussians needs the covariance within classes,
with divisor N minus the number of classes (``"within"``). All clients report once, before the first round, on the
initial network in evaluation mode, so that the classifier depends neither on the partition nor on the order of the
clients.

S is not regularised unless ``shrink`` is above 0: with fewer examples than features it is singular, and directions
without variance are left out; the released code inverts S. ``covariance="within"`` with ``shrink=0.05`` is the LDA of
GH-OFL (``gh_ofl.py``). A class without examples is never predicted: its bias is -1e9.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.methods.one_shot._closed_form import ClosedForm, Sums, inverse_times, log_shares, shrunk, times
from fedjax_collapse.schema.options import Fraction, option


class FedCGS(ClosedForm):
    """Gaussians of the classes with a common covariance.

    Args:
        covariance: covariance of all features (``total``, divisor N - 1), or of their deviations from their class's
            mean (``within``, divisor N - C).
        shrink: weight a of ``(1 - a) S + a (tr S / d) I + 1e-6 I``, which replaces S; 0 is S.
        finetune: whether clients then train the network.
    """

    covariance: str = option("total", choices=("total", "within"))
    shrink: Fraction = 0.0
    finetune: bool = option(False)

    def solve(self, sums: Sums) -> tuple[jax.Array, jax.Array]:
        (size, mean, products), counts = sums.centred(), sums.counts
        means = sums.features / jnp.maximum(counts, 1)[:, None]
        divisor = size - 1
        if self.covariance == "within":
            around = jnp.where(counts[:, None] > 0, means - mean, 0)
            products = products - times((counts[:, None] * around).T, around)
            divisor = size - jnp.sum(counts > 0)
        covariance = products / jnp.maximum(divisor, 1)
        covariance = jnp.where(self.shrink > 0, shrunk(covariance, self.shrink), covariance)
        kernel = inverse_times(covariance, means.T)
        return kernel, log_shares(counts) - jnp.sum(means.T * kernel, axis=0) / 2
