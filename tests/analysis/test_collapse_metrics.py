"""Spectra and numbers that summarise collapse: published test vectors, invariances, and degenerate features."""

import flax.linen
import jax
import numpy as np
import pytest
from conftest import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import Model, nn
from fedjax_collapse.analysis import geometry, neural_collapse, rank, similarity
from fedjax_collapse.analysis.drift import drift, inner_products
from fedjax_collapse.analysis.lidar import discriminant_spectrum, lidar
from fedjax_collapse.analysis.moments import Moments, class_moments, merged
from fedjax_collapse.analysis.spectrum import (
    collapse_ratio,
    covariance_spectrum,
    dead_features,
    effective_rank,
    significant_dims,
)
from fedjax_collapse.core.records import Batch
from fedjax_collapse.measurements import classifier_weight

F = np.array([[1.0, 0, 2], [2, 1, 1], [4, 1, 0], [0, 3, 1], [1, 2, 2], [2, 5, 3]])
OTHER = np.array([[0.0, 1, 1, 0], [1, 0, 2, 1], [3, 1, 0, 0], [1, 2, 1, 1], [0, 1, 3, 2], [2, 2, 2, 5]])
BALANCED, UNEQUAL = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 2])
W, BIAS = np.array([[1, 0, 0.5], [0, 1, -0.5], [-0.5, 0.5, 1]]), np.array([0.1, 0, -0.1])
POWER_LAW = np.arange(1, 21.0) ** -1.5 * (1 + 0.1 * (-1.0) ** np.arange(1, 21))


def padded(features, labels, num_classes) -> Moments:
    """With two rows of garbage among the others, and another shift."""
    rows, own = np.insert(features, [1, 3], np.nan, axis=0), np.insert(labels, [1, 3], [0, num_classes - 1])
    return class_moments(rows, own, num_classes, ~np.isnan(rows).any(axis=1), features[0] + 1)


@pytest.fixture(params=[class_moments, padded])
def moments_of(request):
    return request.param


def test_published_ranks(moments_of):
    moments = moments_of(F, BALANCED, 3)
    values, spectrum = moments.singular_values, moments.spectrum
    np.testing.assert_allclose(values, [8.1469463109, 3.7975136307, 2.0508915211], atol=1e-9)
    np.testing.assert_allclose(spectrum, [3.1574975689, 1.5148647201, 0.4665265999], atol=1e-9)
    assert rank.stable_rank(values) == pytest.approx(1.2806463533, abs=1e-9)
    assert rank.nesum(spectrum) == pytest.approx(1.6275195077, abs=1e-9)
    found = [rank.rankme(values, eps) for eps in (0.0, 1e-7, 1e-5)]
    np.testing.assert_allclose(found, [2.5865623430, 2.5865625411, 2.5865821523], atol=1e-9)
    assert rank.rankme(values) == found[1]
    assert effective_rank(spectrum) == pytest.approx(2.4040642919, abs=1e-9)
    assert rank.participation_ratio(spectrum) == pytest.approx(2.1156580330, abs=1e-9)
    found = [rank.alpha_req(spectrum, 1, 3, weighted) for weighted in (False, True)]
    np.testing.assert_allclose(found, [1.6672478402, 1.5440050118], atol=1e-9)


def test_published_slopes():
    assert rank.alpha_req(POWER_LAW, 4, 12) == pytest.approx(1.5365902974, abs=1e-9)
    assert rank.alpha_req(POWER_LAW, 1, 20, weighted=False) == pytest.approx(1.4861192145, abs=1e-9)
    assert rank.alpha_req(np.arange(1, 200.0) ** -1.25) == pytest.approx(1.25, abs=1e-12)
    beyond = np.r_[np.arange(1, 101.0) ** -1.25, np.full(50, 1e-9)]  # indices 1 to 3 and from 101 are not looked at
    beyond[:3] = 100
    assert rank.alpha_req(beyond) == pytest.approx(1.25, abs=1e-12)


