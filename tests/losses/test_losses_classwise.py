"""FedMR's intra-class loss: test vectors, the definition class by class, and its bounds and invariances."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import Y6, Z6, check_degenerate, check_gradient, compiled, evaluate, off_diagonal, pad_batch

from fedjax_collapse.core.records import UserError
from fedjax_collapse.losses import intra_class_correlation

VARIANTS = ["paper", "paper_unit", "official"]


@functools.cache
def intra(variant, **options):
    return lambda features, labels, mask: intra_class_correlation(features, labels, mask, variant, **options)


def direct(features, labels, variant, min_count=2):
    """The definition, class by class, without eps."""
    terms, rows = [], 0
    for label in np.unique(labels):
        members = features[labels == label]
        count, dim = members.shape
        if count < min_count:
            continue
        matrix = np.corrcoef(members, rowvar=False)
        rows += count
        scale = {"paper": count / (count - 1), "paper_unit": 1, "official": count - 1}[variant]
        squares = (scale * matrix) ** 2
        terms.append(np.sum(off_diagonal(squares)) / (dim * (dim - 1)) if variant == "official" else np.sum(squares))
    if not terms:
        return 0.0
    return sum(terms) / rows if variant == "official" else np.mean(terms)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "expected, loss",
    [
        (16.0714285714, intra("paper", eps=0.0)),
        (1.7857142857, intra("paper", eps=0.0, normalise_d2=True)),
        (7.1428571429, intra("paper_unit", eps=0.0)),
        (7.1428571429 / 9, intra("paper_unit", eps=0.0, normalise_d2=True)),
        (0.9206348994, intra("official")),
        (0.9206349206, intra("official", eps=0.0)),
    ],
)
def test_vectors(expected, loss, padded):
    assert evaluate(loss, Z6, Y6, padded)[0] == pytest.approx(expected, abs=1.1e-10)


@pytest.mark.parametrize("padded", [False, True])
def test_gradient_vector(padded):
    _, gradient = evaluate(intra("official"), Z6, Y6, padded)
    expected = [
        [-0.0748299307, -0.0000000176, 0.0317460337],
        [0.1122448945, -0.3571428351, -0.0634920597],
        [-0.0374149639, 0.3571428528, 0.0317460261],
        [0.0634920594, -0.1632653039, 0.0634920594],
        [-0.1269841252, 0.1088435354, -0.1269841252],
        [0.0634920658, 0.0544217685, 0.0634920658],
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-10)


@pytest.mark.parametrize("padded", [False, True])
def test_singletons_are_skipped(padded):
    assert evaluate(intra("official"), Z6, [0, 0, 0, 1, 1, 2], padded)[0] == pytest.approx(0.8095237846, abs=1e-10)
    for variant in VARIANTS:
        value, gradient = evaluate(intra(variant), Z6, np.arange(6), padded)
        assert value == 0 and np.all(gradient == 0)


@functools.cache
def all_variants(min_count):
    def values(features, labels, mask):
        losses = [intra(variant, min_count=min_count, eps=0.0) for variant in VARIANTS]
        return jnp.stack([loss(features, labels, mask) for loss in losses])

    return values


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    st.lists(st.integers(0, 3), min_size=9, max_size=9),
    st.sampled_from([3, 12]),
    st.sampled_from([2, 3]),
    st.integers(0, 99),
)
def test_is_the_direct_definition(labels, dim, min_count, seed):
    labels = np.array(labels)
    features = np.random.default_rng(seed).normal(size=(9, dim)) + 3 * labels[:, None]
    with jax.enable_x64(True):
        values = compiled(all_variants(min_count))(*map(jnp.asarray, pad_batch(features, labels)))
    expected = [direct(features, labels, variant, min_count) for variant in VARIANTS]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(st.sampled_from([(3, 20), (9, 2), (9, 20)]), st.integers(0, 100))
def test_bounds_of_one_class(shape, seed):
    count, dim = shape
    features = np.random.default_rng(seed).normal(size=shape)
    unit, _ = evaluate(intra("paper_unit", eps=0.0), features)
    paper, _ = evaluate(intra("paper", eps=0.0), features)
    assert dim**2 / min(dim, count - 1) * (1 - 1e-9) <= unit <= dim**2 * (1 + 1e-9)
    assert paper == pytest.approx((count / (count - 1)) ** 2 * unit)


def test_class_of_two_has_a_value_but_no_gradient():
    value, gradient = evaluate(intra("paper_unit"), Z6[:4, :2] * [1, 3], [0, 1, 0, 1])
    assert value == pytest.approx(4) and np.abs(gradient).max() < 1e-6


def test_invariances():
    labels = np.array([5, 2, 5, 2, 5, 2])
    for variant in VARIANTS:
        value, _ = evaluate(intra(variant, eps=0.0), Z6, labels)
        moved, _ = evaluate(intra(variant, eps=0.0), 3 * Z6 + 7 * labels[:, None], labels)
        renamed, _ = evaluate(intra(variant, eps=0.0), Z6, labels * 100 - 300)
        assert moved == pytest.approx(value) and renamed == pytest.approx(value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_constant_feature_has_no_correlation(variant):
    features = Z6.copy()
    features[:, 1] = 5
    value, gradient = evaluate(intra(variant), features, Y6)
    dim_scale = 6 / 2 if variant == "official" else 1  # it averages over the off-diagonals
    without, _ = evaluate(intra(variant), features[:, [0, 2]], Y6)
    assert value * dim_scale == pytest.approx(without) and np.all(np.isfinite(gradient))


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_and_float32(variant):
    labels = np.array([1, 1, 0, 1, 0, 0])  # not grouped
    check_gradient(intra(variant), Z6, labels)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", [(), (("eps", 0.0),), (("min_count", 3),)])
@pytest.mark.parametrize("dim", [1, 5])
def test_degenerate_batches(variant, options, dim):
    check_degenerate(intra(variant, **dict(options)), dim)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"variant": "papre"}, "variant 'papre': expected one of paper, paper_unit, official"),
        ({"min_count": 1}, "min_count 1: expected >= 2"),
        ({"variant": "official", "normalise_d2": True}, "normalise_d2 True: expected False"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UserError, match=message):
        intra_class_correlation(jnp.asarray(Z6), jnp.asarray(Y6), jnp.ones(6, bool), **options)
