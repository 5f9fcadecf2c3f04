"""FedDyn: a linear and a quadratic term, adapted round by round, align the local optima with the global one.

    local gradient   g + alpha_i (w - w_server + h_i),   alpha_i = alpha / omega_i,   omega_i = K N_i / N
    after training   h_i <- h_i + (w_i - w_server)
    server           w <- mean_i w_i + mean_k h_k;   i over the cohort, k over all K clients, both unweighted

Acar et al. (2021) in the form of its released code: the paper's ``lambda_i`` is ``-alpha_i h_i``. As there, alpha is
scaled per client, ``alpha_i w`` acts as weight decay, after clipping, and what is evaluated is not ``w``. State and
corrections are of params only; BatchNorm's running statistics are averaged.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.records import Client, PyTree, Scalar, Server, Trained, UserError, Variables
from fedjax_collapse.regularizers.base import option


@struct.dataclass
class FedDyn(Algorithm):
    """Dynamic regularization.

    ``evaluate``: the mean of the cohort's models (``active``), the server's own (``cloud``), or the mean of every
    client's latest model (``all``), which is the initial one before its first round.
    """

    weighting: str = option("equal", choices=("size", "equal"))
    alpha: float = 0.01
    evaluate: str = option("active", choices=("active", "cloud", "all"))

    def check(self) -> None:
        if not self.alpha > 0:
            raise UserError(f"FedDyn: alpha {self.alpha} is not positive")

    def init_server(self, variables: Variables) -> PyTree:
        return self.init_client(variables)  # h and latest model of the clients, both averaged over all of them

    def init_client(self, variables: Variables) -> PyTree:
        state = {"h": jax.tree.map(jnp.zeros_like, variables.params)}
        return {**state, "latest": variables.params} if self.evaluate == "all" else state

    def correct(self, gradient: PyTree, params: PyTree, server: Server, client: Client) -> PyTree:
        alpha = self.alpha / client.share
        return jax.tree.map(
            lambda g, w, h_i: g + alpha * (h_i - w), gradient, server.variables.params, client.state.extra["h"]
        )

    def decay(self, client: Client) -> Scalar:
        return self.alpha / client.share

    def finish(self, server: Server, client: Client, trained: Trained) -> tuple[Upload, PyTree]:
        state, params = client.state.extra, trained.variables.params
        change = {"h": jax.tree.map(jnp.subtract, params, server.variables.params)}
        if self.evaluate == "all":
            change["latest"] = jax.tree.map(jnp.subtract, params, state["latest"])
        part_of_mean = jax.tree.map(lambda delta: delta / client.num_clients, change)
        return Upload(trained.variables, part_of_mean), jax.tree.map(jnp.add, state, change)

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        mean = jax.tree.map(jnp.add, server.extra, upload.total)
        return Variables(jax.tree.map(jnp.add, upload.mean.params, mean["h"]), upload.mean.batch_stats), mean

    def evaluated(self, server: Server) -> Variables:
        if self.evaluate == "cloud":
            return server.variables
        if self.evaluate == "all":
            return server.variables._replace(params=server.extra["latest"])
        return server.variables._replace(params=jax.tree.map(jnp.subtract, server.variables.params, server.extra["h"]))
