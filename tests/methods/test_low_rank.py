"""Aggregation of adapters: vectors in float64, computed by NumPy from the papers' formulas."""

import jax
import numpy as np
import pytest
from low_rank_case import (
    A2,
    B2,
    HET,
    HOM,
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

from fedjax_collapse import FedAvg, UserError
from fedjax_collapse.methods import FedExLoRA, FFALoRA, FlexLoRA

__all__ = ["float64"]
pytestmark = pytest.mark.usefixtures("float64")

MEAN_HOM = np.array([[3, 2, 1], [0, 6, -3], [-1, 2, 0], [4, 2, -1]]) / 3


def test_averaging_factors_is_not_averaging_products(monkeypatch):
    _, state = run(monkeypatch, None, HOM)
    found = product(state.server.variables)
    close(9 * found, [[5, 10, 1], [6, 12, -3], [1, 2, -4], [6, 12, -3]])
    close(checksum(found), 26.3333333333)
    close(np.linalg.norm(MEAN_HOM - found), 1.8053418677)


def test_ffa_lora_averages_b_exactly_for_one_a(monkeypatch):
    start = with_factors(network().init(jax.random.key(0)), A2, B2)
    _, state = run(monkeypatch, FFALoRA(), HOM, start=start)
    close(factors(state.server.variables)[0], A2)
    close(3 * product(state.server.variables), [[1, 4, 3], [4, 2, 5], [3, -2, 2], [4, 2, 5]])


def test_flexlora_decomposes_the_mean_product(monkeypatch):
    _, state = run(monkeypatch, FlexLoRA(), HOM)
    found = product(state.server.variables)
    close(checksum(found), 26.4438183694)
    close(singular_values(found)[:2], [2.5670184286, 1.5859371085])
    close(np.sum((MEAN_HOM - found) ** 2) / np.sum(MEAN_HOM**2), 0.0359644574)


def test_flexlora_with_ranks(monkeypatch):
    _, state = run(monkeypatch, FlexLoRA(ranks=(1, 2, 2)), HET, network(alpha=2.0))
    a, b = factors(state.server.variables)
    close(checksum(product(state.server.variables)), 45.3268861404)
    close(np.linalg.norm(b, axis=0), [3.4697281683, 1.8039104251])
    close(np.linalg.norm(a, axis=1), [1, 1])
    assert (np.max(b, axis=0) == np.max(np.abs(b), axis=0)).all()


def test_fedex_lora_is_exact_and_moves_the_base(monkeypatch):
    start, state = run(monkeypatch, FedExLoRA(), HOM)
    moved = kernel(state.server.variables) - kernel(start)
    close(9 * moved, [[4, -4, 2], [-6, 6, -6], [-4, 4, 4], [6, -6, 0]])
    close(moved + product(state.server.variables), MEAN_HOM)


def test_one_method_makes_the_servers_adapters():
    with pytest.raises(UserError, match=r"^methods one and two: each makes the server's adapters, "):
        FedAvg(methods={"one": FlexLoRA(), "two": FedExLoRA()}).check()
