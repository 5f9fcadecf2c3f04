"""FedDC: each client learns its drift from the server's model; control variates correct its gradient.

    local gradient   g + alpha_i (w - w_server + h_i) + g_server / omega_i - g_i,   alpha_i = alpha / omega_i
    after training   h_i <- h_i + (w_i - w_server)
                     g_i <- g_i - g_server / omega_i - (w_i - w_server) / (K_s eta)
    server           w <- mean_i w_i + mean_k h_k,   g_server <- g_server + (1 / K) sum_i omega_i (change of g_i)

Here i runs over the cohort and k over all K clients, both unweighted, ``omega_i = K N_i / N``, and K_s is the number of
steps of a client of mean size. Gao et al. (2022) and its released code, in which eta in ``K_s eta`` is the learning
rate before any schedule. All corrections are part of the gradient that is clipped. They cover params only; BatchNorm's
running statistics are averaged.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, OverClients, RoundView
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import NonNegative, option


class FedDC(OverClients):
    """Local drift decoupling and correction.

    Args:
        alpha: strength of the penalty on the distance to the drift-corrected start.
        evaluate: evaluated model: the mean of the cohort's models (``active``) or the server's model (``cloud``).
    """

    not_sent = ("shared/drift/*", "fixed/drift/*")
    reports_update = ("drift/*",)

    alpha: NonNegative = 0.01
    evaluate: str = option("active", choices=("active", "cloud"))

    weighting = "equal"

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        return {"drift": zeros, "gradient": zeros}

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        alpha, size = self.alpha / view.client.relative_size, view.client.relative_size

        def corrected(g, w, w_server, h_i, g_server, g_i):
            return g + alpha * (w - w_server + h_i) + (g_server / size - g_i)

        of_client = view.memory["drift"], view.shared["gradient"], view.memory["gradient"]
        return jax.tree.map(corrected, gradient, params, view.server.params, *of_client)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        client, training = view.client, view.training
        distance = jnp.maximum(training.mean_client_steps(client.mean_size), 1) * training.learning_rate
        gradient_change = jax.tree.map(
            lambda g, delta: -g / client.relative_size - delta / distance, view.shared["gradient"], view.update
        )
        part_of_mean = {
            "drift": jax.tree.map(lambda delta: delta / client.num_clients, view.update),
            "gradient": jax.tree.map(
                lambda change: client.relative_size / client.num_clients * change, gradient_change
            ),
        }
        return jax.tree.map(jnp.add, view.memory, {"drift": view.update, "gradient": gradient_change}), part_of_mean

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, update, shared["drift"])

    def evaluated(self, variables: Variables, shared: PyTree, model: Model) -> Variables:
        if self.evaluate == "cloud":
            return variables
        return variables._replace(params=jax.tree.map(jnp.subtract, variables.params, shared["drift"]))
