"""Cross-entropies with class counts, of balanced softmax, FedLC and FedRS: test vectors, the definitions by NumPy, and
what becomes of classes without examples."""

import functools

import numpy as np
import pytest
from loss_checks import bound, evaluate

from fedjax_collapse.losses import balanced_cross_entropy, calibrated_cross_entropy, restricted_cross_entropy

Z = np.array([[1, 0.5, -0.5], [0.2, -1, 0.8], [0, 0.3, 0.6]])
Y = np.array([0, 2, 0])
Z4 = np.array([[2, 0.5, -1, 0.3], [0.1, 1.2, -0.4, 0], [-0.5, 0.7, 1.5, 0.2]])
Y4 = np.array([0, 0, 3])


balanced = functools.partial(bound, balanced_cross_entropy)
calibrated = functools.partial(bound, calibrated_cross_entropy)
restricted = functools.partial(bound, restricted_cross_entropy)
VECTORS = {
    "balanced": (balanced(), [6, 1, 2], 0.5904096911),
    "fedlc": (calibrated(), [6, 0, 2], 0.5438839129),
    "fedlc tau 1": (calibrated(1.0), [6, 0, 2], 0.5310434820),
    "fedlc, all classes": (calibrated(), [6, 1, 2], 0.8095601294),
    "fedlc, others": (calibrated(0.5, "others"), [6, 1, 2], 0.1334429217),
    "fedrs": (restricted(), [6, 0, 2], 0.8366082246),
    "fedrs, continuous": (restricted(0.5, "continuous"), [6, 0, 2], 0.8586583850),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    loss, counts, expected = VECTORS[name]
    assert evaluate(loss, Z, Y, (counts,))[0] == pytest.approx(expected, abs=1e-10)


def plain(logits, labels, kept):
    """Mean over the rows of -log softmax over the kept classes."""
    exponentials = np.where(kept, np.exp(logits), 0)
    return -np.mean(np.log((exponentials / exponentials.sum(1, keepdims=True))[np.arange(len(labels)), labels]))


COUNTS = np.array([6, 0, 0, 2])
with np.errstate(divide="ignore"):
    DEFINITIONS = {
        "exclude": (balanced(0.7), Z4 + 0.7 * np.log(np.maximum(COUNTS, 1)), COUNTS > 0),
        "floor_one": (balanced(0.7, "floor_one"), Z4 + 0.7 * np.log([6, 1, 1, 2]), True),
        "eps": (balanced(0.7, "eps"), Z4 + 0.7 * np.log(COUNTS / 8 + 1e-9), True),
        "fedlc, floor": (calibrated(0.3, "all", "floor"), Z4 - 0.3 * np.array([6**-0.25, 100, 100, 2**-0.25]), True),
        "fedrs": (restricted(0.3), Z4 * [1, 0.3, 0.3, 1], True),
        "continuous": (restricted(0.3, "continuous"), Z4 * [1, 0.3, 0.3, 0.3 + 0.7 / 3], True),
    }


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions(name):
    loss, logits, kept = DEFINITIONS[name]
    value, gradient = evaluate(loss, Z4, Y4, extras=(COUNTS,))
    assert value == pytest.approx(plain(logits, Y4, kept), rel=1e-12)
    vacant = gradient[:, 1:3]
    assert np.all(vacant == 0) if name == "exclude" else np.all(vacant > 0)


def test_fedlc_without_the_own_class():
    """The gradient on the row's own logit is -1/B, whatever the logits; with the floor vacant classes are there."""
    shifted = Z4 - 0.3 * np.array([6**-0.25, 100, 100, 2**-0.25])
    for vacant, there in (("floor", [0, 1, 2, 3]), ("exclude", [0, 3])):
        value, gradient = evaluate(calibrated(0.3, "others", vacant), Z4, Y4, extras=(COUNTS,))
        losses = [np.log(sum(np.exp(s[c]) for c in there if c != y)) - s[y] for s, y in zip(shifted, Y4, strict=True)]
        assert value == pytest.approx(np.mean(losses), rel=1e-12)
        np.testing.assert_allclose(gradient[np.arange(3), Y4], -1 / 3, rtol=1e-15)


LOSSES = {
    "balanced": balanced(), "floor_one": balanced(1.0, "floor_one"), "eps": balanced(1.0, "eps"),
    "fedlc": calibrated(), "floor": calibrated(0.05, "all", "floor"), "others": calibrated(0.5, "others"),
    "others, floor": calibrated(0.05, "others", "floor"), "fedrs": restricted(),
    "continuous": restricted(0.5, "continuous"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_one_class_and_two(name):
    """With a single class in the softmax, value and gradient are exactly 0."""
    loss, labels = LOSSES[name], np.zeros(3, int)
    value, gradient = evaluate(loss, Z[:, :1], labels, extras=([9],))
    assert value == 0 and np.all(gradient == 0)
    value, gradient = evaluate(loss, Z[:, :2], labels, extras=([9, 0],))
    is_excluded = name in ("balanced", "fedlc", "others")
    assert (value == 0) == is_excluded and np.all(gradient == 0) == is_excluded
    assert np.isfinite(evaluate(loss, Z[:, :2], labels, extras=([5, 4],))[1]).all()


@pytest.mark.parametrize("name", ["balanced", "fedlc", "others"])
def test_a_row_of_an_excluded_class_does_not_count(name):
    value, gradient = evaluate(LOSSES[name], Z4, np.array([0, 1, 3]), extras=(COUNTS,))
    without, expected = evaluate(LOSSES[name], Z4[[0, 2]], Y4[[0, 2]], extras=(COUNTS,))
    assert value == pytest.approx(without, rel=1e-15) and np.all(gradient[1] == 0)
    np.testing.assert_allclose(gradient[[0, 2]], expected, rtol=1e-15)
