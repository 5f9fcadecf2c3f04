"""FedLESAM: local steps perturb towards the model received before, an estimate of the global SAM perturbation.

    eps    rho u / ||u||,   u = (model received in the client's last round) - (model received now)
    step   w <- optimizer(w, gradient at w + eps)

Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-aware
Minimization" (ICML 2024). Each step takes one pass, as in FedAvg; u is constant within a round, and 0 in a client's
first round. Each client stores the params of one model. FedLESAM-S and FedLESAM-D combine this method with SCAFFOLD and
FedDyn; the released FedLESAM-S multiplies SCAFFOLD's correction by a tenth (``Scaffold(strength=0.1)``).

The released code uses the server's last update as u, for every client (``stored="server"``), which is 0 in the first
round and adds a second model to each download. It also indexes the flattened u by the number of a tensor: one scalar is
added to all entries of a tensor, divided by a norm that is a sum of absolute values. We do not reproduce this, as it
depends on the order in which a network lists its tensors. Private and frozen parts, the guard of the norm, and the
order of the following steps are as in ``fedsam.py``; the one pass is at w + eps, and so are BatchNorm's statistics and
the metrics.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, GradientView, Method
from fedjax_collapse.methods.drift.fedsam import scale_to_norm
from fedjax_collapse.schema.options import NonNegative, option


class Received(NamedTuple):
    """The params that a client received in its last round; the initial params before its first round."""

    params: PyTree
    took_part: jax.Array  # bool


class FedLESAM(Method):
    """Locally estimated sharpness-aware steps.

    Args:
        rho: norm of the perturbation.
        stored: start of u: the model that the client received in its last round (``own``; at first nothing is
            perturbed), or the server's model before its last update (``server``).
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
        return gradient_of(jax.tree.map(jnp.add, params, scale_to_norm(length, back)))

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        if self.stored == "server":
            return view.memory, ()
        return Received(view.server.params, jnp.ones((), bool)), ()

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        return before.params if self.stored == "server" else shared