def test_published_neural_collapse(moments_of):
    moments = moments_of(F, BALANCED, 3)
    means = moments.centred_class_means
    found = {
        "NC1": neural_collapse.variability(moments),
        "lengths": neural_collapse.equinorm(means),
        "lengths of W": neural_collapse.equinorm(W),
        "angles": neural_collapse.equiangularity(means),
        "angles of W": neural_collapse.equiangularity(W),
        "NC3": neural_collapse.self_duality(W, means),
        "NC4": neural_collapse.nearest_mean_disagreement(F, F @ W.T + BIAS, moments),
        "Zhu NC2": neural_collapse.simplex_distance(W),
        "Zhu NC3": neural_collapse.simplex_distance(W, means),
        "bias": neural_collapse.bias_residual(W, BIAS, moments.mean),
    }
    expected = [0.5255403937, 0.2611829668, 0.0534061443, 0.2771578496, 0.4333333333, 1.1608536083, 0.5, 0.5398478620]
    expected += [0.9843947067, 3.2172279303]
    assert list(found.values()) == pytest.approx(expected, abs=1e-9)


def test_published_numbers_of_unequal_classes(moments_of):
    moments = moments_of(F, UNEQUAL, 3)
    assert neural_collapse.variability(moments) == pytest.approx(0.3558753150, abs=1e-9)
    assert neural_collapse.variability(moments, moments.mean) == pytest.approx(0.3541189531, abs=1e-9)
    assert lidar(moments) == pytest.approx(1.0279141841, abs=1e-9)
    on_sphere = moments_of(geometry.on_sphere(F), UNEQUAL, 3)
    assert geometry.class_alignment(on_sphere) == pytest.approx(0.5507177548, abs=1e-9)


def test_published_lidar(moments_of):
    moments = moments_of(F, BALANCED, 3)
    values = discriminant_spectrum(moments)
    np.testing.assert_allclose(values, [3.0601466008, 1.0063027667, 0], atol=1e-9)
    assert lidar(moments) == pytest.approx(1.7498546551, abs=1e-9)
    assert rank.rankme(values[:2], 1e-8) == pytest.approx(1.7498545599, abs=1e-9)  # the paper's p, of C' - 1 values


def test_published_geometry(moments_of):
    assert geometry.uniformity(F) == pytest.approx(-1.0509557800, abs=1e-9)
    on_sphere = moments_of(geometry.on_sphere(F), BALANCED, 3)
    assert geometry.class_alignment(on_sphere) == pytest.approx(0.7108568221, abs=1e-9)


def test_published_similarity():
    assert similarity.linear_cka(F, OTHER) == pytest.approx(0.8335132462, abs=1e-9)
    assert similarity.debiased_cka(F, OTHER) == pytest.approx(0.5201657917, abs=1e-9)


def test_published_head():
    values, centred = classifier_weight.weight_spectrum(W), classifier_weight.weight_spectrum(W, centred=True)
    np.testing.assert_allclose(values, [1.2247448714, 1.2247448714, 1], atol=1e-9)
    np.testing.assert_allclose(centred, [1.2247448714, 1.1547005384, 0], atol=1e-9)
    np.testing.assert_allclose(classifier_weight.weight_spectrum(W + [3, 0, 1], centred=True), centred, atol=1e-9)
    assert effective_rank(values) == pytest.approx(2.9869879854, abs=1e-9)
    assert effective_rank(centred) == pytest.approx(1.9991335108, abs=1e-9)


class NoBias(flax.linen.Module):
    num_classes: int

    @flax.linen.compact
    def __call__(self, features):
        return flax.linen.Dense(self.num_classes, use_bias=False)(features)


class Scaled(NoBias):
    @flax.linen.compact
    def __call__(self, features):
        return super().__call__(features) * self.param("scale", flax.linen.initializers.ones, ())


