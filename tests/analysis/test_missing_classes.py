"""The bound of FedMR's theorem 1: values, its course over rounds, and what it rejects; margins of discs."""

import itertools

import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse.analysis.missing_classes import disc_margins, representation_bound


def over_rounds(*arguments, most=400):
    return [representation_bound(*arguments, rounds) for rounds in range(1, most)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.2, 0.8, 1.0, 0.0, 1), 0.4),
        ((0.2, 0.8, 1.0, 0.0, 2), 0.08),
        ((0.2, 0.3, 1.0, 0.1, 3), 1.38),
        ((0.7, 0.2, 3.0, 0.5, 0), 6.0),
        ((1.0, 0.0, 1.0, 0.1, 7), 2.7),  # Gamma is the number of rounds
        ((0.0, 0.5, 1.0, 0.1, 7), 1.1),
    ],
)
def test_values(arguments, expected):
    assert representation_bound(*arguments) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("others", "limit"), [(0.1, 2 * (1 - 0.9 - 0.1) / 0.1), (0.04, 1.2)])
def test_without_a_margin_it_falls_to_its_limit(others, limit):
    bounds = over_rounds(0.9, others, 1.0, 0.0)
    assert bounds[:50] == sorted(bounds[:50], reverse=True) and bounds[0] == 2 * (1 - others)
    assert bounds[-1] == pytest.approx(limit, abs=1e-12)


@pytest.mark.parametrize(("margin", "sign"), [(0.59, -1), (0.61, 1)])
def test_with_a_margin_it_falls_only_if_that_is_small(margin, sign):
    """Below 2 others_share size = 0.6. Gamma itself, the change divided by that per unit of Gamma, rises."""
    bounds = over_rounds(0.5, 0.3, 1.0, margin, most=20)
    assert all(sign * (after - before) > 0 for before, after in itertools.pairwise(bounds))
    gammas = [(bound - 2) / (margin - 0.6) for bound in bounds]
    assert gammas[0] == pytest.approx(1) and gammas == sorted(gammas) and gammas[-1] == pytest.approx(2, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.2, 0.0, 1.0, 0.0, 1), "share 1.2"),
        ((0.4, -0.1, 1.0, 0.0, 1), "others_share -0.1"),
        ((0.4, 0.7, 1.0, 0.0, 1), "others_share 0.7 is too large, expected at most 1 - share = 0.6"),
        ((0.4, 0.5, -1.0, 0.0, 1), "size -1 is"),
        ((0.4, 0.5, 1.0, -0.1, 1), "margin -0.1"),
        ((0.4, 0.5, 1.0, 0.0, -1), "rounds -1"),
        ((0.4, 0.5, 1.0, 0.0, 1.5), "rounds 1.5"),
    ],
)
def test_what_is_rejected(arguments, message):
    with one_line(f"^representation_bound: {message}"):
        representation_bound(*arguments)


def test_shares_that_add_up_to_1_but_for_rounding_are_accepted():
    share, others = 1 / 10, 2 / 10 + 4 / 10 + 3 / 10
    assert share + others > 1
    assert representation_bound(share, others, 1.0, 0.0, 1) == pytest.approx(0.2)


@pytest.mark.parametrize("weights", [[[2, 0], [-1, 0.5], [-0.9, -0.5]], [[0.5, -0.9], [-0.5, 0.9], [0, 0]]])
def test_a_margin_is_the_distance_at_which_another_class_wins(weights):
    weights, centres, radius = np.array(weights), np.array([[1, 0], [0, 3**0.5], [0, -(3**0.5)]]), 0.5
    angles = np.linspace(0, 2 * np.pi, 3601)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for c, margin in enumerate(disc_margins(weights, centres, radius)):
        inner, outer = np.maximum(radius + margin + np.array([-1e-3, 1e-3]), 0)
        wins = [bool(np.all(np.argmax((centres[c] + r * circle) @ weights.T, axis=1) == c)) for r in (inner, outer)]
        assert wins == [margin > -radius, False]
