"""FedCM: each local step mixes in the mean gradient of the last round. Combined with FedSAM it is MoFedSAM.

    local gradient   alpha g + (1 - alpha) Delta
    server           Delta <- sum_i p_i (w - w_i) / (K_i eta),   p_i: aggregation weights, K_i: number of local steps

Xu et al., "FedCM: Federated Learning with Client-level Momentum" (2021); MoFedSAM: Qu et al., "Generalized Federated
Learning via Sharpness Aware Minimization" (ICML 2022). Delta starts at 0, so the steps of the first round are short.

FedLESAM's released code does not multiply g by alpha in MoFedSAM (``variant="official"``, for MoFedSAM only);
FL-Simulator's MoFedSAM is the paper's mixture (``paper``). Both codes divide by the learning rate of the round in which
Delta was computed, as here, so a learning rate that decays over rounds changes nothing. They use one K for all clients,
computed from client 0: its epochs times its examples over the batch size, not necessarily an integer. Here each client
uses its own K_i.

The local optimizer receives the mixture. If it has momentum, which was not published, K_i is FedNova's effective
number of steps, so that Delta remains a mean of gradients; with the plain number of steps Delta would grow without
bound for a momentum above alpha. Private parts are excluded.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, Method, RoundView, Setup
from fedjax_collapse.methods.drift.fednova import check_momentum, effective_steps
from fedjax_collapse.schema.options import Share, option


class FedCM(Method):
    """Client-level momentum.

    Args:
        alpha: weight of the client's own gradient; 1 is federated averaging.
        variant: factor of the own gradient: ``alpha`` (``paper``) or 1 (``official``, for MoFedSAM).
    """

    reports_update = ("*",)

    alpha: Share = 0.1
    variant: str = option("paper", choices=("paper", "official"))

    def check_with(self, setup: Setup) -> None:
        check_momentum("FedCM", setup.training)

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.params)

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        own = self.alpha if self.variant == "paper" else 1
        return jax.tree.map(lambda g, mean: own * g + (1 - self.alpha) * mean, gradient, view.shared)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        scale = -view.client.weight / (jnp.maximum(effective_steps(view), 1) * view.learning_rate)
        return view.memory, jax.tree.map(lambda delta: scale * delta, view.update)

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return report
