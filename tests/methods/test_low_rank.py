"""Aggregation of adapters, also of different ranks: values in float64, computed by NumPy from the papers' formulas.

A linear layer 3 -> 4 has adapters, in whose rounds clients "train" given factors. HOM are two clients of rank 2 with
weights 1/3 and 2/3, HET three with ranks 1, 2 and 2 and weights 1/4, 1/4 and 1/2. Factors are those of the papers:
A [r, in], B [out, r], and products B A [out, in].
"""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_same_bits, cases, check, forget_rounds, one_line
from engine_rounds import run_rounds
from flax import linen

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, methods
from fedjax_collapse.core.records import Outputs, Variables
from fedjax_collapse.methods import FedRPCA, FedSVD, FlexLoRA, FLoRA, HetLoRA, RaFLoRA, RBLoRA, RoLoRA
from fedjax_collapse.methods.adapters import fedrpca
from fedjax_collapse.methods.base import CohortView, Setup
from fedjax_collapse.nn.adapters import LoRA, with_adapters
from fedjax_collapse.nn.adapters import adapters as adapters_of
from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.optim.aggregation import weighted_sum
from fedjax_collapse.schema.options import constructor
from fedjax_collapse.training.local.context import as_trained

pytestmark = pytest.mark.usefixtures("float64")

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


class Linear(linen.Module):
    """The layer, and a head."""

    num_classes: int

    @linen.compact
    def __call__(self, inputs, mask, train):
        features = Dense(4, use_bias=False, name=LAYER)(inputs.reshape(len(inputs), -1))
        return Outputs(features, Dense(self.num_classes, use_bias=False, name="head")(features))


def network(rank: int = 2, alpha: float | None = None) -> Model:
    """The network; its scale is alpha / rank, by default 1."""
    return Model(Linear(2), (1, 1, 3), adapters=LoRA(rank, alpha or float(rank), layers=(LAYER,)))


def with_factors(variables: Variables, a, b) -> Variables:
    """The model with these factors A and B, padded with zeros to its rank."""
    old = adapters_of(variables.params)[LAYER]
    new = old._replace(
        a=jnp.zeros_like(old.a).at[:, : len(a)].set(np.transpose(a)),
        b=jnp.zeros_like(old.b).at[: len(a)].set(np.transpose(b)),
    )
    return variables._replace(params=with_adapters(variables.params, {LAYER: new}))


def factors(variables: Variables) -> tuple[np.ndarray, np.ndarray]:
    """A and B of the model."""
    adapter = adapters_of(variables.params)[LAYER]
    return np.asarray(adapter.a).T, np.asarray(adapter.b).T


def product(variables: Variables) -> np.ndarray:
    """s B A of the model."""
    return np.asarray(adapters_of(variables.params)[LAYER].product).T


def checksum(matrix) -> float:
    """sum_ij (3 i + j + 1) M_ij."""
    return float(np.sum(np.arange(1, 13).reshape(4, 3) * matrix))


def run(monkeypatch, method, case, model=None, start=None):
    """The initial model, by default a random one, and the state after a round in which clients "train" the case."""
    model = model or network()

    def train(context):
        received = context.server.variables if context.start is None else context.start
        if case.factors is None:
            return as_trained(received, context)
        given = [with_factors(received, *pair) for pair in case.factors]
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves)[context.client.id], *given)
        trained = jax.tree.map(lambda frozen, old, new: old if frozen else new, constant, received, own)
        return as_trained(trained, context)

    algorithm = FedAvg(LocalTraining(freeze="base"), {"it": method})
    algorithm.check(model)
    constant = model.mask(algorithm.local_training.frozen_part())
    monkeypatch.setattr("fedjax_collapse.training.local.round.train", train)
    forget_rounds()
    owners = np.repeat(np.arange(len(case.sizes)), case.sizes)
    inputs, labels = np.zeros((len(owners), *model.input_shape)), np.zeros(len(owners), int)
    parts = [np.flatnonzero(owners == client) for client in range(len(case.sizes))]
    federation = Federation.from_arrays(inputs, labels, parts, inputs, labels, 0.0, 1.0)
    start = model.init(jax.random.key(0)) if start is None else start
    copied = jax.tree.map(jnp.array, start)  # as the rounds donate it
    return start, run_rounds(federation, model, algorithm, engine.Chunked(1), 1, variables=copied).state


def close(found, expected):
    """To ten digits after the point."""
    np.testing.assert_allclose(found, expected, atol=6e-11, rtol=0)


def test_flexlora_with_roots_in_both_factors(monkeypatch):
    _, state = run(monkeypatch, FlexLoRA(ranks=(1, 2, 2), roots=True), HET, network(alpha=2.0))
    a, b = factors(state.server.variables)
    close(checksum(product(state.server.variables)), 45.3268861404)
    close(np.linalg.norm(a, axis=1) ** 2, [3.4697281683, 1.8039104251])
    close(np.linalg.norm(b, axis=0) ** 2, [3.4697281683, 1.8039104251])


