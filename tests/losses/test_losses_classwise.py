"""FedMR's intra-class loss: test vectors, the definition class by class, singletons and constant features."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import Y6, Z6, bound, compiled, evaluate, off_diagonal, pad_batch

from fedjax_collapse.losses import intra_class_correlation

VARIANTS = ["paper", "paper_unit", "official"]


intra = functools.partial(bound, intra_class_correlation)


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
def test_vectors(expected, loss):
    assert evaluate(loss, Z6, Y6)[0] == pytest.approx(expected, abs=1.1e-10)


def test_singletons_are_skipped():
    assert evaluate(intra("official"), Z6, [0, 0, 0, 1, 1, 2])[0] == pytest.approx(0.8095237846, abs=1e-10)
    for variant in VARIANTS:
        value, gradient = evaluate(intra(variant), Z6, np.arange(6))
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_constant_feature_has_no_correlation(variant):
    features = Z6.copy()
    features[:, 1] = 5
    value, gradient = evaluate(intra(variant), features, Y6)
    dim_scale = 6 / 2 if variant == "official" else 1  # it averages over the off-diagonals
    without, _ = evaluate(intra(variant), features[:, [0, 2]], Y6)
    assert value * dim_scale == pytest.approx(without) and np.all(np.isfinite(gradient))
