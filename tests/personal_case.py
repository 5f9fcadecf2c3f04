"""A network of two 2-D layers and a few rows in a fixed order, for which PFLlib's own classes were run by hand."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine
from fedjax_collapse.core.records import Outputs, Variables
from fedjax_collapse.nn.layers import Dense

W1, W2 = [[1.0, -1.0], [0.5, 2.0]], [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]  # as in PyTorch, [outputs, inputs]
V1, V2 = np.add(W1, 0.1), np.subtract(W2, 0.2)  # a client's own model
TRAINING = LocalTraining(epochs=1, batch_size=2, learning_rate=0.1)
A, B = ([(1.0, 0.0), (0.0, 1.0)], [0, 2]), ([(1.0, 1.0), (2.0, -1.0)], [1, 0])  # batches


class TwoLayers(nn.Module):
    """``logits = W2 W1 x``, or another head on W1 x."""

    num_classes: int
    head: Any = None

    @nn.compact
    def __call__(self, inputs, mask, train):
        features = Dense(2, use_bias=False, name="body")(inputs.reshape(len(inputs), 2))
        head = self.head or (lambda classes, name: Dense(classes, use_bias=False, name=name))
        return Outputs(features, head(self.num_classes, name="head")(features))


def federation(*clients) -> Federation:
    """Clients with (inputs, labels) each; they are also the test set."""
    inputs = np.concatenate([np.reshape(x, (-1, 1, 1, 2)) for x, _ in clients])
    labels = np.concatenate([y for _, y in clients])
    parts = np.split(np.arange(len(labels)), np.cumsum([len(y) for _, y in clients])[:-1])
    return Federation.from_arrays(inputs, labels, parts, inputs, labels, 0.0, 1.0)


def batches(*of_client) -> tuple:
    """One client's batches, as the rows of a federation."""
    return tuple(np.concatenate(parts) for parts in zip(*of_client, strict=True))


def system() -> Federation:
    """Three clients with 4, 2 and 4 rows, of section "system case"."""

    def rows(k, count):
        x = [(round(np.cos(k + i), 4), round(np.sin(2 * k + i), 4)) for i in range(count)]
        return x, [(k + i) % 3 for i in range(count)]

    return federation(*(rows(k, count) for k, count in enumerate((4, 2, 4))))


def variables(one=W1, two=W2, **head) -> Variables:
    """Of the network, from matrices as in PyTorch; ``head``: other params of the head than its kernel."""
    one, two = jnp.asarray(one, float).T, jnp.asarray(two, float).T
    return Variables({"body": {"kernel": one}, "head": {"kernel": two, **head}}, {})


def matrices(found: Variables) -> tuple[np.ndarray, np.ndarray]:
    """The two matrices, as in PyTorch."""
    return np.asarray(found.params["body"]["kernel"]).T, np.asarray(found.params["head"]["kernel"]).T


def run(
    algorithm: FedAvg, federation: Federation, rounds=1, start=None, head=None, memory=None, private=None, shared=None
):
    """The state after rounds of all clients.

    ``memory`` and ``private``, stacked, and the server's ``shared`` replace those at the start.
    """
    model = Model(TwoLayers(3, head), (1, 1, 2))
    algorithm.check(model)
    state = engine.init(algorithm, model, start or variables(), federation.num_clients, jax.random.key(0))
    clients = state.clients
    if memory is not None:
        clients = clients._replace(memory={**clients.memory, **memory})
    if private is not None:
        clients = clients._replace(private={**clients.private, **private})
    static = engine.RoundSpec(model, engine.Layout(engine.Chunked(1), federation.num_clients, max_rounds=3))
    data = engine.Assignment(federation.ownership)
    server = state.server._replace(shared={**state.server.shared, **(shared or {})})
    state = state._replace(server=server, clients=clients)
    algorithm, state = jax.tree.map(jnp.array, (algorithm, state))  # copies, as the rounds donate them
    state, _ = engine.with_first_reports(static, algorithm, state, data, federation.train)
    return jax.device_get(
        engine.run_rounds(static, algorithm, state, data, federation.train, rounds).state._replace(key=None)
    )


def of_client(stacked, client=0):
    """One client's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[client], stacked)


def close(found, expected, tolerance=6e-6):
    """Within half of the last digit that is known."""
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
