"""FedNTD's and FedVLS's terms: test vectors, definitions, and classes, rows and teachers that say nothing.

Logits and teacher's logits lie side by side in the tests' features, so that padding has garbage in both, and whatever
reaches the teacher is seen as its gradient.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from loss_checks import bound, evaluate

from fedjax_collapse.losses import logit_suppression, not_true_distillation, vacant_distillation

Z = np.array([[1, 0.5, -0.5], [0.2, -1, 0.8], [0, 0.3, 0.6]])
T = np.array([[0.5, 0, 1], [-0.2, 0.4, 0.1], [1, -1, 0]])
Y = np.array([0, 2, 0])
Z4 = np.array([[2, 0.5, -1, 0.3], [0.1, 1.2, -0.4, 0], [-0.5, 0.7, 1.5, 0.2]])
T4 = np.array([[1, 0, 1, -1], [0.5, -0.5, 0.2, 0.4], [0, 1, -1, 0.6]])
Y4 = np.array([0, 0, 3])
COUNTS = np.array([6, 0, 0, 2])


@functools.cache
def not_true(temperature=1.0):
    def loss(both, labels, mask):
        return not_true_distillation(*jnp.split(both, 2, axis=1), labels, mask, temperature)

    return loss


def vacant(both, labels, mask, counts):
    return vacant_distillation(*jnp.split(both, 2, axis=1), mask, counts)


def evaluate_pair(loss, logits, teacher, labels, **options):
    """Value and the gradient on the logits; none may reach the teacher."""
    value, gradient = evaluate(loss, np.concatenate([logits, teacher], axis=1), labels, **options)
    of_logits, of_teacher = np.split(gradient, 2, axis=1)
    assert np.all(of_teacher == 0)
    return value, of_logits


def test_vectors():
    for temperature, expected in ((1.0, 0.3009758624), (3.0, 0.3195431578)):
        value, gradient = evaluate_pair(not_true(temperature), Z, T, Y)
        assert value == pytest.approx(expected, abs=1e-10) and np.all(gradient[np.arange(3), Y] == 0)
    value, gradient = evaluate_pair(vacant, Z4, T4, Y4, extras=(COUNTS,))
    assert value == pytest.approx(0.6812496928, abs=1e-10) and np.all(gradient[:, [0, 3]] == 0)
    for variant, expected in (("official", -0.0010214898), ("paper", -1.2600234776)):
        assert evaluate(bound(logit_suppression, variant), Z4, Y4, (COUNTS,))[0] == pytest.approx(expected, abs=1e-10)


def test_a_teacher_that_agrees_costs_nothing():
    for loss, extras in ((not_true(2.0), ()), (vacant, (COUNTS,))):
        value, gradient = evaluate_pair(loss, Z4, Z4 + np.array([[1], [-7], [30]]), Y4, extras=extras)
        assert abs(value) < 1e-14 and np.abs(gradient).max() < 1e-14


@pytest.mark.parametrize("counts", [[6, 1, 3, 2], [6, 0, 3, 2]])
def test_one_vacant_class_or_none(counts):
    value, gradient = evaluate_pair(vacant, Z4, T4, Y4, extras=(counts,))
    assert value == 0 and np.all(gradient == 0)


@pytest.mark.parametrize("classes", [1, 2])
def test_no_two_classes_that_are_not_true(classes):
    value, gradient = evaluate_pair(not_true(), Z[:, :classes], T[:, :classes], np.zeros(3, int))
    assert value == 0 and np.all(gradient == 0)


def test_suppression_of_a_class_that_owns_every_row():
    """In the paper's form it has no term; in the official one its rows are a constant."""
    for logits, counts in ((Z4, [6, 0, 0, 0]), (Z4[:, :1], [6])):
        value, gradient = evaluate(bound(logit_suppression, "paper"), logits, np.zeros(3, int), extras=(counts,))
        assert value == 0 and np.all(gradient == 0)
        value, gradient = evaluate(bound(logit_suppression), logits, np.zeros(3, int), extras=(counts,))
        assert value == 0 and np.all(gradient == 0)  # log of a mean of ones


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_gradient_of_distillation_is_the_difference_of_distributions(temperature):
    """For a whole batch and all rows: ``t (q - p) / B`` over the chosen classes; t is 1 for vacant ones."""

    def distribution(logits, chosen, t):
        exponentials = np.where(chosen, np.exp(logits / t), 0)
        return exponentials / exponentials.sum(1, keepdims=True)

    chosen = np.arange(4) != Y4[:, None]
    expected = temperature * (distribution(Z4, chosen, temperature) - distribution(T4, chosen, temperature)) / 3
    np.testing.assert_allclose(evaluate_pair(not_true(temperature), Z4, T4, Y4)[1], expected, atol=1e-14)
    expected = (distribution(Z4, COUNTS == 0, 1) - distribution(T4, COUNTS == 0, 1)) / 3
    np.testing.assert_allclose(evaluate_pair(vacant, Z4, T4, Y4, extras=(COUNTS,))[1], expected, atol=1e-14)
