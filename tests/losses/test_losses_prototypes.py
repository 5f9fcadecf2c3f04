"""FedMR's inter-class loss, FedProc's prototype loss and the sums behind prototypes: test vectors and definitions."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import Y6, Z6, bound, compiled, evaluate, pad_batch

from fedjax_collapse.losses import class_sums, prototype_cross_entropy, prototype_distance, prototype_margin

G = np.array([[1, 2, 1], [2, 1, 2], [0, 0, 2]], float)
ALL = np.ones(3, bool)
LOCAL = np.array([True, True, False])


def margin(features, labels, prototypes=G, valid=ALL, negatives=ALL):
    return evaluate(prototype_margin, features, labels, (prototypes, valid, negatives))


def distance(features, labels, prototypes=G, valid=ALL):
    return evaluate(prototype_distance, features, labels, (prototypes, valid))


def proc(features, labels, prototypes=G):
    return evaluate(prototype_cross_entropy, features, labels, (prototypes,))


def direct_margin(features, labels, prototypes, valid, negatives):
    terms = []
    for own in np.unique(labels):
        for other in range(len(prototypes)):
            if other != own and valid[own] and valid[other] and negatives[other]:
                rows = features[labels == own]
                near, far = (np.linalg.norm(rows - prototypes[c], axis=1) for c in (own, other))
                terms.append(np.mean(np.maximum(near - far, 0)))
    return np.mean(terms) if terms else 0.0


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        (0.6842856470, {"negatives": LOCAL}),
        (0.4451484883, {}),
        (0.6842856470, {"valid": LOCAL}),
        (0.4120226592, {"valid": np.array([True, False, True])}),
        (0.5747552144, {"valid": LOCAL, "negatives": np.array([False, True, True])}),  # class 1 has no pair
        (0.0, {"prototypes": np.array([[2.0, 1, 1], [1, 3, 2], [0, 0, 4]])}),
    ],
)
def test_margin_vectors(expected, options):
    assert margin(Z6, Y6, **options)[0] == pytest.approx(expected, abs=1e-10)


def test_distance_vector():
    assert distance(Z6, Y6)[0] == pytest.approx(2.5840375864, abs=1e-10)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    st.lists(st.integers(0, 3), min_size=7, max_size=7),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 99),
)
def test_margin_is_the_direct_definition(labels, valid, negatives, seed):
    labels, valid, negatives = np.array(labels), np.array(valid), np.array(negatives)
    rng = np.random.default_rng(seed)
    features, prototypes = rng.normal(size=(7, 5)), rng.normal(size=(4, 5))
    expected = direct_margin(features, labels, prototypes, valid, negatives)
    prototypes[~valid] = np.nan  # a missing prototype may hold anything
    value, gradient = margin(features, labels, prototypes, valid, negatives)
    assert value == pytest.approx(expected, abs=1e-14) and np.all(np.isfinite(gradient))


@pytest.mark.parametrize("loss", [margin, distance])
def test_missing_prototypes_have_no_influence(loss):
    broken = np.where(np.arange(3)[:, None] == 1, np.nan, G)
    value, gradient = loss(Z6, Y6, prototypes=broken, valid=np.array([True, False, True]))
    assert value > 0 and np.all(gradient[Y6 == 1] == 0) and np.any(gradient[Y6 == 0] != 0)
    value, gradient = loss(Z6, Y6, prototypes=broken * np.nan, valid=~ALL)
    assert value == 0 and np.all(gradient == 0)


@pytest.mark.parametrize(("function", "flags"), [(prototype_margin, (ALL, ALL)), (prototype_distance, (ALL,))])
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
    arrays = map(jnp.asarray, (rows, Y6, np.ones(6, bool), prototypes, ALL, ALL))
    expected = direct_margin(rows.astype(float), Y6, prototypes.astype(float), ALL, ALL)
    assert float(prototype_margin(*arrays)) == pytest.approx(expected, rel=1e-4)


def test_fedproc_vector():
    prototypes = np.array([[1.0, 0], [0, 2], [-3, 0]])
    rows, labels = np.array([[3.0, 4], [1, 0]]), np.array([0, 1])
    assert proc(rows, labels, prototypes)[0] == pytest.approx(1.1664474395, abs=1e-10)
    for row, expected in enumerate([0.9252889146, 1.4076059644]):
        value, _ = proc(rows[[row]], labels[[row]], prototypes)
        assert value == pytest.approx(expected, abs=1e-10)


def test_fedproc_without_prototypes_or_features():
    value, gradient = proc(Z6, Y6, prototypes=np.zeros((4, 3)))
    assert value == pytest.approx(np.log(4)) and np.all(gradient == 0)
    value, gradient = proc(0 * Z6, Y6)
    assert value == pytest.approx(np.log(3)) and np.all(gradient == 0)


def test_class_sums():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        sums, counts = compiled(bound(class_sums, 3))(*map(jnp.asarray, pad_batch(Z6, Y6)))
    assert sums.dtype == counts.dtype == np.float64
    np.testing.assert_array_equal(sums, [[7, 2, 3], [3, 10, 6], [0, 0, 0]])
    np.testing.assert_array_equal(counts, [3, 3, 0])


def test_class_sums_of_two_clients_give_the_weighted_prototype():
    one = jnp.ones(1, bool)
    first = class_sums(jnp.asarray(Z6, jnp.float32), jnp.asarray(Y6), jnp.ones(6, bool), 2)
    second = class_sums(jnp.array([[5.0, 1, 0]]), jnp.array([0]), one, 2)
    sums, counts = jax.tree.map(jnp.add, first, second)
    np.testing.assert_allclose(sums[0] / counts[0], [3, 0.75, 0.75], rtol=1e-6)
    nothing = class_sums(jnp.array([[np.nan, 1, 0]]), jnp.array([0]), ~one, 2)
    assert all(np.all(np.asarray(x) == 0) for x in nothing)