RANKS, CLIENTS = (1, 2, 2), [SimpleNamespace(id=0), SimpleNamespace(id=1)]
SCALED = Case(((A1, np.divide(B1, 2)), (A2, B2), (A3, B3)), HET.sizes)  # the products of HET; scales are 2, 1 and 1


def run_ranks(monkeypatch, method, case=SCALED, rank=2, **options):
    """The model after a round of clients of ranks 1, 2 and 2, whose products are those of HET."""
    _, state = run(monkeypatch, method, case, network(rank, alpha=2.0), **options)
    return state.server.variables


ONLY_FIRST = Case((SCALED.factors[0],) * 2, (1, 3))  # both clients have rank 1; a third one is in no cohort


@pytest.mark.parametrize("method", [RaFLoRA, RBLoRA])
def test_a_slice_that_nobody_has_is_kept(monkeypatch, method):
    start, second = with_factors(network(alpha=2.0).init(jax.random.key(0)), A2, B2), np.outer([0, 1, 1, -1], A2[1])
    close(product(run_ranks(monkeypatch, method((1, 1, 2)), ONLY_FIRST, start=start)), np.outer(B1, A1) + second)


def test_raflora_leaves_no_slice_that_cannot_be_trained(monkeypatch):
    """Before any client has the second slice, its b is 0, but not its a."""
    start = network(alpha=2.0).init(jax.random.key(0))
    variables = run_ranks(monkeypatch, RaFLoRA((1, 1, 2)), ONLY_FIRST, start=start)
    close(product(variables), np.outer(B1, A1))
    (a, b), (old, _) = factors(variables), factors(start)
    assert not b[:, 1].any()
    np.testing.assert_array_equal(a[1], old[1])


def test_hetlora_weighs_by_size(monkeypatch):
    close(checksum(product(run_ranks(monkeypatch, HetLoRA(RANKS, average="weight")))), 37.3125)


def test_hetlora_keeps_its_adapters_if_all_products_are_zero(monkeypatch):
    start = network(alpha=2.0).init(jax.random.key(0))
    case = Case(((A1, np.zeros((4, 1))),) * 2, (1, 1))
    (a, b), (old, _) = (factors(v) for v in (run_ranks(monkeypatch, HetLoRA(RANKS), case, start=start), start))
    np.testing.assert_array_equal(a, old)
    assert not b.any()


@cases((1.1, 1, [1, 1]), (1.1, 2, [1, 2]), (0.9, 1, [1, 2]))
def test_hetlora_prunes_clients_whose_tail_has_become_smaller(factor, least, ranks, monkeypatch):
    """A client of rank 1 has no tail; the other one's is larger at first, or smaller."""
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), np.multiply(A2, factor), B2)
    method, case = HetLoRA((1, 2), self_pruning=True, least=least), Case(SCALED.factors[:2], (1, 1))
    _, state = run(monkeypatch, method, case, network(alpha=2.0), start)
    views = [SimpleNamespace(client=c, memory=state.clients.memory["it"][c.id], model=network()) for c in CLIENTS]
    assert [int(method.rank_of(view)) for view in views] == ranks


@cases("frobenius", "cosine")
def test_lora_fair_of_adapters_that_are_zero(objective, monkeypatch):
    """Before any step B is 0, and so are the mean product and the correction."""
    _, state = run(monkeypatch, methods.LoRAFAIR(0.0, objective), Case(None, (1, 2)))
    assert not product(state.server.variables).any()


MOMENTUM, REPLACING = LocalTraining(momentum=0.5, momentum_reset=False), (FLoRA, FlexLoRA, FedSVD, RaFLoRA, RBLoRA)
DECAYING = dict(weight_decay=0.1), dict(optimizer=constructor(optax.adamw))
SGD = dict(server_optimizer=constructor(optax.sgd, learning_rate=1.0))
BESIDE = (  # methods next to it, or other options, and the line
    *((RoLoRA, {}, FedAvg(LocalTraining(**given)), "RoLoRA: weight decay would move the factor") for given in DECAYING),
    (RoLoRA, {}, FedAvg(MOMENTUM), "RoLoRA: training.momentum_reset=False would move the"),
    (RoLoRA, {"x": methods.Scaffold()}, FedAvg(), "methods it and x: x would move the factor"),
    *((kind, {}, FedAvg(MOMENTUM), f"{kind.__name__}: training.momentum_reset=False would move a client's")
      for kind in REPLACING),
    *((kind, {"x": other()}, FedAvg(), "methods .* and x: x corrects changes of a client's adapters by .*; leave one")
      for kind in REPLACING for other in (methods.Scaffold, methods.FedDyn, methods.FedDC)),
    *((kind, {}, FedAvg(**SGD), "method it: a server optimizer is given too, ") for kind in (FedSVD, FlexLoRA)),
    *((FlexLoRA, {"x": other()}, FedAvg(), "methods it and x: x changes uploads, .*; leave one out$")
      for other in (methods.ClipUpdate, methods.TopK)),
)  # fmt: skip


@cases(*BESIDE)
def test_what_does_not_go_with_methods_of_adapters_is_named(kind, others, algorithm, message):
    check(f"^{message}", algorithm.replace(methods={"it": kind(), **others}).check, network())


