"""What a client has of the parts that it keeps for itself as long as it was in no cohort.

    initial   as the network was initialised
    mean      the mean over the last round's cohort of what its clients have of these parts, by aggregation weights

``mean`` is what the code released with FedRep does: its clients start with references to the server's own copy of their
heads, into which each round's mean is written. They start their first round from it, and are scored with it until
then. In the first round, and with all clients in every cohort, both are the same. To the server each client sends its
private parts as well, whose mean it sends back.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse import masks
from fedjax_collapse.method import FinishView, Method
from fedjax_collapse.records import Outputs, PyTree, Variables

CHOICES = ("initial", "mean")


class PrivateHead(Method):
    """Private heads, of newcomers as ``newcomers`` says: the field that a method has besides its own."""

    private = "head"
    newcomers: str

    def has(self, hook: str) -> bool:
        is_asked_for = self.newcomers == "mean" or hook not in ("share_private", "own_parts")
        return is_asked_for and super().has(hook)

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jnp.zeros((), bool) if self.newcomers == "mean" else ()  # whether it has been in a cohort

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
