"""A little is enough: malicious clients send the honest updates' mean minus a few standard deviations.

    sent = mean(H) - z std(H)
    z = Phi^-1((n - f - s) / (n - f)),   s = floor(n / 2) + 1 - f

Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning" (NeurIPS 2019): f of the n uploads
that count are malicious, s honest ones are to be farther from the mean than these, H are the n - f honest ones, and the
deviation has the divisor n - f - 1. blades adds z std(H). If at least half of the honest updates have to be farther, as
with f = 2 of n = 10, z is 0: only the variance is attacked, and a warning is logged.
"""

import warnings

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.robust._attacks import Attack, Honest, OmniscientAttack
from fedjax_collapse.schema.options import NonNegative


class ALIE(OmniscientAttack):
    """The mean minus z deviations.

    Args:
        z: number z of deviations; None is the largest that hides among the honest updates.
    """

    z: NonNegative | None = None

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        Attack.check_cohort(self, cohort_size, num_clients)
        malicious = round(self.count(num_clients) * cohort_size / num_clients)
        if self.z is None and deviations(cohort_size - malicious, malicious) == 0:
            warnings.warn(
                f"ALIE: with {malicious} of {cohort_size} clients in a cohort malicious z is 0, so that they send the "
                "mean; set z or another share",
                stacklevel=2,
            )

    def forge(self, honest: Honest) -> PyTree:
        z = deviations(honest.count, honest.num_malicious) if self.z is None else self.z
        return jax.tree.map(lambda mean, std: (mean - z * std).astype(mean.dtype), honest.mean, honest.deviation)


def deviations(honest: jax.Array | int, malicious: jax.Array | int) -> jax.Array:
    """Returns z for these numbers of uploads; at least 0, and finite."""
    supporters = jnp.maximum((honest + malicious) // 2 + 1 - malicious, 1)
    hidden = 1 - supporters / jnp.maximum(honest, 1)
    return jnp.where(hidden > 0.5, jax.scipy.special.ndtri(jnp.maximum(hidden, 0.5)), 0)