def test_what_goes_with_methods_of_adapters():
    FedAvg(LocalTraining(optimizer=constructor(optax.adam)), {"it": RoLoRA()}).check(network())
    assert RoLoRA(freeze_head=True).freeze == "base+head"  # which is never trained
    assert methods.FedSALoRA(private_head=False).private == "lora_b"
    FedAvg(methods={"it": FedSVD(), "clip": methods.ClipUpdate()}).check(network())


@pytest.mark.parametrize("method", [FlexLoRA, RaFLoRA, HetLoRA, RBLoRA, FLoRA])
def test_ranks_above_the_network_s_are_named(method):
    with one_line(rf"^{method.__name__}: ranks \(1, 3\): expected at most 2, the network's rank$"):
        method((1, 3)).check_with(Setup(LocalTraining(), "none", network()))


UPDATES = np.outer(np.arange(1, 7), np.arange(1, 5)) / 10  # [entries, clients]
UPDATES[0, 3] += 2
UPDATES[4, 1] -= 1.5


def plain_pca(matrix, tolerance):
    """S of a matrix [entries, clients], by multipliers in the units of the Lagrangian and NumPy's decomposition."""
    mu = matrix.size / (4 * np.abs(matrix).sum())
    sparse, multipliers, gap = np.zeros_like(matrix), np.zeros_like(matrix), matrix
    while np.linalg.norm(gap) > tolerance * np.linalg.norm(matrix):
        left, values, right = np.linalg.svd(matrix - sparse + multipliers / mu, full_matrices=False)
        low = left * np.maximum(values - 1 / mu, 0) @ right
        moved = matrix - low + multipliers / mu
        sparse = np.sign(moved) * np.maximum(np.abs(moved) - 1 / (mu * np.sqrt(max(matrix.shape))), 0)
        gap = matrix - low - sparse
        multipliers = multipliers + mu * gap
    return sparse


def test_robust_pca():
    """The optimum, and where the solver stops; rows of padding do not count, nor do updates of zero end in NaN."""
    sparse_part = jax.jit(fedrpca.sparse_part)
    sparse = np.asarray(sparse_part(UPDATES.T, 4, 1e-13)).T
    low = UPDATES - sparse
    close([low[0, 3], sparse[0, 3], sparse[4, 1]], [0.4, 2, -1.312403840463])
    close([np.linalg.norm(low, "nuc"), np.abs(sparse).sum()], [4.974937185532, 4.062788478612])
    assert np.linalg.matrix_rank(low, 1e-9) == 1
    close(low.mean(axis=1) + 2 * sparse.mean(axis=1), [1.25, 0.5, 0.75, 1, 0.734495199422, 1.5])
    for matrix in (UPDATES, UPDATES.T, np.sin(np.arange(1, 61.0) ** 2).reshape(12, 5)):
        padded = np.insert(matrix.T, 1, 0, axis=0)
        found = np.asarray(sparse_part(padded, matrix.shape[1]))
        np.testing.assert_allclose(np.delete(found, 1, axis=0).T, plain_pca(matrix, 1e-7), atol=1e-9)
        assert not found[1].any()
    assert not sparse_part(np.zeros((4, 6)), 4).any()


def test_fedrpca_of_a_cohort():
    """With beta 1 the mean to the bit; a factor is one matrix, and what is no factor is averaged."""
    noise = np.cos(np.arange(1, 17.0) ** 2).reshape(4, 2, 2)
    layer = {"kernel": None, "lora_a": UPDATES.T.reshape(4, 3, 2), "lora_b": noise, "lora_scale": None}
    stacked = jax.tree.map(jnp.asarray, {"head": {"kernel": noise}, "layer": layer})
    common = dict(shared=(), id=jnp.arange(4), num_clients=4, round=0, key=None)
    view = CohortView(counted=jnp.ones(4, bool), weight=jnp.full(4, 0.25), **common)
    mean = jax.jit(weighted_sum)(stacked, view.weight)
    same, found = jax.jit(lambda: [method.combine_uploads(stacked, view) for method in (FedRPCA(1.0), FedRPCA(3.0))])()
    assert_same_bits(same, mean)
    assert_same_bits(found["head"], mean["head"])
    for name, leaf in (("lora_a", UPDATES), ("lora_b", noise.reshape(4, 4).T)):
        expected = leaf.mean(axis=1) + 2 * plain_pca(leaf, 1e-7).mean(axis=1)
        np.testing.assert_allclose(np.ravel(found["layer"][name]), expected, atol=1e-9)


@cases(1.0, 2.0)
def test_fedrpca_weights_clients_equally(beta, monkeypatch):
    start, state = run(monkeypatch, FedRPCA(beta), HOM)
    for old, new, own in zip(factors(start), factors(state.server.variables), ((A2, A3), (B2, B3)), strict=True):
        updates = np.stack([np.ravel(one - old) for one in own], axis=1)
        expected = old.ravel() + updates.mean(axis=1) + (beta - 1) * plain_pca(updates, 1e-7).mean(axis=1)
        np.testing.assert_allclose(new.ravel(), expected, atol=1e-9)
