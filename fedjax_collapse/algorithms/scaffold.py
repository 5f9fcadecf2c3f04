"""SCAFFOLD: control variates at server and clients correct every local step for client drift.

    local gradient   g - c_i + c
    after training   c_i+ = c_i - c + (w - w_i) / (K_i eta)          (option II)
    server           w <- mean_i w_i,   c <- c + (1 / K) sum_i (c_i+ - c_i),   K: number of all clients

Karimireddy et al. (2020), with server learning rate 1. The variates start at zero (in the NIID-Bench code: at a random
network) and are of params only (there: also of BatchNorm's statistics). The correction is part of the gradient, so the
local optimizer applies momentum and clipping to it (there: after the optimizer).
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.algorithms.fednova import effective_steps
from fedjax_collapse.records import Client, PyTree, Server, Trained, UserError, Variables
from fedjax_collapse.regularizers.base import option


@struct.dataclass
class Scaffold(Algorithm):
    """Federated averaging with control variates.

    ``normaliser``: K_i, the number of ``steps``, as published; with momentum that is too small by about ``1 / (1 -
    momentum)``, and ``fednova`` takes the effective number of steps instead.
    """

    normaliser: str = option("steps", choices=("steps", "fednova"))

    def check(self) -> None:
        if self.normaliser == "fednova" and not self.training.momentum < 1:
            raise UserError(f"Scaffold: local momentum {self.training.momentum} is too large, expected < 1")

    def init_server(self, variables: Variables) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.params)

    def init_client(self, variables: Variables) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.params)

    def correct(self, gradient: PyTree, params: PyTree, server: Server, client: Client) -> PyTree:
        return jax.tree.map(lambda g, c, c_i: g + (c - c_i), gradient, server.extra, client.state.extra)

    def finish(self, server: Server, client: Client, trained: Trained) -> tuple[Upload, PyTree]:
        steps = trained.steps
        if self.normaliser == "fednova":
            steps = effective_steps(steps, self.training.momentum)
        distance = jnp.maximum(steps, 1) * trained.learning_rate

        def change(c, w, w_i):
            return jnp.where(trained.steps > 0, (w - w_i) / distance - c, 0)

        changes = jax.tree.map(change, server.extra, server.variables.params, trained.variables.params)
        part_of_mean = jax.tree.map(lambda change: change / client.num_clients, changes)
        return Upload(trained.variables, part_of_mean), jax.tree.map(jnp.add, client.state.extra, changes)

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        return upload.mean, jax.tree.map(jnp.add, server.extra, upload.total)
