"""FedDC: every client learns its drift from the global model, and control variates correct its gradient.

    local gradient   g + alpha_i (w - w_server + h_i) + g_server / omega_i - g_i,   alpha_i = alpha / omega_i
    after training   h_i <- h_i + (w_i - w_server)
                     g_i <- g_i - g_server / omega_i - (w_i - w_server) / (K_s eta)
    server           w <- mean_i w_i + mean_k h_k,   g_server <- g_server + (1 / K) sum_i omega_i (change of g_i)

with i over the cohort, k over all K clients, both unweighted, ``omega_i = K N_i / N``, and K_s the number of steps of a
client of mean size. Gao et al. (2022) and its released code, where eta in ``K_s eta`` is the learning rate before any
schedule. All corrections are in the gradient that is clipped. States are of params only; BatchNorm's running statistics
are averaged.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.records import Client, PyTree, Server, Trained, UserError, Variables
from fedjax_collapse.regularizers.base import option


@struct.dataclass
class FedDC(Algorithm):
    """Local drift decoupling and correction. ``evaluate`` as in FedDyn."""

    weighting: str = option("equal", choices=("size", "equal"))
    alpha: float = 0.01
    evaluate: str = option("active", choices=("active", "cloud"))

    def check(self) -> None:
        if self.alpha < 0:
            raise UserError(f"FedDC: alpha {self.alpha} is negative, expected >= 0")

    def init_server(self, variables: Variables) -> PyTree:
        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        return {"drift": zeros, "gradient": zeros}

    def init_client(self, variables: Variables) -> PyTree:
        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        return {"drift": zeros, "gradient": zeros}

    def correct(self, gradient: PyTree, params: PyTree, server: Server, client: Client) -> PyTree:
        alpha = self.alpha / client.share

        def corrected(g, w, w_server, h_i, g_server, g_i):
            return g + alpha * (w - w_server + h_i) + (g_server / client.share - g_i)

        mine, theirs = client.state.extra, server.extra
        return jax.tree.map(
            corrected, gradient, params, server.variables.params, mine["drift"], theirs["gradient"], mine["gradient"]
        )

    def finish(self, server: Server, client: Client, trained: Trained) -> tuple[Upload, PyTree]:
        training = self.training
        distance = training.learning_rate * training.epochs * jnp.ceil(client.mean_size / training.batch_size)
        moved = jax.tree.map(jnp.subtract, trained.variables.params, server.variables.params)
        turned = jax.tree.map(lambda g, delta: -g / client.share - delta / distance, server.extra["gradient"], moved)
        part_of_mean = {
            "drift": jax.tree.map(lambda delta: delta / client.num_clients, moved),
            "gradient": jax.tree.map(lambda change: client.share / client.num_clients * change, turned),
        }
        state = jax.tree.map(jnp.add, client.state.extra, {"drift": moved, "gradient": turned})
        return Upload(trained.variables, part_of_mean), state

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        extra = jax.tree.map(jnp.add, server.extra, upload.total)
        params = jax.tree.map(jnp.add, upload.mean.params, extra["drift"])
        return Variables(params, upload.mean.batch_stats), extra

    def evaluated(self, server: Server) -> Variables:
        if self.evaluate == "cloud":
            return server.variables
        params = jax.tree.map(jnp.subtract, server.variables.params, server.extra["drift"])
        return server.variables._replace(params=params)
