"""Methods whose clients have adapters of different ranks: vectors in float64, computed by NumPy from the papers."""

import jax
import numpy as np
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
    network,
    product,
    run,
    singular_values,
    with_factors,
)

from fedjax_collapse import UserError
from fedjax_collapse.methods import FlexLoRA, RaFLoRA

__all__ = ["float64"]
pytestmark = pytest.mark.usefixtures("float64")

RANKS = (1, 2, 2)
SCALED = Case(((A1, np.divide(B1, 2)), (A2, B2), (A3, B3)), HET.sizes)  # the products of HET; scales are 2, 1 and 1


def run_ranks(monkeypatch, method, case=SCALED, rank=2, **options):
    """The model after a round of clients of ranks 1, 2 and 2, whose products are those of HET."""
    _, state = run(monkeypatch, method, case, network(rank, alpha=2.0), **options)
    return state.server.variables


def test_raflora_averages_each_slice_over_the_clients_that_have_it(monkeypatch):
    variables = run_ranks(monkeypatch, RaFLoRA(RANKS))
    a, b = factors(variables)
    values = [2.4823099269, 1.9173194198]
    close(singular_values(product(variables))[:2], values)
    close(np.linalg.norm(a, axis=1) ** 2, values)
    close(np.linalg.norm(b, axis=0) ** 2, values)


def test_raflora_adds_up_the_means_of_the_slices(monkeypatch):
    """A network of rank 3 keeps all of the sum."""
    case = Case(tuple((a, np.multiply(b, s)) for (a, b), s in zip(HET.factors, (0.5, 1, 1), strict=True)), HET.sizes)
    found = product(run_ranks(monkeypatch, RaFLoRA(RANKS), case, rank=3))
    close(12 * found, [[14, 8, 9], [0, 20, -8], [-8, 6, -5], [20, 6, 8]])
    close(checksum(found), 34.8333333333)


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


def test_raflora_of_one_rank_is_flexlora(monkeypatch):
    ra, flex = (run(monkeypatch, method, HOM)[1].server.variables for method in (RaFLoRA(), FlexLoRA()))
    close(product(ra), product(flex))


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


@pytest.mark.parametrize("method", [FlexLoRA, RaFLoRA])
def test_ranks_above_the_network_s_are_named(method):
    expected = rf"^{method.__name__}: ranks \(1, 3\): expected at most 2, the network's rank$"
    with pytest.raises(UserError, match=expected):
        method((1, 3)).check_with(None, "none", network())
