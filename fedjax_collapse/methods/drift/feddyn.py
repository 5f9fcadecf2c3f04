"""FedDyn: a linear and a quadratic term, updated each round, align the local optima with the global optimum.

    local gradient   g + alpha_i (w - w_server + h_i),   alpha_i = alpha / omega_i,   omega_i = K N_i / N
    after training   h_i <- h_i + (w_i - w_server)
    server           w <- mean_i w_i + mean_k h_k;   i over the cohort, k over all K clients, both unweighted

Acar et al. (2021) in the form of its released code: the paper's ``lambda_i`` is ``-alpha_i h_i``. As in that code,
alpha is scaled per client, ``alpha_i w`` acts as weight decay after clipping, and ``w`` is not the evaluated model.
State and corrections cover params only; BatchNorm's running statistics are averaged.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Scalar, Variables
from fedjax_collapse.methods.base import FinishView, OverClients, RoundView
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import Positive, option


class FedDyn(OverClients):
    """Dynamic regularization.

    Args:
        alpha: strength of the quadratic term for a client of mean size.
        evaluate: evaluated model: the mean of the cohort's models (``active``), the server's model (``cloud``), or the
            mean of all clients' latest models (``all``).
    """

    not_sent = ("shared/*", "fixed/*")
    reports_update = ("h/*",)

    alpha: Positive = 0.01
    evaluate: str = option("active", choices=("active", "cloud", "all"))

    weighting = "equal"

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        state = {"h": jax.tree.map(jnp.zeros_like, variables.params)}
        return {**state, "latest": variables.params} if self.evaluate == "all" else state

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        alpha = self.alpha / view.client.relative_size
        return jax.tree.map(lambda g, w, h_i: g + alpha * (h_i - w), gradient, view.server.params, view.memory["h"])

    def decay(self, view: RoundView) -> Scalar:
        return self.alpha / view.client.relative_size

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        change = {"h": view.update}
        if self.evaluate == "all":
            change["latest"] = jax.tree.map(jnp.subtract, view.public.params, view.memory["latest"])
        part_of_mean = jax.tree.map(lambda delta: delta / view.client.num_clients, change)
        return jax.tree.map(jnp.add, view.memory, change), part_of_mean

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, update, shared["h"])

    def evaluated(self, variables: Variables, shared: PyTree, model: Model) -> Variables:
        if self.evaluate == "cloud":
            return variables
        if self.evaluate == "all":
            return variables._replace(params=shared["latest"])
        return variables._replace(params=jax.tree.map(jnp.subtract, variables.params, shared["h"]))