@cases("linear", NoBias)
def test_the_head_of_a_network(head):
    model = Model(nn.MLP(4, hidden=(5,), head=head), (3, 3, 1))
    variables = jax.tree.map(lambda leaf: leaf + 0.1, model.init(jax.random.key(0)))
    images = jax.random.normal(jax.random.key(1), (6, 3, 3, 1))
    outputs, _ = model.apply(variables, Batch(images, None, np.ones(6, bool)), train=False)
    weight, bias = classifier_weight.linear_head(model, variables)
    np.testing.assert_allclose(np.asarray(outputs.features) @ weight.T + bias, outputs.logits, rtol=1e-5)
    assert bias.any() == (head == "linear")


def test_a_head_that_is_not_linear():
    model = Model(nn.MLP(4, hidden=(5,), head=Scaled), (3, 3, 1))
    assert classifier_weight.linear_head(model, model.init(jax.random.key(0))) is None


def test_drift_of_three_clients():
    updates = [{"a": np.array([3.0, 0]), "b": np.array([[4.0]])}, {"a": np.array([0.0, 2]), "b": np.array([[0.0]])}]
    updates.append({"a": np.array([-3.0, 0]), "b": np.array([[-4.0]])})
    found = drift(inner_products(updates))
    np.testing.assert_allclose(found.norms, [5, 2, 5])
    np.testing.assert_allclose(found.cosines, [0, -1, 0], atol=1e-15)
    assert found.agreement == pytest.approx((2 / 3) ** 2 / 18)  # the mean is (0, 2/3, 0)
    assert drift(inner_products(updates[:1] * 3)).agreement == pytest.approx(1)
    large = [{"w": np.arange(200_000.0) + i} for i in range(2)]
    np.testing.assert_allclose(inner_products(large)[0, 1], large[0]["w"] @ large[1]["w"])


def numbers(features, labels, weight) -> np.ndarray:
    """All that depends on features, classes and a classifier."""
    moments = class_moments(features, labels, 3)
    units = class_moments(geometry.on_sphere(features), labels, 3)
    means, kept = moments.centred_class_means, weight[moments.is_present]
    ranks = [rank.stable_rank(moments.singular_values), rank.rankme(moments.singular_values)]
    ranks += [f(moments.spectrum) for f in (rank.nesum, rank.participation_ratio, effective_rank)]
    ranks += [rank.alpha_req(moments.spectrum, 1, 4)]
    collapse = [neural_collapse.variability(moments), neural_collapse.equinorm(means)]
    collapse += [neural_collapse.equiangularity(means), neural_collapse.self_duality(kept, means)]
    collapse += [neural_collapse.simplex_distance(kept, means), neural_collapse.simplex_distance(weight)]
    collapse += [neural_collapse.nearest_mean_disagreement(features, features @ weight.T, moments)]
    return np.array([*ranks, *collapse, geometry.uniformity(features), geometry.class_alignment(units)])


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_neither_rotation_nor_scale_nor_order_matters(seed, scale):
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(size=(12, 4)) + 1, rng.permutation(np.arange(12) % 3)
    weight = rng.normal(size=(3, 4))
    rotation, order = np.linalg.qr(rng.normal(size=(4, 4)))[0], rng.permutation(12)
    expected = numbers(features, labels, weight)
    found = numbers(scale * features[order] @ rotation, labels[order], weight @ rotation)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert np.isfinite(expected).all()
    other = rng.normal(size=(12, 5)) + features[:, :1]
    for cka in (similarity.linear_cka, similarity.debiased_cka):
        found = cka(scale * features[order] @ rotation + 7, other[order])
        np.testing.assert_allclose(found, cka(features, other), rtol=1e-8)
    assert similarity.linear_cka(features, scale * features @ rotation) == pytest.approx(1)


