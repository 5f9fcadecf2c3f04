"""SCAFFOLD: control variates at the server and the clients correct each local step for client drift.

    local gradient   g - c_i + c
    after training   c_i+ = c_i - c + (w - w_i) / (K_i eta)          (option II)
    server           w <- mean_i w_i,   c <- c + (1 / K) sum_i (c_i+ - c_i),   K: number of all clients

Karimireddy et al. (2020), with server learning rate 1. The variates start at zero (in the NIID-Bench code: at a random
network) and cover params only (there: also BatchNorm's statistics). The correction is part of the gradient, so the
local optimizer applies momentum and clipping to it (there: it is added after the optimizer).

In the released code of FedLESAM-S (``fedlesam.py``) the correction is multiplied by 0.1, ``g + 0.1 (c - c_i)``, while
the variates are updated as here: ``strength=0.1``.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import FinishView, OverClients, RoundView, Setup
from fedjax_collapse.methods.drift.fednova import check_momentum, effective_steps
from fedjax_collapse.schema.options import NonNegative, option


class Scaffold(OverClients):
    """Control variates.

    Args:
        normaliser: divisor of a client's update: its number of ``steps``, as published, too small with momentum by
            about ``1 / (1 - momentum)``, or FedNova's effective number (``fednova``).
        strength: factor of the correction; None is 1, as published.
    """

    normaliser: str = option("steps", choices=("steps", "fednova"))
    strength: NonNegative | None = None

    strengths = ("strength",)

    def check_with(self, setup: Setup) -> None:
        if self.normaliser == "fednova":
            check_momentum("Scaffold", setup.training)

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        def corrected(g, c, c_i):
            return g + (c - c_i if self.strength is None else self.strength * (c - c_i))

        return jax.tree.map(corrected, gradient, view.shared, view.memory)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        steps = effective_steps(view) if self.normaliser == "fednova" else view.steps
        distance = jnp.maximum(steps, 1) * view.learning_rate
        changes = jax.tree.map(
            lambda c, delta: jnp.where(view.steps > 0, -delta / distance - c, 0), view.shared, view.update
        )
        part_of_mean = jax.tree.map(lambda change: change / view.client.num_clients, changes)
        return jax.tree.map(jnp.add, view.memory, changes), part_of_mean
