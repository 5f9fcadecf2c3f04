"""Adam at the clients, FedAdam as the server of SCAFFOLD: arguments."""

import optax
from jax.tree_util import Partial

from fedjax_collapse import FedAvg, LocalTraining, Scaffold


def local_adam(learning_rate=0.01, **options):
    """Federated averaging of clients that train with Adam."""
    return FedAvg(LocalTraining(learning_rate=learning_rate, optimizer=Partial(optax.adam, b1=0.8), **options))


def scaffold_fedadam(training, learning_rate=0.01):
    """SCAFFOLD's mean update is the gradient of Adam at the server."""
    return FedAvg(training, {"scaffold": Scaffold()}, server_optimizer=Partial(optax.adam, learning_rate))
