"""FLTrust: updates are weighted by their cosine to an update that the server trusts, and get its norm.

    sum_i relu(cos(u_i, g)) ||g|| / ||u_i|| u_i / sum_i relu(cos(u_i, g))

Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping" (NDSS 2021). There the server has
about 100 examples, on which it trains g. Here the holder of these examples is a client of the federation, ``root``,
whose update is not averaged; so it trains as the others do, on its own examples, and never on the test set. It must be
in every cohort and honest; in a round in which it drops out, or its upload is lost, the server's params do not change,
as if no cosine were positive. Params only; see ``median.py``.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.methods.base import CohortView, Method
from fedjax_collapse.methods.robust import _robust
from fedjax_collapse.optim.aggregation import per_client
from fedjax_collapse.schema.options import Natural


class FLTrust(Method):
    """The mean of rescaled uploads, weighted by trust.

    Args:
        root: identity of the trusted client, whose update is g; attackers are the last clients.
    """

    root: Natural = 0

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        if self.root >= num_clients:
            raise UserError(f"FLTrust: root {self.root}: expected a client, from 0 to {num_clients - 1}")
        if cohort_size < num_clients:
            raise UserError(
                f"FLTrust: a cohort has {cohort_size} of the {num_clients} clients, perhaps without the root client; "
                "expected all of them, participation=1.0"
            )

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        is_root = view.counted & (view.id == self.root)
        trusted = jax.tree.map(lambda leaf: jnp.sum(jnp.where(per_client(is_root, leaf), leaf, 0), axis=0), stacked)
        return _robust.trusted_mean(stacked, view.counted & ~is_root, trusted)
