"""Methods whose clients have adapters of different ranks: vectors in float64, computed by NumPy from the papers."""

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from low_rank_case import (
    A1,
    A2,
    A3,
    B1,
    B2,
    B3,
    HET,
    HOM,
    Case,
    checksum,
    close,
    factors,
    float64,
    kernel,
    network,
    product,
    run,
    singular_values,
    with_factors,
)

from fedjax_collapse import FedAvg, LocalTraining, Model, UserError, nn
from fedjax_collapse.methods import (
    ClipUpdate,
    FedDC,
    FedDyn,
    FedSVD,
    FlexLoRA,
    FLoRA,
    HetLoRA,
    LoRAFAIR,
    RaFLoRA,
    RBLoRA,
    Scaffold,
    TopK,
)
from fedjax_collapse.methods.adapters import _low_rank, hetlora
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.schema.options import constructor

__all__ = ["float64"]
pytestmark = pytest.mark.usefixtures("float64")

RANKS, CLIENTS = (1, 2, 2), [SimpleNamespace(id=0), SimpleNamespace(id=1)]
SCALED = Case(((A1, np.divide(B1, 2)), (A2, B2), (A3, B3)), HET.sizes)  # the products of HET; scales are 2, 1 and 1


def run_ranks(monkeypatch, method, case=SCALED, rank=2, **options):
    """The model after a round of clients of ranks 1, 2 and 2, whose products are those of HET."""
    _, state = run(monkeypatch, method, case, network(rank, alpha=2.0), **options)
    return state.server.variables


def test_raflora_keeps_a_slice_that_nobody_has(monkeypatch):
    """Both clients have rank 1; a third one, which would have the slice, is in no cohort."""
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), A2, B2)
    case = Case((SCALED.factors[0],) * 2, (1, 3))
    found = product(run_ranks(monkeypatch, RaFLoRA((1, 1, 2)), case, start=start))
    close(found, np.outer(B1, A1) + np.outer(np.transpose(B2)[1], A2[1]))


def test_raflora_leaves_no_slice_that_cannot_be_trained(monkeypatch):
    """Before any client has the second slice, its b is 0, but not its a."""
    start = network(alpha=2.0).init(jax.random.key(0))
    variables = run_ranks(monkeypatch, RaFLoRA((1, 1, 2)), Case((SCALED.factors[0],) * 2, (1, 3)), start=start)
    close(product(variables), np.outer(B1, A1))
    (a, b), (old, _) = factors(variables), factors(start)
    assert not b[:, 1].any()
    np.testing.assert_array_equal(a[1], old[1])


@pytest.mark.parametrize(
    ("method", "lost"),
    [
        (FlexLoRA((1, 2, 4)), [0.75, 0.2727272727, 0.0656934307, 0.0158577607, 0.0039213302, 0.0009775134]),
        (RaFLoRA((1, 2, 4)), [0.75] * 6),
    ],
)
def test_energy_collapses_to_the_smallest_rank(monkeypatch, method, lost):
    """Clients return what they receive: singular value i is multiplied by q_i, the share of clients that have it."""
    model = network(4, inputs=4)
    variables = with_factors(model.init(jax.random.key(0)), np.eye(4), np.eye(4))
    found = []
    for _ in lost:
        squares = singular_values(product(variables)) ** 2
        found.append(1 - squares[0] / squares.sum())
        _, state = run(monkeypatch, method, Case(None, (2, 1, 1)), model, variables)
        variables = state.server.variables
    close(found, lost)


def test_hetlora_weighs_by_size(monkeypatch):
    close(checksum(product(run_ranks(monkeypatch, HetLoRA(RANKS, average="weight")))), 37.3125)


def test_hetlora_pads_the_adapters_of_clients_of_lower_rank(monkeypatch):
    """Clients return what they receive, of which one of rank 1 has the first entry."""
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), A2, B2)
    method = HetLoRA((1, 2), average="weight")
    found = product(run_ranks(monkeypatch, method, Case(None, (1, 1)), start=start))
    first, second = (np.outer(b, a) for b, a in zip(np.transpose(B2), A2, strict=True))
    close(found, first + second / 4)


def test_hetlora_keeps_its_adapters_if_all_products_are_zero(monkeypatch):
    start = network(alpha=2.0).init(jax.random.key(0))
    case = Case(((A1, np.zeros((4, 1))),) * 2, (1, 1))
    (a, b), (old, _) = (factors(v) for v in (run_ranks(monkeypatch, HetLoRA(RANKS), case, start=start), start))
    np.testing.assert_array_equal(a, old)
    assert not b.any()


def test_the_tail_of_a_client():
    params = with_factors(network().init(jax.random.key(0)), A2, B2).params
    close(hetlora.tail(params, 1, 2), 3.8729833462)
    assert hetlora.tail(params, 2, 2) == 0
    gradient = jax.grad(hetlora.tail)(
        with_factors(network().init(jax.random.key(0)), A2, np.zeros((4, 2))).params, 1, 2
    )
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("least", "ranks"), [(1, [1, 1]), (2, [1, 2])])
def test_hetlora_prunes_clients_whose_tail_has_become_smaller(monkeypatch, least, ranks):
    """A client of rank 1 has no tail; the other one's is larger at first."""
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), np.multiply(A2, 1.1), B2)
    method, case = HetLoRA((1, 2), self_pruning=True, least=least), Case(SCALED.factors[:2], (1, 1))
    _, state = run(monkeypatch, method, case, network(alpha=2.0), start)
    views = [SimpleNamespace(client=c, memory=state.clients.memory["it"][c.id], model=network()) for c in CLIENTS]
    assert [int(method.rank_of(view)) for view in views] == ranks