def test_moments_of_a_mean_that_is_large_against_the_spread():
    """Of which plain sums would keep four digits; and one class without examples."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20, 3)) + 1e6, np.arange(20) % 4
    moments = class_moments(features, labels, 5)
    np.testing.assert_allclose(moments.covariance, np.cov(features.T, bias=True), atol=1e-6)
    np.testing.assert_allclose(moments.spectrum, covariance_spectrum(features), atol=1e-6)
    within = sum(5 * np.cov(features[labels == c].T, bias=True) for c in range(4))
    np.testing.assert_allclose(moments.within, within, atol=2e-5)
    assert moments.counts.tolist() == [5, 5, 5, 5, 0] and not moments.is_present[4]


def test_padded_rows_change_nothing_bit_for_bit():
    mask = np.arange(9) < 6
    rows, labels = np.r_[F, [[np.nan] * 3, [1e30] * 3, [-5] * 3]], np.r_[UNEQUAL, 2, 0, 1]
    for one, other in zip(class_moments(rows, labels, 3, mask), class_moments(F, UNEQUAL, 3), strict=True):
        np.testing.assert_array_equal(one, other)


def test_collapsed_features_and_their_simplex_are_zero():
    """Three points that are the vertices of a triangle, and the classifier that is the same triangle."""
    angles = 2 * np.pi * np.arange(3) / 3
    points = np.stack([np.cos(angles), np.sin(angles), np.zeros(3)], axis=1)
    features, labels = np.repeat(points, 4, axis=0) + 2, np.repeat(np.arange(3), 4)
    found = numbers(features, labels, 5 * points)[6:12]
    np.testing.assert_allclose(found, 0, atol=1e-7)
    moments = class_moments(features, labels, 3)
    logits = features @ points.T - points @ moments.mean
    assert neural_collapse.nearest_mean_disagreement(features, logits, moments) == 0
    assert neural_collapse.bias_residual(points, -points @ moments.mean, moments.mean) < 1e-15


CONSTANT = np.where(F > 1, 0.1, np.nextafter(0.1, 1))  # up to rounding


@cases((np.zeros((6, 3)), [0, 0, 0, 0, 0]), (CONSTANT, [1, 1, 0, 0, 0]), (np.where(F > 4, np.nan, F), [np.nan] * 5))
def test_degenerate_features(features, ranks):
    """Dead, constant and not finite: no warning, and what has no value is NaN."""
    with np.errstate(all="raise", under="ignore"):
        found = numbers(features, BALANCED, W)
        np.testing.assert_allclose(found[:5], ranks, rtol=1e-5)
        assert np.isnan(found[5:11]).all()
        moments = class_moments(features, BALANCED, 3)
        expected = np.nan if np.isnan(features).any() else 0
        np.testing.assert_equal(lidar(moments), expected)
        np.testing.assert_equal(similarity.linear_cka(features, F), np.nan)
        np.testing.assert_equal(similarity.debiased_cka(F, features), np.nan)


def test_few_classes_and_examples():
    one_class, singles = class_moments(F, np.zeros(6, int), 3), class_moments(F[:3], np.arange(3), 3)
    means = one_class.centred_class_means
    assert np.isnan([neural_collapse.variability(one_class), lidar(one_class), lidar(singles)]).all()
    assert np.isnan([f(means) for f in (neural_collapse.equinorm, neural_collapse.equiangularity)]).all()
    assert neural_collapse.variability(singles) == pytest.approx(0, abs=1e-12)
    assert np.isnan(geometry.class_alignment(singles)) and np.isnan(geometry.uniformity(F[:1]))
    assert np.isnan(similarity.debiased_cka(F[:3], OTHER[:3]))
    assert np.isnan(rank.alpha_req(np.array([1.0, 0.5, 0.2, 0.1]))) and np.isnan(rank.alpha_req(np.zeros(9)))
    nobody = class_moments(F[:0], BALANCED[:0], 3)
    assert np.isnan(nobody.mean).all() and np.isnan(nobody.spectrum).all() and not len(nobody.class_means)
    assert np.isnan(drift(np.zeros((0, 0))).agreement) and np.isnan(drift(np.zeros((2, 2))).cosines).all()


def test_uniformity_of_many_examples_is_that_of_some():
    features = np.random.default_rng(0).normal(size=(300, 3))
    some, again, all_of_them = (geometry.uniformity(features, most=most) for most in (100, 100, 300))
    assert some == again != all_of_them and abs(some - all_of_them) < 0.1
    assert geometry.uniformity(features, t=1.0) > all_of_them
    with_a_dead_one = np.r_[F, np.zeros((1, 3))]
    assert np.isfinite(geometry.uniformity(with_a_dead_one))


Z = np.array([[1.0, 2, 0], [2, 1, 1], [0, 3, 1], [3, 2, 4]])


def test_spectrum_of_the_test_vector():
    spectrum = covariance_spectrum(Z)
    np.testing.assert_allclose(spectrum, [3.1269372694, 0.8495350260, 0.0235277046], atol=1e-9)
    np.testing.assert_allclose(np.log(spectrum), [1.1400540173, -0.1630661074, -3.7495766321], atol=1e-8)
    unbiased = covariance_spectrum(Z, unbiased=True)
    np.testing.assert_allclose(unbiased, [4.1692496925, 1.1327133680, 0.0313702728], atol=1e-9)


def test_spectrum_is_computed_in_float64():
    features = np.random.default_rng(0).normal(size=(200, 3)) * [1, 1e-5, 1e-7]
    spectrum = covariance_spectrum((features + 1).astype(np.float64))
    np.testing.assert_allclose(spectrum[2], 1e-14, rtol=0.3)


def test_dead_features_are_those_that_are_the_same_for_all_examples():
    features = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    features[:, 1], features[:, 3] = 0.1, 0.0
    features[:, 4] = 1e-6 * features[:, 4] + 1  # small differences are no death
    assert dead_features(features) == 2 / 5 and dead_features(features[:, :1]) == 0

    def in_parts(features, shift=None):
        first, second = features[:150], features[150:]
        moments = class_moments(first, np.zeros(150, int), 1, shift=shift)
        return merged(moments, class_moments(second, np.zeros(250, int), 1, shift=moments.shift))

    assert in_parts(features).dead_features == in_parts(features, np.full(5, 0.7)).dead_features == 2 / 5
    features[7, 0] = np.inf
    assert np.isnan([dead_features(features), in_parts(features).dead_features]).all()


def test_collapse_ratio_and_significant_dims():
    local, server = np.array([4, 1, 0.5, 0.1]), np.array([3, 0.5, 0.1, 0.01])
    assert collapse_ratio(local, server) == pytest.approx(1.2232130646, abs=1e-9)
    assert collapse_ratio(local, server, base=10.0) == pytest.approx(0.5312346842, abs=1e-9)
    assert collapse_ratio(local, server, top=1) == pytest.approx(np.log(4 / 3))
    assert collapse_ratio(local, local) == 0
    assert (significant_dims(local), significant_dims(server)) == (3, 2)
    assert (significant_dims(local, base=10.0), significant_dims(server, base=10.0)) == (4, 3)


def test_collapse_ratio_of_dead_features_is_finite():
    assert np.isfinite(collapse_ratio(np.array([1.0, 0.0]), np.array([0.0, 0.0])))


def test_effective_rank():
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert effective_rank(np.zeros(3)) == 0
    share = np.array([0.5, 0.25, 0.25])
    assert effective_rank(10 * share) == pytest.approx(2**1.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_have_no_spectrum(bad):
    features = Z.copy()
    features[1, 2] = bad
    spectrum = covariance_spectrum(features)
    assert spectrum.shape == (3,) and np.isnan(spectrum).all()
    assert np.isnan([effective_rank(spectrum), significant_dims(spectrum), collapse_ratio(spectrum, np.ones(3))]).all()
