"""Theory: deep linear networks under gradient flow, where theorem 1 is exact; FedMR's bound, and margins of discs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check

from fedjax_collapse.analysis import dynamics
from fedjax_collapse.analysis.dynamics import alignment, balanced_rates, flow, gradient_matrix, singular_value_rates
from fedjax_collapse.analysis.missing_classes import disc_margins, representation_bound

N = 30


def instance(depth=2, aligned=True, seed=0):
    rng = np.random.default_rng(seed)
    inputs, labels = rng.normal(size=(N, 4)), rng.integers(0, 3, N)
    values, head_values = np.array([1.5, 1.0, 0.5]), np.array([1.2, 0.9, 0.4])
    return dynamics.balanced_network((4, 3, 3), values, head_values, depth, rng, aligned), inputs, labels


def relative_error(found, exact):
    return np.max(np.abs(found - exact) / np.abs(exact))


def test_the_flow_is_minus_the_gradient_of_the_summed_loss(float64):
    network, inputs, labels = instance(depth=3)

    def summed(network):
        logits = inputs @ (network.head @ network.layers[2] @ network.layers[1] @ network.layers[0]).T
        return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(N), labels])

    value, gradient = jax.jit(jax.value_and_grad(summed))(network)
    assert dynamics.loss(network, inputs, labels) == pytest.approx(float(value), rel=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -b, atol=1e-12), flow(network, inputs, labels), gradient)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_theorem_at_the_start(depth, seed):
    network, inputs, labels = instance(depth, seed=seed)
    gradient, exact = gradient_matrix(network, inputs, labels), singular_value_rates(network, inputs, labels)
    assert dynamics.imbalance(network) < 1e-14 and alignment(network) == pytest.approx(1, abs=1e-14)
    assert relative_error(dynamics.theorem_rates(network, gradient, N, dynamics.head_offsets(network)), exact) < 1e-10
    assert relative_error(balanced_rates(network, gradient, N), exact) < 1e-10
    of_means = dynamics.class_mean_gradient_matrix(network, inputs, labels)
    assert relative_error(dynamics.theorem_rates(network, of_means, N, dynamics.head_offsets(network)), exact) > 0.01


@cases(1, 2, 3)
def test_rates_are_those_of_the_singular_values(depth):
    """By central differences over a step of the flow."""
    network, inputs, labels = instance(depth)
    h = 1e-5
    there, back = (list(dynamics.integrate(network, inputs, labels, t, 1))[-1] for t in (h, -h))
    values = [np.linalg.svd(n.product, compute_uv=False) for n in (there, back)]
    differences = (values[0] - values[1]) / (2 * h)
    assert relative_error(differences, singular_value_rates(network, inputs, labels)) < 1e-6


@cases((2, True), (2, False), (3, False))
def test_what_is_conserved_up_to_a_later_time(depth, aligned):
    """Balancedness is, and with it the exact form; alignment is not, and the theorem's form then fails by percents."""
    network, inputs, labels = instance(depth, aligned)
    *_, after = dynamics.integrate(network, inputs, labels, 0.2, 500)
    exact, gradient = singular_value_rates(after, inputs, labels), gradient_matrix(after, inputs, labels)
    assert dynamics.imbalance(after) < 1e-9
    gaps = [n.head.T @ n.head - n.layers[-1] @ n.layers[-1].T for n in (network, after)]
    np.testing.assert_allclose(*gaps, atol=1e-9)
    assert relative_error(balanced_rates(after, gradient, N), exact) < 1e-8
    assert alignment(after).min() < 0.9999
    assert relative_error(dynamics.theorem_rates(after, gradient, N, dynamics.head_offsets(network)), exact) > 0.005
    assert dynamics.loss(after, inputs, labels) < dynamics.loss(network, inputs, labels)


def test_without_balance_the_exact_form_fails():
    network, inputs, labels = instance()
    network = dynamics.LinearNetwork((2 * network.layers[0], network.layers[1] / 2), network.head)
    exact = singular_value_rates(network, inputs, labels)
    assert relative_error(balanced_rates(network, gradient_matrix(network, inputs, labels), N), exact) > 0.1


