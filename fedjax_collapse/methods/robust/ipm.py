"""Inner-product manipulation: malicious clients send a multiple of minus the honest updates' mean.

sent = -scale mean(H),   H the honest updates of the round that count

Xie et al., "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation" (UAI 2020), with scales of
0.1, 0.5 and 100. The malicious clients know all honest updates.
"""

import jax

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.robust._attacks import Honest, OmniscientAttack
from fedjax_collapse.schema.options import Positive


class IPM(OmniscientAttack):
    """Minus the mean.

    Args:
        scale: factor epsilon; 0.1, 0.5 and 100 as published.
    """

    scale: Positive = 0.5

    def forge(self, honest: Honest) -> PyTree:
        return jax.tree.map(lambda mean: -self.scale * mean, honest.mean)
