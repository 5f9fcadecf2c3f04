"""Cross-entropies with class counts, of balanced softmax, FedLC and FedRS: test vectors, the definitions by NumPy, and
what becomes of classes without examples."""

import functools

import jax
import numpy as np
import pytest
from conftest import assert_same_bits
from loss_checks import check_degenerate, check_gradient, compiled, compiled_gradient, evaluate, pad_batch

from fedjax_collapse.core.records import UserError
from fedjax_collapse.losses import (
    balanced_cross_entropy,
    calibrated_cross_entropy,
    cross_entropy,
    restricted_cross_entropy,
)

Z = np.array([[1, 0.5, -0.5], [0.2, -1, 0.8], [0, 0.3, 0.6]])
Y = np.array([0, 2, 0])
Z4 = np.array([[2, 0.5, -1, 0.3], [0.1, 1.2, -0.4, 0], [-0.5, 0.7, 1.5, 0.2]])
Y4 = np.array([0, 0, 3])


def rows(text):
    """The matrix that is written with semicolons between its rows."""
    return np.array([[float(entry) for entry in row.split(",")] for row in text.split(";")])


@functools.cache
def balanced(*arguments):
    return lambda logits, labels, mask, counts: balanced_cross_entropy(logits, labels, mask, counts, *arguments)


@functools.cache
def calibrated(*arguments):
    return lambda logits, labels, mask, counts: calibrated_cross_entropy(logits, labels, mask, counts, *arguments)


@functools.cache
def restricted(*arguments):
    return lambda logits, labels, mask, counts: restricted_cross_entropy(logits, labels, mask, counts, *arguments)


VECTORS = {
    "balanced": (
        balanced(), [6, 1, 2], 0.5904096911,
        "-.0497576531,.0286662241,.0210914290; .2010973518,.0100948931,-.2111922449; "
        "-.1514175191,.0409267773,.1104907417",
    ),
    "fedlc": (
        calibrated(), [6, 0, 2], 0.5438839129,
        "-.0559483860,0,.0559483860; .1259234046,0,-.1259234046; -.2074099287,0,.2074099287",
    ),
    "fedlc tau 1": (
        calibrated(1.0), [6, 0, 2], 0.5310434820,
        "-.0514034412,0,.0514034412; .1339272447,0,-.1339272447; -.1994060886,0,.1994060886",
    ),
    "fedlc, all classes": (
        calibrated(), [6, 1, 2], 0.8095601294,
        "-.1381788749,.0988163317,.0393625432; .1149997325,.0289161816,-.1439159141; "
        "-.2450100201,.0995316464,.1454783736",
    ),
    "fedlc, others": (
        calibrated(0.5, "others"), [6, 1, 2], 0.1334429217,
        "-.3333333333,.2383778074,.0949555259; .2663586193,.0669747140,-.3333333333; "
        "-.3333333333,.1354116679,.1979216654",
    ),
    "fedrs": (
        restricted(), [6, 0, 2], 0.8366082246,
        "-.1367341121,.0464334482,.0438672157; .1004408115,.0249387154,-.1503182424; "
        "-.2496643418,.0486047497,.1524548424",
    ),
    "fedrs, continuous": (
        restricted(0.5, "continuous"), [6, 0, 2], 0.8586583850,
        "-.1413170284,.0453510400,.0337432990; .1152526088,.0286163759,-.1149902403; "
        "-.2421005886,.0529986634,.0907355079",
    ),
}  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name, padded):
    loss, counts, expected, gradient = VECTORS[name]
    value, found = evaluate(loss, Z, Y, padded, (counts,))
    assert value == pytest.approx(expected, abs=1e-10)
    np.testing.assert_allclose(found, rows(gradient), atol=1e-10)
    assert evaluate(loss, Z, Y, not padded, (counts,))[0] == pytest.approx(value, rel=1e-15)


def test_more_vectors():
    assert evaluate(calibrated(1.0), Z, Y, extras=([6, 1, 2],))[0] == pytest.approx(0.7667962302, abs=1e-10)
    assert evaluate(calibrated(1.0, "others"), Z, Y, extras=([6, 1, 2],))[0] == pytest.approx(0.0592687878, abs=1e-10)
    value, gradient = evaluate(balanced(1.0, "eps"), Z4, Y4, padded=True, extras=([6, 0, 0, 2],))
    assert value == pytest.approx(0.4116336590, abs=1e-10)
    expected = """-.0191330706,1e-10,0,.0191330705; -.0772407260,1.0e-9,2e-10,.0772407247;
                  .1994513987,9e-10,2.0e-9,-.1994514016"""
    np.testing.assert_allclose(gradient, rows(expected), atol=1e-10)


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
    value, gradient = evaluate(loss, Z4, Y4, padded=True, extras=(COUNTS,))
    assert value == pytest.approx(plain(logits, Y4, kept), rel=1e-12)
    vacant = gradient[:, 1:3]
    assert np.all(vacant == 0) if name == "exclude" else np.all(vacant > 0)


def test_fedlc_without_the_own_class():
    """The gradient on the row's own logit is -1/B, whatever the logits; with the floor vacant classes are there."""
    shifted = Z4 - 0.3 * np.array([6**-0.25, 100, 100, 2**-0.25])
    for vacant, there in (("floor", [0, 1, 2, 3]), ("exclude", [0, 3])):
        value, gradient = evaluate(calibrated(0.3, "others", vacant), Z4, Y4, padded=True, extras=(COUNTS,))
        losses = [np.log(sum(np.exp(s[c]) for c in there if c != y)) - s[y] for s, y in zip(shifted, Y4, strict=True)]
        assert value == pytest.approx(np.mean(losses), rel=1e-12)
        np.testing.assert_allclose(gradient[np.arange(3), Y4], -1 / 3, rtol=1e-15)


