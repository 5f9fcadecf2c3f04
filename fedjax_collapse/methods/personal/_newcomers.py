"""The private head of a client that has not yet been in a cohort.

    initial   the initial head of the network
    mean      the mean head of the last round's cohort, by aggregation weights

``mean`` reproduces FedRep's released code: its clients start with references to the server's copy of the head, into
which every round writes that mean. A client starts its first round from the mean, and is evaluated with it until then.
The two agree in the first round, and if every cohort contains all clients. With ``mean`` each client also sends its
private parts to the server, which sends their mean back.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, Method

CHOICES = ("initial", "mean")


class PrivateHead(Method):
    """Base class of methods with private heads; ``newcomers``, a field of subclasses, is one of ``CHOICES``."""

    private = "head"
    newcomers: str

    def has(self, hook: str) -> bool:
        is_needed = self.newcomers == "mean" or hook not in ("share_private", "own_parts")
        return is_needed and super().has(hook)

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jnp.zeros((), bool) if self.newcomers == "mean" else ()  # whether the client has been in a cohort

    def share_private(self, private: dict[str, jax.Array]) -> PyTree:
        return private

    def own_parts(self, private: dict[str, jax.Array], shared: PyTree, memory: PyTree) -> dict[str, jax.Array]:
        return jax.tree.map(lambda own, mean: jnp.where(memory, own, mean), private, shared)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        if self.newcomers == "initial":
            return view.memory, ()
        trained = masks.by_path(view.trained)
        own = {path: trained[path] for path in view.client.state.private}
        return jnp.ones((), bool), jax.tree.map(lambda leaf: (view.client.weight * leaf).astype(leaf.dtype), own)

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return report if self.newcomers == "mean" else shared