def test_hetlora_keeps_the_rank_of_clients_whose_tail_has_grown(monkeypatch):
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), np.multiply(A2, 0.9), B2)
    method = HetLoRA((1, 2), self_pruning=True)
    _, state = run(monkeypatch, method, Case(SCALED.factors[:2], (1, 1)), network(alpha=2.0), start)
    assert not state.clients.memory["it"].any()


def test_rb_lora_keeps_a_rank_that_nobody_has(monkeypatch):
    start = with_factors(network(alpha=2.0).init(jax.random.key(0)), A2, B2)
    case = Case((SCALED.factors[0],) * 2, (1, 3))
    found = product(run_ranks(monkeypatch, RBLoRA((1, 1, 2)), case, start=start))
    close(found, np.outer(B1, A1) + np.outer(np.transpose(B2)[1], A2[1]))


def test_flora_draws_adapters_for_every_client_and_round():
    model = network(alpha=2.0)
    server = with_factors(model.init(jax.random.key(0)), A2, B2)
    drawn = []
    for client, key in zip(CLIENTS, jax.random.split(jax.random.key(1)), strict=True):
        view = SimpleNamespace(server=server, client=client, key=key, model=model, memory=())
        variables, _ = FLoRA((1, 2)).receive(view)
        a, b = factors(variables)
        assert not b.any()
        assert 0 < np.max(np.abs(a)) <= 3**-0.5
        drawn.append(a)
    assert not np.isclose(*drawn).any()


REPLACING = [FLoRA(), FlexLoRA(), FedSVD(), RaFLoRA(), RBLoRA()]


@pytest.mark.parametrize("method", REPLACING)
def test_no_momentum_of_adapters_that_were_replaced(method):
    training = LocalTraining(momentum=0.5, momentum_reset=False)
    with pytest.raises(
        UserError, match=f"^{type(method).__name__}: training.momentum_reset=False would move a client's"
    ):
        FedAvg(training, {"replacing": method}).check(network())


@pytest.mark.parametrize("method", REPLACING)
@pytest.mark.parametrize("other", [Scaffold(), FedDyn(), FedDC()])
def test_no_partner_that_remembers_changes_of_adapters_that_were_replaced(method, other):
    expected = f"^{type(method).__name__}: other keeps, from round to round, .*; leave one of the two out$"
    with pytest.raises(UserError, match=expected):
        FedAvg(LocalTraining(), {"other": other, "replacing": method}).check(network())


def test_flora_draws_adapters_for_every_layer():
    model = Model(nn.MLP(2, hidden=(3, 3)), (1, 1, 3), adapters=LoRA(2, layers=("all",)))
    view = SimpleNamespace(server=model.init(jax.random.key(0)), client=CLIENTS[0], key=jax.random.key(1), model=model)
    view.memory = ()
    one, other = (adapter.a for adapter in _low_rank.adapters(FLoRA().receive(view)[0].params).values())
    assert not np.isclose(one, other).any()


def test_flora_leaves_the_base_if_nobody_trains(monkeypatch):
    start, state = run(monkeypatch, FLoRA(), Case(None, (1, 2)))
    np.testing.assert_array_equal(kernel(state.server.variables), kernel(start))


A_MEAN, B_MEAN = np.add(A2, 2 * np.array(A3)) / 3, np.add(B2, 2 * np.array(B3)) / 3
MEAN_HOM = (np.matmul(B2, A2) + 2 * np.matmul(B3, A3)) / 3


def corrected(monkeypatch, method):
    """Product and correction of the server, whose A is the mean."""
    _, state = run(monkeypatch, method, HOM)
    a, b = factors(state.server.variables)
    close(a, A_MEAN)
    return b @ a, np.linalg.norm(b - B_MEAN)


def cosine(one, other):
    return np.sum(one * other) / (np.linalg.norm(one) * np.linalg.norm(other))


def test_lora_fair_by_the_cosine(monkeypatch):
    """From 0.1905 without a correction to the minimum, 0.1443."""
    found, size = corrected(monkeypatch, LoRAFAIR(objective="cosine", steps=3000, rate=1.0))
    close(1 - cosine(B_MEAN @ A_MEAN, MEAN_HOM), 0.1905183732)
    close(1 - cosine(found, MEAN_HOM) + 0.01 * size, 0.1443422082)
    np.testing.assert_allclose([size, cosine(found, MEAN_HOM)], [1.2780001281, 0.8684377931], atol=1e-6)


@pytest.mark.parametrize("objective", ["frobenius", "cosine"])
def test_lora_fair_of_adapters_that_are_zero(monkeypatch, objective):
    """Before any step B is 0, and so are the mean product and the correction."""
    _, state = run(monkeypatch, LoRAFAIR(0.0, objective), Case(None, (1, 2)))
    assert not product(state.server.variables).any()


@pytest.mark.parametrize("method", [FlexLoRA, RaFLoRA, HetLoRA, RBLoRA, FLoRA])
def test_ranks_above_the_network_s_are_named(method):
    expected = rf"^{method.__name__}: ranks \(1, 3\): expected at most 2, the network's rank$"
    with pytest.raises(UserError, match=expected):
        method((1, 3)).check_with(LocalTraining(), "none", network())


@pytest.mark.parametrize(
    ("options", "others", "expected"),
    [
        ({"server_optimizer": constructor(optax.sgd, learning_rate=1.0)}, {}, "method it: .* no server optimizer"),
        ({}, {"clip": ClipUpdate()}, "methods it and clip: .* no method that changes uploads"),
        ({}, {"top": TopK()}, "methods it and top: .* no method that changes uploads"),
    ],
)
def test_nothing_changes_adapters_that_are_made_at_the_server(options, others, expected):
    with pytest.raises(UserError, match=f"^{expected}$"):
        FedAvg(methods={"it": FlexLoRA(), **others}, **options).check()
