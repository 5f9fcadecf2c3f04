"""Losses of features that know classes or other models: test vectors, and rows and prototypes that say nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases
from loss_checks import Y6, Z6, bound, compiled, evaluate, pad_batch

from fedjax_collapse import losses

VARIANTS = ["paper", "paper_unit", "official"]
G = np.array([[1, 2, 1], [2, 1, 2], [0, 0, 2]], float)
ALL, LOCAL = np.ones(3, bool), np.array([True, True, False])
ROWS = np.array([[1, 2, 2], [0, 3, 4]], float)
SERVER = np.array([[2, 1, 2], [1, 2, 2]], float)
PREVIOUS = np.array([[2, -1, 0], [0, 4, 3]], float)

intra = functools.partial(bound, losses.intra_class_correlation)


@cases(
    (16.0714285714, intra("paper", eps=0.0)),
    (1.7857142857, intra("paper", eps=0.0, normalise_d2=True)),
    (7.1428571429, intra("paper_unit", eps=0.0)),
    (7.1428571429 / 9, intra("paper_unit", eps=0.0, normalise_d2=True)),
    (0.9206348994, intra("official")),
    (0.9206349206, intra("official", eps=0.0)),
)
def test_vectors_of_correlation_within_classes(expected, loss):
    assert evaluate(loss, Z6, Y6)[0] == pytest.approx(expected, abs=1.1e-10)


def test_classes_of_one_row_have_no_correlation():
    assert evaluate(intra("official"), Z6, [0, 0, 0, 1, 1, 2])[0] == pytest.approx(0.8095237846, abs=1e-10)
    for variant in VARIANTS:
        value, gradient = evaluate(intra(variant), Z6, np.arange(6))
        assert value == 0 and np.all(gradient == 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_constant_feature_has_no_correlation(variant):
    features = Z6.copy()
    features[:, 1] = 5
    value, gradient = evaluate(intra(variant), features, Y6)
    dim_scale = 6 / 2 if variant == "official" else 1  # it averages over the off-diagonals
    without, _ = evaluate(intra(variant), features[:, [0, 2]], Y6)
    assert value * dim_scale == pytest.approx(without) and np.all(np.isfinite(gradient))


def moon(features, labels, mask, server, previous, temperature=0.5):
    if len(features) > len(server):
        server, previous = (jnp.pad(x, ((1, 2), (0, 0)), constant_values=jnp.nan) for x in (server, previous))
    return losses.model_contrastive(features, server, previous, mask, temperature)


def test_vectors_of_moon():
    for rows, temperature, expected in (
        ([0, 1], 0.5, 0.4381647167), ([0, 1], 1.0, 0.5254738260), ([0], 0.5, 0.1561600728), ([1], 0.5, 0.7201693607)
    ):  # fmt: skip
        value, _ = evaluate(moon, ROWS[rows], extras=(SERVER[rows], PREVIOUS[rows], temperature))
        assert value == pytest.approx(expected, abs=1e-10)
    value, gradient = evaluate(moon, ROWS, extras=(SERVER, SERVER))
    assert value == pytest.approx(np.log(2), abs=1e-15) and np.all(gradient == 0)


def test_moon_clips_small_norms_one_by_one():
    tiny, x, y = 1e-9 * np.eye(3)[:1], np.eye(3)[:1], np.eye(3)[1:2]
    for rows, server in [(tiny, x), (x, tiny)]:
        value, _ = evaluate(moon, rows, extras=(server, y, 1.0))
        assert value == pytest.approx(np.log1p(np.exp(-0.1)), abs=1e-12)  # cosine 1e-9 / 1e-8


def margin(features, labels, prototypes=G, valid=ALL, negatives=ALL):
    return evaluate(losses.prototype_margin, features, labels, (prototypes, valid, negatives))


def distance(features, labels, prototypes=G, valid=ALL):
    return evaluate(losses.prototype_distance, features, labels, (prototypes, valid))


def proc(features, labels, prototypes=G):
    return evaluate(losses.prototype_cross_entropy, features, labels, (prototypes,))


@cases(
    (0.6842856470, {"negatives": LOCAL}),
    (0.4451484883, {}),
    (0.6842856470, {"valid": LOCAL}),
    (0.4120226592, {"valid": np.array([True, False, True])}),
    (0.5747552144, {"valid": LOCAL, "negatives": np.array([False, True, True])}),  # class 1 has no pair
    (0.0, {"prototypes": np.array([[2.0, 1, 1], [1, 3, 2], [0, 0, 4]])}),
)
def test_vectors_of_the_margin(expected, options):
    assert margin(Z6, Y6, **options)[0] == pytest.approx(expected, abs=1e-10)


def test_vector_of_the_distance():
    assert distance(Z6, Y6)[0] == pytest.approx(2.5840375864, abs=1e-10)


@pytest.mark.parametrize("loss", [margin, distance])
def test_missing_prototypes_have_no_influence(loss):
    broken = np.where(np.arange(3)[:, None] == 1, np.nan, G)
    value, gradient = loss(Z6, Y6, prototypes=broken, valid=np.array([True, False, True]))
    assert value > 0 and np.all(gradient[Y6 == 1] == 0) and np.any(gradient[Y6 == 0] != 0)
    value, gradient = loss(Z6, Y6, prototypes=broken * np.nan, valid=~ALL)
    assert value == 0 and np.all(gradient == 0)


@cases((losses.prototype_margin, (ALL, ALL)), (losses.prototype_distance, (ALL,)))
def test_selected_rows_only(function, flags):
    """Lite: the loss of only the selected rows, including class sizes."""
    selected = np.array([True, True, False, False, True, False])
    of_padded = np.array([True, *selected, False, False])
    value, gradient = evaluate(function, Z6, Y6, (G, *flags, of_padded))
    expected, expected_gradient = evaluate(function, Z6[selected], Y6[selected], (G, *flags))
    assert value == pytest.approx(expected) != evaluate(function, Z6, Y6, (G, *flags))[0]
    np.testing.assert_allclose(gradient[selected], expected_gradient, rtol=1e-12)
    assert np.all(gradient[~selected] == 0)


def test_a_row_on_its_prototype_has_no_gradient():
    rows = G[:2] + [[0, 0, 0], [1, 0, 0]]
    for loss in (margin, distance):
        assert np.all(loss(rows, [0, 1])[1][0] == 0)
    value, gradient = distance(rows, [0, 1])
    assert value == pytest.approx(0.5) and gradient[1] == pytest.approx([0.5, 0, 0])


def test_distances_between_close_rows_keep_their_precision():
    """Features far from the origin and close to their prototypes, in float32."""
    rows, prototypes = (np.float32(1000 + 0.01 * x) for x in (Z6, G))
    expected, _ = margin(rows.astype(float), Y6, prototypes.astype(float))
    found = compiled(losses.prototype_margin)(rows, Y6, np.ones(6, bool), prototypes, ALL, ALL)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_vectors_of_fedproc():
    prototypes = np.array([[1.0, 0], [0, 2], [-3, 0]])
    rows, labels = np.array([[3.0, 4], [1, 0]]), np.array([0, 1])
    for own, expected in (([0, 1], 1.1664474395), ([0], 0.9252889146), ([1], 1.4076059644)):
        assert proc(rows[own], labels[own], prototypes)[0] == pytest.approx(expected, abs=1e-10)


def test_fedproc_without_prototypes_or_features():
    value, gradient = proc(Z6, Y6, prototypes=np.zeros((4, 3)))
    assert value == pytest.approx(np.log(4)) and np.all(gradient == 0)
    value, gradient = proc(0 * Z6, Y6)
    assert value == pytest.approx(np.log(3)) and np.all(gradient == 0)


def test_class_sums():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        sums, counts = compiled(bound(losses.class_sums, 3))(*map(jnp.asarray, pad_batch(Z6, Y6)))
    assert sums.dtype == counts.dtype == np.float64
    np.testing.assert_array_equal(sums, [[7, 2, 3], [3, 10, 6], [0, 0, 0]])
    np.testing.assert_array_equal(counts, [3, 3, 0])
