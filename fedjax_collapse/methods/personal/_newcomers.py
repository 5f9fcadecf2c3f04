"""The private head of a client that has not yet been in a cohort.

    initial   the initial head of the network
    mean      the mean head of the last round's cohort, by aggregation weights

``mean`` reproduces FedRep's released code, whose clients start with references to the server's head, to which every
round assigns that mean. A client starts its first round from the mean, and is evaluated with it before. Both choices
agree if every cohort contains all clients. With ``mean`` each client also sends its private parts to the server, which
sends their mean back.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import DispatchView, FinishView, Method, Setup

CHOICES = ("initial", "mean")


class PrivateHead(Method):
    """Base class of methods with private heads; ``newcomers``, a field of subclasses, is one of ``CHOICES``."""

    private = "head"
    dispatch_reads = dispatch_makes = ()  # clients receive the mean as the server's state

    @property
    def unused(self) -> tuple[str, ...]:
        hooks = "init_shared", "init_memory", "finish", "combine", "dispatch"
        return () if self.newcomers == "mean" else hooks

    def init_shared(self, variables: Variables, shapes: Outputs, setup: Setup) -> PyTree:
        return masks.select(setup.model.mask(setup.private), variables)

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jnp.zeros((), bool)  # whether the client has been in a cohort

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        trained = masks.by_path(view.trained)
        own = {path: trained[path] for path in view.client.state.private}
        return jnp.ones((), bool), jax.tree.map(lambda leaf: (view.client.weight * leaf).astype(leaf.dtype), own)

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return report

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], PyTree]:
        def of_clients(own, mean):
            return jax.vmap(jnp.where, (0, 0, None))(view.memory, own, mean)

        return jax.tree.map(of_clients, view.private, view.shared), view.memory
