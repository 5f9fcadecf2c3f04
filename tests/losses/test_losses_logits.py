"""Losses of logits that know class counts or a teacher: test vectors, and classes, rows and teachers that say nothing.

Logits and teacher's logits lie side by side in the features of distillation, so that padding has garbage in both, and
whatever reaches the teacher is seen as its gradient.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases
from loss_checks import bound, evaluate

from fedjax_collapse import losses

Z = np.array([[1, 0.5, -0.5], [0.2, -1, 0.8], [0, 0.3, 0.6]])
T = np.array([[0.5, 0, 1], [-0.2, 0.4, 0.1], [1, -1, 0]])
Y = np.array([0, 2, 0])
Z4 = np.array([[2, 0.5, -1, 0.3], [0.1, 1.2, -0.4, 0], [-0.5, 0.7, 1.5, 0.2]])
T4 = np.array([[1, 0, 1, -1], [0.5, -0.5, 0.2, 0.4], [0, 1, -1, 0.6]])
Y4 = np.array([0, 0, 3])
COUNTS = np.array([6, 0, 0, 2])

balanced = functools.partial(bound, losses.balanced_cross_entropy)
calibrated = functools.partial(bound, losses.calibrated_cross_entropy)
restricted = functools.partial(bound, losses.restricted_cross_entropy)
suppression = functools.partial(bound, losses.logit_suppression)
VECTORS = {
    "balanced": (balanced(), [6, 1, 2], 0.5904096911),
    "fedlc": (calibrated(), [6, 0, 2], 0.5438839129),
    "fedlc tau 1": (calibrated(1.0), [6, 0, 2], 0.5310434820),
    "fedlc, all classes": (calibrated(), [6, 1, 2], 0.8095601294),
    "fedlc, others": (calibrated(0.5, "others"), [6, 1, 2], 0.1334429217),
    "fedrs": (restricted(), [6, 0, 2], 0.8366082246),
    "fedrs, continuous": (restricted(0.5, "continuous"), [6, 0, 2], 0.8586583850),
}
ALL = {
    "balanced": balanced(), "floor_one": balanced(1.0, "floor_one"), "eps": balanced(1.0, "eps"),
    "fedlc": calibrated(), "floor": calibrated(0.05, "all", "floor"), "others": calibrated(0.5, "others"),
    "others, floor": calibrated(0.05, "others", "floor"), "fedrs": restricted(),
    "continuous": restricted(0.5, "continuous"),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_losses_with_counts(name):
    loss, counts, expected = VECTORS[name]
    assert evaluate(loss, Z, Y, (counts,))[0] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_one_class_in_the_softmax_has_neither_value_nor_gradient(name):
    loss, labels = ALL[name], np.zeros(3, int)
    value, gradient = evaluate(loss, Z[:, :1], labels, extras=([9],))
    assert value == 0 and np.all(gradient == 0)
    value, gradient = evaluate(loss, Z[:, :2], labels, extras=([9, 0],))
    is_excluded = name in ("balanced", "fedlc", "others")
    assert (value == 0) == is_excluded and np.all(gradient == 0) == is_excluded


@cases("balanced", "fedlc", "others")
def test_a_row_of_an_excluded_class_does_not_count(name):
    value, gradient = evaluate(ALL[name], Z4, np.array([0, 1, 3]), extras=(COUNTS,))
    without, expected = evaluate(ALL[name], Z4[[0, 2]], Y4[[0, 2]], extras=(COUNTS,))
    assert value == pytest.approx(without, rel=1e-15) and np.all(gradient[1] == 0)
    np.testing.assert_allclose(gradient[[0, 2]], expected, rtol=1e-15)


@functools.cache
def not_true(temperature=1.0):
    def loss(both, labels, mask):
        return losses.not_true_distillation(*jnp.split(both, 2, axis=1), labels, mask, temperature)

    return loss


def vacant(both, labels, mask, counts):
    return losses.vacant_distillation(*jnp.split(both, 2, axis=1), mask, counts)


def evaluate_pair(loss, logits, teacher, labels, **options):
    """Value and the gradient on the logits; none may reach the teacher."""
    value, gradient = evaluate(loss, np.concatenate([logits, teacher], axis=1), labels, **options)
    of_logits, of_teacher = np.split(gradient, 2, axis=1)
    assert np.all(of_teacher == 0)
    return value, of_logits


def test_vectors_of_distillation():
    for temperature, expected in ((1.0, 0.3009758624), (3.0, 0.3195431578)):
        value, gradient = evaluate_pair(not_true(temperature), Z, T, Y)
        assert value == pytest.approx(expected, abs=1e-10) and np.all(gradient[np.arange(3), Y] == 0)
    value, gradient = evaluate_pair(vacant, Z4, T4, Y4, extras=(COUNTS,))
    assert value == pytest.approx(0.6812496928, abs=1e-10) and np.all(gradient[:, [0, 3]] == 0)
    for variant, expected in (("official", -0.0010214898), ("paper", -1.2600234776)):
        assert evaluate(suppression(variant), Z4, Y4, (COUNTS,))[0] == pytest.approx(expected, abs=1e-10)


def test_a_teacher_that_agrees_costs_nothing():
    for loss, extras in ((not_true(2.0), ()), (vacant, (COUNTS,))):
        value, gradient = evaluate_pair(loss, Z4, Z4 + np.array([[1], [-7], [30]]), Y4, extras=extras)
        assert abs(value) < 1e-14 and np.abs(gradient).max() < 1e-14


def test_fewer_than_two_classes_to_distil_have_neither_value_nor_gradient():
    cases = [(vacant, Z4, T4, (counts,)) for counts in ([6, 1, 3, 2], [6, 0, 3, 2])]
    cases += [(not_true(), Z[:, :classes], T[:, :classes], ()) for classes in (1, 2)]
    for loss, logits, teacher, extras in cases:
        value, gradient = evaluate_pair(loss, logits, teacher, np.zeros(3, int), extras=extras)
        assert value == 0 and np.all(gradient == 0)


@cases("official", "paper")
def test_suppression_of_a_class_that_owns_every_row_is_zero(variant):
    """In the paper's form it has no term; in the official one its rows are a constant, the log of a mean of ones."""
    for logits, counts in ((Z4, [6, 0, 0, 0]), (Z4[:, :1], [6])):
        value, gradient = evaluate(suppression(variant), logits, np.zeros(3, int), extras=(counts,))
        assert value == 0 and np.all(gradient == 0)
