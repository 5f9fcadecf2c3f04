"""A linear layer with adapters, 3 -> 4 unless stated, in whose rounds clients "train" given factors.

HOM are two clients of rank 2 with weights 1/3 and 2/3, HET three with ranks 1, 2 and 2 and weights 1/4, 1/4 and 1/2.
Factors are those of the papers: A [r, in], B [out, r], and products B A [out, in].
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from conftest import forget_rounds

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine
from fedjax_collapse.core.records import Outputs, Variables
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn import adapters as low_rank
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.training.local.context import as_trained

A1, B1 = [[1, 0, 2]], [[1], [0], [-1], [2]]
A2, B2 = [[1, 0, 1], [0, 2, 1]], [[1, 0], [0, 1], [1, 1], [2, -1]]
A3, B3 = [[0, 1, -1], [1, 1, 0]], [[0, 1], [2, 0], [1, -1], [1, 1]]
LAYER = "layer"


class Case(NamedTuple):
    """What each client trains, and its number of examples."""

    factors: tuple | None  # None leaves those that it receives
    sizes: tuple[int, ...]


HOM = Case(((A2, B2), (A3, B3)), (1, 2))
HET = Case(((A1, B1), (A2, B2), (A3, B3)), (1, 1, 2))


class Linear(nn.Module):
    """The layer, and a head."""

    num_classes: int

    @nn.compact
    def __call__(self, inputs, mask, train):
        features = Dense(4, use_bias=False, name=LAYER)(inputs.reshape(len(inputs), -1))
        return Outputs(features, Dense(self.num_classes, use_bias=False, name="head")(features))


def network(rank: int = 2, alpha: float | None = None, inputs: int = 3) -> Model:
    """The network; its scale is alpha / rank, by default 1."""
    return Model(Linear(2), (1, 1, inputs), adapters=LoRA(rank, alpha or float(rank), layers=(LAYER,)))


def with_factors(variables: Variables, a, b) -> Variables:
    """The model with these factors A and B, padded with zeros to its rank."""
    old = low_rank.adapters(variables.params)[LAYER]
    new = old._replace(
        a=jnp.zeros_like(old.a).at[:, : len(a)].set(np.transpose(a)),
        b=jnp.zeros_like(old.b).at[: len(a)].set(np.transpose(b)),
    )
    return variables._replace(params=low_rank.with_adapters(variables.params, {LAYER: new}))


def factors(variables: Variables) -> tuple[np.ndarray, np.ndarray]:
    """A and B of the model."""
    adapter = low_rank.adapters(variables.params)[LAYER]
    return np.asarray(adapter.a).T, np.asarray(adapter.b).T


def product(variables: Variables) -> np.ndarray:
    """s B A of the model."""
    return np.asarray(low_rank.adapters(variables.params)[LAYER].product).T


def kernel(variables: Variables) -> np.ndarray:
    """The matrix of the base."""
    return np.asarray(variables.params[LAYER]["kernel"]).T


def checksum(matrix) -> float:
    """sum_ij (3 i + j + 1) M_ij."""
    return float(np.sum(np.arange(1, 13).reshape(4, 3) * matrix))


def singular_values(matrix) -> np.ndarray:
    """Descending."""
    return np.linalg.svd(matrix, compute_uv=False)


def run(
    monkeypatch,
    method: Method | None,
    case: Case,
    model: Model | None = None,
    start: Variables | None = None,
    round: int = 0,
):
    """The initial model and the state after one round, in which each client trains the factors of the case.

    Args:
        monkeypatch: of pytest.
        method: the method; None is federated averaging.
        case: the clients.
        model: the network, by default of rank 2 and scale 1.
        start: the initial model, by default a random one.
        round: the number of the round.
    """
    model = model or network()

    def train(context):
        received = context.server.variables if context.start is None else context.start
        if case.factors is None:
            return as_trained(received, context)
        given = [with_factors(received, *pair) for pair in case.factors]
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves)[context.client.id], *given)
        trained = jax.tree.map(lambda frozen, old, new: old if frozen else new, constant, received, own)
        return as_trained(trained, context)

    algorithm = FedAvg(LocalTraining(freeze="base"), {} if method is None else {"it": method})
    algorithm.check(model)
    constant = model.mask(algorithm.local_training.frozen_part())
    monkeypatch.setattr("fedjax_collapse.training.local.round.train", train)
    forget_rounds()
    owners = np.repeat(np.arange(len(case.sizes)), case.sizes)
    inputs, labels = np.zeros((len(owners), *model.input_shape)), np.zeros(len(owners), int)
    parts = [np.flatnonzero(owners == client) for client in range(len(case.sizes))]
    federation = Federation.from_arrays(inputs, labels, parts, inputs, labels, 0.0, 1.0)
    start = model.init(jax.random.key(0)) if start is None else start
    state = engine.init(algorithm, model, start, len(case.sizes), jax.random.key(0))._replace(round=round)
    static = engine.RoundSpec(model, engine.Layout(engine.Chunked(1), len(case.sizes), 1))
    algorithm, state, start = jax.tree.map(jnp.array, (algorithm, state, start))  # copies, as the rounds donate them
    data = engine.Assignment(federation.ownership)
    advance = engine.run_rounds(static, algorithm, state, data, federation.train, 1)
    return start, jax.device_get(advance.state._replace(key=None))


def close(found, expected):
    """To ten digits after the point."""
    np.testing.assert_allclose(found, expected, atol=6e-11, rtol=0)