@cases(1, 2, 4)
def test_few_classes_lower_the_rank_of_the_gradient_matrix(classes):
    """At most one direction per class, and none more than C - 1: the softmax does not see what all logits share."""
    rng = np.random.default_rng(0)
    network = dynamics.balanced_network((8, 8, 4), np.ones(8), np.ones(4), 2, rng)
    labels = np.arange(40) % classes
    inputs = rng.normal(size=(40, 8))
    values = np.linalg.svd(dynamics.class_mean_gradient_matrix(network, inputs, labels), compute_uv=False)
    assert np.sum(values > 1e-12) == min(classes, 3)
    np.testing.assert_allclose(gradient_matrix(network, inputs, labels).sum(axis=0), 0, atol=1e-14)


def test_descent_takes_steps_along_the_gradient_of_the_mean_loss(float64):
    network, inputs, labels = instance()

    def mean(network):
        logits = inputs @ (network.head @ network.layers[1] @ network.layers[0]).T
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(N), labels])

    expected = jax.tree.map(jnp.asarray, network)
    for _ in range(2):
        expected = jax.tree.map(lambda w, g: w - 0.3 * g, expected, jax.grad(mean)(expected))
    first, _, after = dynamics.descend(network, inputs, labels, 0.3, 2)
    assert first is network
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-13), after, expected)


@cases(1, 3)
def test_a_random_network(depth):
    """Outputs of every layer have the variance of its inputs, times scale squared."""
    network = dynamics.random_network((50, 60, 40), 0.5, depth, np.random.default_rng(0))
    assert [w.shape for w in (*network.layers, network.head)] == [(60, 50), *[(60, 60)] * (depth - 1), (40, 60)]
    for weights in (*network.layers, network.head):
        assert np.sum(weights**2, axis=1).mean() == pytest.approx(0.25, rel=0.1)
    assert alignment(network).mean() < 0.3


@cases(
    ((0.2, 0.8, 1.0, 0.0, 1), 0.4),
    ((0.2, 0.8, 1.0, 0.0, 2), 0.08),
    ((0.2, 0.3, 1.0, 0.1, 3), 1.38),
    ((0.7, 0.2, 3.0, 0.5, 0), 6.0),
    ((1.0, 0.0, 1.0, 0.1, 7), 2.7),  # Gamma is the number of rounds
    ((0.0, 0.5, 1.0, 0.1, 7), 1.1),
)
def test_values_of_representation_bound(arguments, expected):
    assert representation_bound(*arguments) == pytest.approx(expected, rel=1e-12)


@cases(
    ((1.2, 0.0, 1.0, 0.0, 1), "share 1.2"),
    ((0.4, -0.1, 1.0, 0.0, 1), "others_share -0.1"),
    ((0.4, 0.7, 1.0, 0.0, 1), "others_share 0.7 is too large, expected at most 1 - share = 0.6"),
    ((0.4, 0.5, -1.0, 0.0, 1), "size -1 is"),
    ((0.4, 0.5, 1.0, -0.1, 1), "margin -0.1"),
    ((0.4, 0.5, 1.0, 0.0, -1), "rounds -1"),
    ((0.4, 0.5, 1.0, 0.0, 1.5), "rounds 1.5"),
)
def test_representation_bound_rejects(arguments, message):
    check(f"^representation_bound: {message}", representation_bound, *arguments)


def test_shares_that_add_up_to_1_but_for_rounding_are_accepted():
    share, others = 1 / 10, 2 / 10 + 4 / 10 + 3 / 10
    assert share + others > 1
    assert representation_bound(share, others, 1.0, 0.0, 1) == pytest.approx(0.2)


@cases([[2, 0], [-1, 0.5], [-0.9, -0.5]], [[0.5, -0.9], [-0.5, 0.9], [0, 0]])
def test_a_margin_is_the_distance_at_which_another_class_wins(weights):
    weights, centres, radius = np.array(weights), np.array([[1, 0], [0, 3**0.5], [0, -(3**0.5)]]), 0.5
    angles = np.linspace(0, 2 * np.pi, 3601)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for c, margin in enumerate(disc_margins(weights, centres, radius)):
        inner, outer = np.maximum(radius + margin + np.array([-1e-3, 1e-3]), 0)
        wins = [bool(np.all(np.argmax((centres[c] + r * circle) @ weights.T, axis=1) == c)) for r in (inner, outer)]
        assert wins == [margin > -radius, False]
