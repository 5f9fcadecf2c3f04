"""FedLESAM: local steps take the gradient where the server came from, an estimate of the global SAM's perturbation.

    eps    rho u / ||u||,   u = (model received in the client's last round) - (model received now)
    step   w <- optimizer(w, gradient at w + eps)

Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-aware
Minimization" (ICML 2024). One pass a step, as without; u stays the same for a whole round, and is 0 in a client's first
one. Each client keeps a model's params. FedLESAM-S and FedLESAM-D are this method beside SCAFFOLD and FedDyn; released,
FedLESAM-S has a tenth of SCAFFOLD's correction (``Scaffold(strength=0.1)``).

The released code takes the server's last update for u, for every client (``stored="server"``), which is 0 in the first
round and costs a second model in each download. It also looks the flat u up by the number of a tensor: one scalar is
added to all of a tensor, over a norm that is a sum of absolute values. We do not follow it there, as that depends on
how a network lists its tensors. What is private or frozen, the guard of the norm, and the order of all that follows are
as in ``fedsam.py``; the one pass is at w + eps, and so are BatchNorm's statistics and metrics.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import NonNegative, option
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, GradientView, Method
from fedjax_collapse.methods.fedsam import of_length


class Received(NamedTuple):
    """What a client received in its last round; the initial params as long as it had none."""

    params: PyTree
    took_part: jax.Array  # bool


@struct.dataclass
class FedLESAM(Method):
    """Locally estimated sharpness-aware steps.

    ``rho`` is the length of the perturbation. ``stored``: the model that u comes from is each client's own, of its last
    round, or for all of them the ``server``'s before its last update.
    """

    rho: NonNegative = 0.1
    stored: str = option("own", choices=("own", "server"))

    strengths = ("rho",)

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return variables.params if self.stored == "server" else ()

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return Received(variables.params, jnp.zeros((), bool)) if self.stored == "own" else ()

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        if self.stored == "server":
            last, length = view.shared, self.rho
        else:
            last, length = view.memory.params, jnp.where(view.memory.took_part, self.rho, 0)
        back = masks.zero(view.held, jax.tree.map(jnp.subtract, last, view.server.params))
        return gradient_of(jax.tree.map(jnp.add, params, of_length(length, back)))

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        if self.stored == "server":
            return view.memory, ()
        return Received(view.server.params, jnp.ones((), bool)), ()

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        return before.params if self.stored == "server" else shared
