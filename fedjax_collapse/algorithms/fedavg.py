"""Federated averaging, and by its server optimizer also FedAvgM, FedAdagrad, FedAdam and FedYogi.

    cohort trains from w;   w <- w + server_optimizer(mean_k w_k - w),   weights N_k / sum N_k

McMahan et al. (2017); Hsu et al. (2019) for FedAvgM; Reddi et al. (2021) for the adaptive ones. The server optimizer
acts on params, and BatchNorm's running statistics are averaged plainly. The released FedDecorr and MOON code applies
server momentum to the statistics as well (``optimized="all"``), which can make a running variance negative.
"""

import jax
from flax import struct

from fedjax_collapse.aggregation import Upload, server_step
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.records import PyTree, Server, Variables
from fedjax_collapse.regularizers.base import option


@struct.dataclass
class FedAvg(Algorithm):
    """Federated averaging.

    ``server_optimizer``: ``jax.tree_util.Partial`` of an optax constructor, such as ``Partial(optax.sgd, 1.0,
    momentum=0.5)`` for FedAvgM or ``Partial(damped_momentum, 0.5)`` for its damped form; its numbers are traced.
    None takes the mean itself.
    """

    server_optimizer: jax.tree_util.Partial | None = None
    optimized: str = option("params", choices=("params", "all"))

    def init_server(self, variables: Variables) -> PyTree:
        return () if self.server_optimizer is None else self.server_optimizer().init(self._optimized(variables))

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        if self.server_optimizer is None:
            return upload.mean, server.extra
        old, mean = self._optimized(server.variables), self._optimized(upload.mean)
        new, state = server_step(self.server_optimizer(), server.extra, old, mean)
        return Variables(**{**upload.mean._asdict(), **new}), state

    def _optimized(self, variables):
        """What the server optimizer acts on, by name."""
        return {"params": variables.params} if self.optimized == "params" else variables._asdict()