CROSS_ENTROPIES = {
    "balanced": (balanced(), [5, 5, 5]),
    "balanced, tau 0": (balanced(0.0), [6, 1, 2]),
    "balanced, eps, tau 0": (balanced(0.0, "eps"), [6, 0, 2]),
    "fedlc, tau 0": (calibrated(0.0), [6, 1, 2]),
    "fedlc, equal": (calibrated(0.5), [4, 4, 4]),
    "fedrs, alpha 1": (restricted(1.0), [6, 0, 2]),
    "fedrs, continuous, alpha 1": (restricted(1.0, "continuous"), [6, 0, 2]),
    "fedrs, no vacant class": (restricted(0.3), [6, 1, 2]),
}


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_special_cases_are_cross_entropy(name):
    loss, counts = CROSS_ENTROPIES[name]
    value, gradient = evaluate(loss, Z, Y, extras=(counts,))
    expected, of_cross_entropy = evaluate(cross_entropy, Z, Y)
    assert value == pytest.approx(expected, rel=1e-14)
    np.testing.assert_allclose(gradient, of_cross_entropy, rtol=1e-13)


LOSSES = {
    "balanced": balanced(), "floor_one": balanced(1.0, "floor_one"), "eps": balanced(1.0, "eps"),
    "fedlc": calibrated(), "floor": calibrated(0.05, "all", "floor"), "others": calibrated(0.5, "others"),
    "others, floor": calibrated(0.05, "others", "floor"), "fedrs": restricted(),
    "continuous": restricted(0.5, "continuous"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["balanced", "eps", "fedlc", "others", "continuous"])
def test_gradients(name):
    check_gradient(LOSSES[name], Z4, Y4, ([6, 0, 1, 2],))


@pytest.mark.parametrize("name", ["balanced", "eps", "others", "others, floor", "continuous"])
def test_degenerate_batches(name):
    """Also where rows are of a class that is not counted, where one class is, and where none is."""
    for counts in ([6, 0, 3, 0, 1], [6, 0, 0, 0, 0], [0, 0, 0, 0, 0]):
        check_degenerate(LOSSES[name], extras=(np.array(counts),))


@pytest.mark.parametrize("name", LOSSES)
def test_one_class_and_two(name):
    """With a single class in the softmax, value and gradient are exactly 0."""
    loss, labels = LOSSES[name], np.zeros(3, int)
    value, gradient = evaluate(loss, Z[:, :1], labels, padded=True, extras=([9],))
    assert value == 0 and np.all(gradient == 0)
    value, gradient = evaluate(loss, Z[:, :2], labels, padded=True, extras=([9, 0],))
    is_excluded = name in ("balanced", "fedlc", "others")
    assert (value == 0) == is_excluded and np.all(gradient == 0) == is_excluded
    assert np.isfinite(evaluate(loss, Z[:, :2], labels, extras=([5, 4],))[1]).all()


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("fedrs", "continuous")])
def test_a_constant_added_to_a_row_changes_nothing(name):
    value, gradient = evaluate(LOSSES[name], Z4, Y4, extras=(COUNTS,))
    shifted, same = evaluate(LOSSES[name], Z4 + np.array([[3], [-5], [20]]), Y4, extras=(COUNTS,))
    assert shifted == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(same, gradient, atol=1e-12)


@pytest.mark.parametrize("name", ["balanced", "eps", "others", "fedrs"])
def test_what_padding_holds_changes_no_bit(name):
    logits, labels, mask = pad_batch(Z4, Y4)
    of_garbage, of_zeros = (
        jax.device_get(compiled_gradient(LOSSES[name])(rows, labels, mask, COUNTS))
        for rows in (logits, np.where(mask[:, None], logits, 0))
    )
    assert_same_bits(of_garbage, of_zeros)
    assert np.all(of_garbage[1][~mask] == 0)


@pytest.mark.parametrize("name", ["balanced", "fedlc", "others"])
def test_a_row_of_an_excluded_class_does_not_count(name):
    value, gradient = evaluate(LOSSES[name], Z4, np.array([0, 1, 3]), extras=(COUNTS,))
    without, expected = evaluate(LOSSES[name], Z4[[0, 2]], Y4[[0, 2]], extras=(COUNTS,))
    assert value == pytest.approx(without, rel=1e-15) and np.all(gradient[1] == 0)
    np.testing.assert_allclose(gradient[[0, 2]], expected, rtol=1e-15)


def test_counts_may_be_shares():
    mask = np.ones(3, bool)
    for loss in (balanced(), balanced(1.0, "eps")):
        of_counts, of_shares = (compiled(loss)(Z4, Y4, mask, counts) for counts in (COUNTS, COUNTS / 8))
        assert of_counts == pytest.approx(float(of_shares), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (balanced(1.0, "floor"), "balanced softmax vacant 'floor': expected one of exclude, floor_one, eps"),
        (calibrated(0.5, "own"), "fedlc denominator 'own': expected one of all, others"),
        (calibrated(0.5, "all", "eps"), "fedlc vacant 'eps': expected one of exclude, floor"),
        (restricted(0.5, "linear"), "fedrs scale 'linear': expected one of binary, continuous"),
    ],
)
def test_unknown_options_are_named(loss, message):
    with pytest.raises(UserError, match=message):
        evaluate(loss, Z, Y, extras=([1, 1, 1],))
